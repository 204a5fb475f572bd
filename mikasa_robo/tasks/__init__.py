"""The task families, one file each."""
