"""torch's random number generators in checkpoints."""

from __future__ import annotations

import torch
from torch import Tensor


def continue_generator(generator: torch.Generator, state: Tensor, otherwise: int) -> bool:
    """Go on with the random numbers of a saved generator, also where it was on another kind of device.

    The states of generators on a CPU and on a GPU mean different things and have different sizes. A generator cannot go on
    with a state of the other kind, and begins anew.

    Args:
        generator: is changed.
        state: (bytes,) uint8, as ``get_state`` of the saved generator returned it.
        otherwise: the seed of a generator that begins anew.

    Returns:
        Whether it goes on.
    """
    if state.shape == generator.get_state().shape:
        generator.set_state(state)
        return True
    generator.manual_seed(otherwise)
    return False
