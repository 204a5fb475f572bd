"""The environments on top of other libraries, one file per library."""
