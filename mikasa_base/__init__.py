"""The registry of small memory environments comes in a later step; this package defines nothing yet."""
