"""What all memory models have in common: the interface `Memory`, and `make_memory`."""

from __future__ import annotations

import inspect
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ..registry import MEMORIES, get_memory, use_memory

__all__ = ["Memory", "State", "check_whole", "episode_ages", "make_memory", "reset_rows"]

State: TypeAlias = dict[str, Tensor]
"""The state of a memory: a flat dict of tensors, the batch first. A memory without a state has an empty dict."""


class Memory(nn.Module):
    """Base class of memories: they map x_t to y_t with a state that goes from step to step.

    A subclass passes its options on to this constructor, makes its layers and defines `initial_state` and `step`. The rest
    follows from these; a model that computes a sequence faster than step by step defines `forward_sequence` too. Both must
    give the same. Neither may keep anything in the module: several threads use it at once. docs/baselines.md lists what else
    a memory has to fulfil, and `contract` tries it out.

    N is the number of environments and T the number of steps. Tensors are float32 unless stated otherwise.

    Args:
        input_size: size of x.
        hidden_size: the width of the model; here also the size of y.
        options: what else `to_dict` has to return: plain values by the names of the subclass's arguments.

    Attributes:
        input_size: size of x.
        output_size: size of y.
    """

    output_size: int
    _place: Tensor

    def __init__(self, input_size: int, hidden_size: int = 128, **options: Any) -> None:
        super().__init__()
        check_whole(self, input_size=input_size, hidden_size=hidden_size)
        self.input_size, self.hidden_size, self.options = input_size, hidden_size, options
        self.output_size = hidden_size
        # Tells where a memory without parameters is; no part of its weights.
        self.register_buffer("_place", torch.empty(0), persistent=False)

    def initial_state(self, n: int) -> State:
        """The state (n, …) each at the start of an episode, on the module's device.

        Where ``starts`` is True, it replaces the state of the episode before.
        """
        raise NotImplementedError

    def step(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        """One step of N environments.

        Args:
            x: (N, input_size).
            state: (N, …) each, before the step.
            starts: (N,) bool; where True an episode begins with x, and the state before it is forgotten.

        Returns:
            y (N, output_size) and the new state. The state that was passed in stays as it is.
        """
        raise NotImplementedError

    def forward_sequence(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        """T steps of N environments, with gradients that do not pass the start of an episode.

        Args:
            x: (T, N, input_size).
            state: (N, …) each, before the first step.
            starts: (T, N) bool, as in `step`.

        Returns:
            y (T, N, output_size) and the state after the last step.
        """
        outputs = []
        # Unbound before, because the gradient of each index alone would be a tensor of all steps.
        for x_t, starts_t in zip(x.unbind(), starts.unbind(), strict=True):
            y, state = self.step(x_t, state, starts_t)
            outputs.append(y)
        return torch.stack(outputs), state

    def run_episodes(self, x: Tensor) -> Tensor:
        """The outputs (T, N, output_size) of `forward_sequence` for episodes that all begin at the first step.

        For training on whole episodes, after which no state is needed. A model whose state costs time defines this too.

        Args:
            x: (T, N, input_size).
        """
        starts = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
        starts[0] = True
        return self.forward_sequence(x, self.initial_state(x.shape[1]), starts)[0]

    def state_size(self) -> int:
        """Numbers in the state of one environment."""
        return sum(value.numel() for value in self.initial_state(1).values())

    def to_dict(self) -> dict[str, Any]:
        """Plain values that `from_dict` makes a memory of this shape from, for a checkpoint."""
        return {"name": self.name, "input_size": self.input_size, "hidden_size": self.hidden_size, **self.options}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Memory:
        """A memory of the shape that `to_dict` described, with random weights. Imports no module of a user.

        Raises:
            RegistryError: no memory of that name is registered.
        """
        values = dict(values)
        name = values.pop("name")
        get_memory(name)
        return make_memory(name, **values)

    @property
    def name(self) -> str:
        """The name by which `make_memory` finds the class."""
        target = f"{type(self).__module__}:{type(self).__qualname__}"
        return next((spec.name for spec in MEMORIES.values() if spec.target == target), target)

    @property
    def device(self) -> torch.device:
        """Where the memory is."""
        place: torch.device = self._place.device
        return place


def make_memory(name: str, input_size: int, **options: Any) -> Memory:
    """A new memory.

    Args:
        name: one of `MEMORIES`, or ``"module:Class"`` for one of your own: then the module is imported.
        input_size: size of its input.
        options: arguments of its class, such as ``hidden_size``.

    Raises:
        RegistryError: there is no memory of that name, or the class does not derive from `Memory`.
        EnvIdError: the module does not exist, or ``name`` is malformed.
        ValueError: the memory has no such option, or an option has a value that cannot be used.
    """
    memory_class = use_memory(name).load()
    parameters = inspect.signature(memory_class).parameters.values()
    if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters):
        named = [parameter for parameter in parameters if parameter.kind is not parameter.VAR_POSITIONAL]
        known = [parameter.name for parameter in named if parameter.name != "input_size"]
        unknown = sorted(set(options) - set(known))
        if "hidden_size" in unknown:
            raise ValueError(
                f"the memory {name!r} takes no hidden_size, its width, which is required; define __init__(self, input_size, "
                "hidden_size=128) and pass both to super().__init__"
            )
        if unknown:
            raise ValueError(f"the memory {name!r} has no option {', '.join(unknown)}; it takes {', '.join(known)}")
    memory: Memory = memory_class(input_size, **options)
    return memory


def check_whole(memory: Memory, **values: int) -> None:
    """Raise ValueError unless all ``values`` are whole numbers of at least 1."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{type(memory).__name__}: {name} {value!r} cannot be used; use a whole number from 1 on")


def reset_rows(state: State, starts: Tensor) -> State:
    """``state`` with zeros in the rows where ``starts`` (N,) bool is True; no gradient passes there."""
    return {name: value.masked_fill(starts.view(-1, *[1] * (value.dim() - 1)), 0) for name, value in state.items()}


def episode_ages(age: Tensor, starts: Tensor) -> Tensor:
    """Steps (T, N) since the episode began, 0 where it begins.

    Args:
        age: (N,) int64, what this would be in the first step if no episode began there.
        starts: (T, N) bool.
    """
    steps = torch.arange(len(starts), device=starts.device).unsqueeze(-1)  # (T, 1)
    return steps - torch.where(starts, steps, -age).cummax(dim=0).values
