"""The names that LeRobot's policies look for, in datasets and in environments."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["image_key", "observation_keys"]


def observation_keys(parts: Iterable[str]) -> dict[str, str]:
    """LeRobot's names for the parts of an observation that are not images.

    Args:
        parts: of `mikasa_robo.core.observations.MODES`, and "prompt".

    Returns:
        The name by part. The robot's joints are "observation.state" and the objects "observation.environment_state". Where
        there is only one of the two, the part "state" takes the other name.
    """
    parts = list(parts)
    robot = next((part for part in ("joints", "state") if part in parts), None)
    world = next((part for part in ("objects", "state") if part in parts and part != robot), None)
    known: dict[str | None, str] = {"state": "task_state", world: "environment_state", robot: "state"}
    return {part: f"observation.{known.get(part, part)}" for part in parts}


def image_key(camera: str, part: str = "rgb") -> str:
    """LeRobot's name for the images of a camera; ``part`` is "rgb", "depth" or "segmentation"."""
    return f"observation.images.{camera}" + ("" if part == "rgb" else f"_{part}")
