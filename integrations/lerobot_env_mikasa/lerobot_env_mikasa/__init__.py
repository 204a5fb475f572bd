"""The robot tasks of MIKASA as environments of LeRobot, ``--env.type=mikasa``. LeRobot imports this package by itself."""

from .config import MikasaEnv

__all__ = ["MikasaEnv"]
