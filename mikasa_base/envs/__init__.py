"""The environments that are written here, one file each."""
