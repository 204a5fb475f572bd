"""What a memory has to fulfil, tried out in a few steps before a run begins. docs/baselines.md lists it."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from ..plain_values import why_not_plain
from .base import Memory, State

__all__ = ["check_memory", "check_state_device"]

STEPS, BATCH = 6, 3
CLOSE = 1e-4
"""How far two ways to compute the same may differ, absolutely and relatively."""


def check_memory(memory: Memory, options: Mapping[str, Any]) -> None:
    """Try a new memory in eval mode with random inputs. Its buffers and modes and torch's random state stay as they were.

    Modules that are initialised by their first input, such as LazyLinear, get one.

    Args:
        memory: the memory.
        options: what its class was given besides the sizes: a checkpoint has to keep these.

    Raises:
        ValueError: training, evaluation or a checkpoint could not use it; the message says why.
    """
    trial = _Trial(memory)
    trial.check_names(options)
    if any(map(is_lazy, [*memory.parameters(), *memory.buffers()])):
        # Not among the forked random numbers below: these are weights, which the seed of the run decides.
        with torch.no_grad():
            x = torch.zeros(1, memory.input_size, device=memory.device)
            trial.call("step", x, trial.initial(1), torch.ones(1, dtype=torch.bool, device=memory.device))
    cuda = [memory.device] if memory.device.type == "cuda" else []
    with torch.random.fork_rng(cuda), torch.no_grad(), _unchanged(memory) as buffers:
        torch.default_generator.manual_seed(0)  # torch.manual_seed would also seed GPUs that are not forked here
        memory.eval()
        trial.draw()
        trial.check_steps()
        trial.check_starts()
        trial.check_sequence()
        trial.check_episodes()
        for name, value in memory.named_buffers():
            if name not in buffers or not _close(value, buffers[name]):
                raise trial.fault(
                    f"a step changes its buffer {name!r}; several threads use it, so keep this in the state"
                )
        trial.check_loading()


def check_state_device(memory: Memory) -> None:
    """Raise ValueError where `Memory.initial_state` makes tensors elsewhere than on the memory's device."""
    _Trial(memory).initial(1)


@contextlib.contextmanager
def _unchanged(memory: Memory) -> Iterator[dict[str, Tensor]]:
    """Restore the buffers and the modes of all modules at the end. Yields copies of the buffers."""
    copies = {name: value.clone() for name, value in memory.named_buffers()}
    modules = [(name, module, module.training, dict(module._buffers)) for name, module in memory.named_modules()]
    try:
        yield copies
    finally:
        for prefix, module, training, buffers in modules:
            module.training = training
            module._buffers.update(buffers)
            for name, value in buffers.items():
                if value is not None:
                    value.copy_(copies[f"{prefix}.{name}" if prefix else name])


class _Trial:
    """A memory, and what it is tried with.

    Attributes:
        x: (STEPS, BATCH, input_size).
        none: (STEPS, BATCH) False: no episode begins.
        used: a state in the middle of episodes.
    """

    x: Tensor
    none: Tensor
    used: State

    def __init__(self, memory: Memory) -> None:
        self.memory = memory

    def fault(self, text: str) -> ValueError:
        """What to raise."""
        return ValueError(f"{type(self.memory).__name__}: {text}")

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the memory; what it raises becomes a fault."""
        try:
            return getattr(self.memory, method)(*args)
        except Exception as error:  # what a class of somebody's own raises
            raise self.fault(f"{method} fails with {_told(error)}") from error

    # ------------------------------------------------------------------ one call
    def initial(self, n: int) -> State:
        """`Memory.initial_state`, checked."""
        state = self.call("initial_state", n)
        if not isinstance(state, dict):
            raise self.fault(f"initial_state returns a {type(state).__name__}; return a flat dict of tensors")
        for name, value in state.items():
            if not isinstance(name, str) or not isinstance(value, Tensor):
                raise self.fault(
                    f"initial_state returns {name!r} of type {type(value).__name__}; return a flat dict of tensors by name"
                )
            if value.device != self.memory.device:
                raise self.fault(
                    f"initial_state makes {name!r} on {value.device}, and the memory is on {self.memory.device}; make it "
                    "with device=self.device"
                )
            if value.ndim == 0 or len(value) != n:
                raise self.fault(
                    f"initial_state({n}) returns {name!r} of shape {tuple(value.shape)}; its first axis must be the {n} "
                    "environments"
                )
        return state

    def run(self, method: str, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        """`Memory.step` or `Memory.forward_sequence`, checked."""
        given, copies = dict(state), {name: value.clone() for name, value in state.items()}
        inputs = x.clone(), starts.clone()
        result = self.call(method, x, state, starts)
        for name, value in given.items():
            if state.get(name) is not value or not _same(value, copies[name]):
                raise self.fault(
                    f"{method} changes {name!r} of the state that it is given; return new tensors in a new dict"
                )
        if not (_same(x, inputs[0]) and _same(starts, inputs[1])):
            raise self.fault(f"{method} changes its input x or starts; compute new tensors instead")
        if not isinstance(result, tuple) or len(result) != 2:
            raise self.fault(f"{method} returns a {type(result).__name__}; return y and the new state")
        y, after = result
        self._check_output(method, y, (*x.shape[:-1], self.memory.output_size), x.dtype)
        self._check_state(method, after, given)
        return y, after

    def _check_output(self, method: str, y: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        if not isinstance(y, Tensor):
            raise self.fault(f"{method} returns y of type {type(y).__name__}; return a tensor and the new state")
        if tuple(y.shape) != shape:
            axes = "environments" if len(shape) == 2 else "steps, environments"
            raise self.fault(
                f"{method} returns y of shape {tuple(y.shape)}, not {shape} ({axes}, output_size); where y is not "
                "hidden_size wide, set self.output_size"
            )
        if y.dtype != dtype:
            raise self.fault(f"{method} returns y of type {y.dtype}; return {dtype}, the type of x")
        if not bool(y.isfinite().all()):
            raise self.fault(f"{method} returns NaN or infinite numbers for inputs that are drawn at random")

    def _check_state(self, method: str, after: Any, before: State) -> None:
        if not isinstance(after, dict):
            raise self.fault(f"{method} returns a state of type {type(after).__name__}; return a flat dict of tensors")
        if after.keys() != before.keys():
            raise self.fault(
                f"{method} returns a state of {sorted(map(str, after))}, and initial_state one of {sorted(before)}; "
                "return the same names"
            )
        for name, value in after.items():
            if not isinstance(value, Tensor):
                raise self.fault(
                    f"{method} returns {name!r} of type {type(value).__name__} in the state; return a tensor"
                )
            if value.shape != before[name].shape:
                raise self.fault(
                    f"{method} turns {name!r} of the state from the shape {tuple(before[name].shape)} into "
                    f"{tuple(value.shape)}; a state must keep its size: use a window of a fixed length"
                )
            if value.dtype != before[name].dtype:
                raise self.fault(
                    f"{method} returns {name!r} of the state as {value.dtype}, and initial_state as {before[name].dtype}; "
                    "use one type"
                )

    def steps(self, state: State, starts: Tensor) -> tuple[Tensor, State]:
        """y (STEPS, BATCH, output_size) of single steps and the last state; starts (STEPS, BATCH)."""
        outputs = []
        for x, begun in zip(self.x, starts, strict=True):
            y, state = self.run("step", x, state, begun)
            outputs.append(y)
        return torch.stack(outputs), state

    # ------------------------------------------------------------------ what is checked
    def check_names(self, options: Mapping[str, Any]) -> None:
        """The methods that a memory must define, and the options that a checkpoint must keep."""
        for method in ("initial_state", "step"):
            if getattr(type(self.memory), method) is getattr(Memory, method):
                raise self.fault(f"it has no {method}; define it as in the example in docs/baselines.md")
        kept = self.call("to_dict")
        lost = [name for name in ("hidden_size", *options) if name not in kept]
        if lost:
            words = ", ".join(f"{name}={name}" for name in lost)
            raise self.fault(
                f"a checkpoint would forget the option {', '.join(lost)}; pass it on: super().__init__(input_size, "
                f"hidden_size, {words})"
            )
        if (why := why_not_plain(kept, "to_dict()")) is not None:
            raise self.fault(why)

    def draw(self) -> None:
        """Draw the inputs, and get a state in the middle of episodes."""
        self.x = torch.randn(STEPS, BATCH, self.memory.input_size, device=self.memory.device)
        self.none = torch.zeros(STEPS, BATCH, dtype=torch.bool, device=self.memory.device)
        self.initial(2)  # another number than BATCH tells an axis of layers from one of environments
        self.used = self.steps(self.initial(BATCH), self.none)[1]

    def check_steps(self) -> None:
        """A step depends on its arguments alone, and on no other row of the batch."""
        x, none = self.x[0], self.none[0]
        y, _ = self.run("step", x, self.used, none)
        again, _ = self.run("step", x, self.used, none)
        if not _close(y, again):
            raise self.fault(
                "step gives two results for the same input and state; it must draw no random numbers, and keep what it "
                "remembers in the state, not in the module"
            )
        rows = torch.tensor([2, 0], device=x.device)
        part, _ = self.run("step", x[rows], {name: value[rows] for name, value in self.used.items()}, none[rows])
        if not _close(part, y[rows]):
            raise self.fault(
                "what step returns for one environment depends on the others in the batch; compute each row by itself"
            )

    def check_starts(self) -> None:
        """Where an episode begins, nothing but `Memory.initial_state` matters; in other rows the episode goes on."""
        starts = self.none.clone()
        starts[0, 0] = True  # in the first row alone
        found, new, going_on = (
            self.steps(state, begun)[0]
            for state, begun in (
                (self.used, starts),
                (self.initial(BATCH), self.none),
                (self.used, self.none),
            )
        )
        if not _close(found[:, 0], new[:, 0]):
            if _close(found[:, 0], going_on[:, 0]):
                raise self.fault(
                    "step ignores starts; forget the state in the rows where starts is True, because an episode begins there"
                )
            raise self.fault(
                "where starts is True, step does something else than with initial_state; initial_state must return what an "
                "episode begins with, because evaluations begin with it, and starts must put the same in its place"
            )
        if not _close(found[:, 1:], going_on[:, 1:]):
            raise self.fault("step forgets also where starts is False; change only the rows where starts is True")

    def check_sequence(self) -> None:
        """`Memory.forward_sequence` gives what single steps give, with starts in its middle too."""
        starts = self.none.clone()
        starts[0, 0] = starts[STEPS // 2, 1] = True
        for begun, where in ((self.none, ""), (starts, " where an episode begins within the sequence (starts)")):
            y, after = self.run("forward_sequence", self.x, self.used, begun)
            expected, last = self.steps(self.used, begun)
            self._require_agreement("y", y, expected, where)
            # States may differ where nobody looks at them: compare what follows from them.
            found, expected = (self.run("step", self.x[0], state, self.none[0])[0] for state in (after, last))
            self._require_agreement("the state", found, expected, where)

    def check_episodes(self) -> None:
        """`Memory.run_episodes` gives what single steps give from the start of an episode on."""
        starts = self.none.clone()
        starts[0] = True
        expected, _ = self.steps(self.initial(BATCH), starts)
        y = self.call("run_episodes", self.x)
        self._check_output("run_episodes", y, (*self.x.shape[:-1], self.memory.output_size), self.x.dtype)
        self._require_agreement("y", y, expected, "", "run_episodes")

    def _require_agreement(
        self, what: str, found: Tensor, expected: Tensor, where: str, method: str = "forward_sequence"
    ) -> None:
        if not _close(found, expected):
            error = float((found - expected).abs().max())
            raise self.fault(
                f"{method} does not give {what} that step gives{where}; y differs by {error:.2g}: both must agree "
                f"to {CLOSE:g}"
            )

    def check_loading(self) -> None:
        """A memory made from `to_dict` and the weights, as from a checkpoint, is the same memory."""
        values = dict(self.memory.to_dict())
        values.pop("name", None)
        torch.default_generator.manual_seed(1)  # other weights, until the right ones are loaded
        try:
            again: Memory = type(self.memory)(**values)
            again.load_state_dict(self.memory.state_dict())
        except Exception as error:  # what a class of somebody's own raises
            raise self.fault(
                f"it cannot be made again from a checkpoint, to_dict and weights: {_told(error)}"
            ) from error
        expected, _ = self.steps(self.used, self.none)
        trial = _Trial(again.to(self.memory.device).eval())
        trial.x = self.x
        if not _close(trial.steps(self.used, self.none)[0], expected):
            raise self.fault(
                "made again from a checkpoint, to_dict and weights, it gives something else; pass every option on to "
                "super().__init__, and make every tensor a parameter or a persistent buffer (register_buffer)"
            )


def _told(error: Exception) -> str:
    """An exception in one line, with the line of the user's file that raised it."""
    lines = str(error).splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename != __file__ and "site-packages" not in frame.filename
    ]
    return f"{text} ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else text


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether they are equal, NaN included."""
    return torch.equal(one, other) or _close(one, other, 0.0)


def _close(one: Tensor, other: Tensor, by: float = CLOSE) -> bool:
    if one.shape != other.shape or not (one.is_floating_point() or one.is_complex()):
        return torch.equal(one, other)
    return torch.allclose(one, other, rtol=by, atol=by, equal_nan=True)
