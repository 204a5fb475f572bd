"""Gymnasium wrappers for the MIKASA tasks, one to a file; installed as ``mikasa_robo.utils.wrappers``."""
