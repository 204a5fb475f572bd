"""Reference algorithms, each readable top to bottom in one file; installed as ``mikasa_robo.baselines``."""
