"""The objects of the tasks, built from code: colours, shapes, the mug; and the robot's low-poly meshes."""
