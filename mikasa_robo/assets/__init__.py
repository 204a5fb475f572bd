"""What the tasks are built of, made in code: colours, shapes, the mug."""
