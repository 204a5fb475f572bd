"""Datasets of recorded episodes: what `mikasa collect` makes and `mikasa data` reads.

`episode` says what an episode is, `formats` which file formats there are. Importing them loads neither torch nor SAPIEN.
"""
