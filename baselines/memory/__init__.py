"""Memory models under one interface, `Memory`, each in a file of its own. `make_memory` makes one by its name.

    memory = make_memory("gru", input_size=32, hidden_size=64)
    state = memory.initial_state(n=16)
    y, state = memory.step(x, state, starts)  # x (16, 32), starts (16,) bool, y (16, 64)

`registry.MEMORIES` lists the names. A model of your own is a class derived from `Memory`; its name is ``"module:Class"``.
"""

from __future__ import annotations

from ..registry import MEMORIES
from .base import Memory, State, make_memory

__all__ = ["MEMORIES", "Memory", "State", "make_memory"]
