"""Small memory environments for Gymnasium, under one registry: ``import mikasa_base`` registers every ID.

Needs numpy and Gymnasium; an environment on top of another library needs the extra that its error names. Nothing but the
table of environments is imported here.
"""

from mikasa_base.registry import ENV_IDS, ROWS, VARIANTS, EnvRow, Variant, register_all

__all__ = ["ENV_IDS", "ROWS", "VARIANTS", "EnvRow", "Variant"]

register_all()
