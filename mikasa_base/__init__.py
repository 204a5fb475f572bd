"""Small memory environments for Gymnasium: ``import mikasa_base`` registers every ID.

The package needs numpy and Gymnasium. An environment that is built on another library needs an extra; without it,
``gymnasium.make`` raises an error that names the extra. Importing the package loads only the table of environments.
"""

from mikasa_base.registry import ENV_IDS, ROWS, VARIANTS, EnvRow, Variant, register_all

__all__ = ["ENV_IDS", "ROWS", "VARIANTS", "EnvRow", "Variant"]

register_all()
