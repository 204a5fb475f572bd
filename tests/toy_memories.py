"""Memories of a user's own for tests: a good one, and others that each break one rule."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mikasa_robo.baselines.memory import Memory, State


class Good(Memory):
    """A plain recurrent network."""

    def __init__(self, input_size: int, hidden_size: int = 128) -> None:
        super().__init__(input_size, hidden_size)
        self.cell = nn.Linear(input_size + hidden_size, hidden_size)

    def initial_state(self, n: int) -> State:
        return {"h": torch.zeros(n, self.hidden_size, device=self.device)}

    def step(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        return self.advance(x, state["h"].masked_fill(starts[:, None], 0))

    def advance(self, x: Tensor, h: Tensor) -> tuple[Tensor, State]:
        h = torch.tanh(self.cell(torch.cat([x, h], dim=-1)))
        return h, {"h": h}


class WithoutWeights(Memory):
    """A running mean of the input."""

    def __init__(self, input_size: int, hidden_size: int = 128) -> None:
        super().__init__(input_size, hidden_size)
        self.output_size = input_size

    def initial_state(self, n: int) -> State:
        return {"mean": torch.zeros(n, self.input_size, device=self.device)}

    def step(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        mean = torch.lerp(x, state["mean"].masked_fill(starts[:, None], 0), 0.9)
        return mean, {"mean": mean}


class LearntStart(Good):
    """Begins an episode with a learnt state, everywhere."""

    def __init__(self, input_size: int, hidden_size: int = 128) -> None:
        super().__init__(input_size, hidden_size)
        self.first = nn.Parameter(torch.randn(hidden_size))

    def initial_state(self, n: int) -> State:
        return {"h": self.first.expand(n, -1)}

    def step(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        return self.advance(x, torch.where(starts[:, None], self.first, state["h"]))


class ManyTypes(Good):
    """A state of several types."""

    def initial_state(self, n: int) -> State:
        others = {"odd": torch.zeros(n, dtype=torch.bool), "turn": torch.zeros(n, 2, dtype=torch.complex64)}
        return {"h": torch.zeros(n, self.hidden_size, dtype=torch.float64), **others}

    def step(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        y, after = super().step(x, {"h": state["h"].float()}, starts)
        return y, {"h": after["h"].double(), "odd": ~state["odd"], "turn": state["turn"] + 1j}


class Mask(Good):
    """Has a causal mask, whose entries are 0 and -inf, as a buffer."""

    def __init__(self, input_size: int, hidden_size: int = 128) -> None:
        super().__init__(input_size, hidden_size)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(4))


class Numbers(Good):
    """Its constructor computes with numbers, which needs tensors with storage."""

    def __init__(self, input_size: int, hidden_size: int = 128) -> None:
        super().__init__(input_size, hidden_size)
        scale = torch.linspace(0.5, 1, hidden_size).numpy()
        self.register_buffer("scale", torch.from_numpy(scale).clone())


class Items(Good):
    """As `Numbers`, with Python's."""

    def __init__(self, input_size: int, hidden_size: int = 128) -> None:
        super().__init__(input_size, hidden_size)
        self.rates = torch.linspace(0, 0.1, 3).tolist()


class Lazy(Good):
    """Its first input tells the size of its weights."""

    def __init__(self, input_size: int, hidden_size: int = 128) -> None:
        super().__init__(input_size, hidden_size)
        self.cell = nn.LazyLinear(hidden_size)


class AnyOptions(Good):
    """Takes its options as keywords."""

    def __init__(self, input_size: int, **options: Any) -> None:
        super().__init__(input_size, options.pop("hidden_size", 128))
        self.options.update(options)


class Counting(Good):
    """Has an option that its steps depend on, and keeps it."""

    def __init__(self, input_size: int, hidden_size: int = 128, decay: float = 0.9) -> None:
        super().__init__(input_size, hidden_size)
        self.options["decay"] = self.decay = decay

    def advance(self, x: Tensor, h: Tensor) -> tuple[Tensor, State]:
        y, _ = super().advance(x, h)
        y = torch.lerp(y, h, self.decay)
        return y, {"h": y}


# ---------------------------------------------------------------------- each breaks a rule
class NoWidth(Good):
    def __init__(self, input_size: int) -> None:
        super().__init__(input_size, 16)


class NoStep(Memory):
    def initial_state(self, n: int) -> State:
        return {}


class NoInitialState(Memory):
    def step(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        return x, state


class Narrow(Good):
    def advance(self, x: Tensor, h: Tensor) -> tuple[Tensor, State]:
        y, after = super().advance(x, h)
        return y[:, :-1], after


class Double(Good):
    def advance(self, x: Tensor, h: Tensor) -> tuple[Tensor, State]:
        y, after = super().advance(x, h)
        return y.double(), after


class OutputAlone(Good):
    def step(self, x: Tensor, state: State, starts: Tensor) -> Any:
        return super().step(x, state, starts)[0]


class Fails(Good):
    def advance(self, x: Tensor, h: Tensor) -> tuple[Tensor, State]:
        return super().advance(x[:, 1:], h)


class StateTuple(Good):
    def initial_state(self, n: int) -> Any:
        return (torch.zeros(n, self.hidden_size),)


class Nested(Good):
    def initial_state(self, n: int) -> Any:
        return {"cell": super().initial_state(n)}


class Layers(Good):
    def initial_state(self, n: int) -> State:
        return {"h": torch.zeros(2, n, self.hidden_size)}  # the layout of torch's GRU


class OtherNames(Good):
    def advance(self, x: Tensor, h: Tensor) -> tuple[Tensor, State]:
        y, after = super().advance(x, h)
        return y, {"hidden": after["h"]}


class OtherType(Good):
    def advance(self, x: Tensor, h: Tensor) -> tuple[Tensor, State]:
        y, after = super().advance(x, h.float())
        return y, {"h": after["h"].double()}


class Growing(Good):
    def initial_state(self, n: int) -> State:
        return {"past": torch.zeros(n, 0, self.hidden_size)}

    def step(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        y, _ = self.advance(x, state["past"].sum(1))
        return y, {"past": torch.cat([state["past"], y[:, None]], dim=1)}


class NotFinite(Good):
    def advance(self, x: Tensor, h: Tensor) -> tuple[Tensor, State]:
        y, after = super().advance(x, h)
        return y / 0, after


class InPlace(Good):
    def step(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        state["h"][:] = super().step(x, state, starts)[0]
        return state["h"].clone(), {"h": state["h"].clone()}


class SameDict(Good):
    def step(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        state["h"] = super().step(x, state, starts)[0]
        return state["h"], state


class ChangesInput(Good):
    def step(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        return super().step(x.mul_(2), state, starts)


class InModule(Good):
    h: Tensor | None = None

    def initial_state(self, n: int) -> State:
        return {}

    def step(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        before = torch.zeros(len(x), self.hidden_size) if self.h is None or len(self.h) != len(x) else self.h
        self.h, _ = self.advance(x, before.masked_fill(starts[:, None], 0))
        return self.h, {}


class Counter(Good):
    def __init__(self, input_size: int, hidden_size: int = 128) -> None:
        super().__init__(input_size, hidden_size)
        self.register_buffer("calls", torch.zeros(()))

    def advance(self, x: Tensor, h: Tensor) -> tuple[Tensor, State]:
        self.calls: Tensor
        self.calls += 1
        return super().advance(x, h)


class Noise(Good):
    def advance(self, x: Tensor, h: Tensor) -> tuple[Tensor, State]:
        y, after = super().advance(x, h)
        return y + torch.randn_like(y), after


class AcrossRows(Good):
    def advance(self, x: Tensor, h: Tensor) -> tuple[Tensor, State]:
        return super().advance(x - x.mean(0), h)


class NeverForgets(Good):
    def step(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        return self.advance(x, state["h"])


class StartsAlone(LearntStart):
    def initial_state(self, n: int) -> State:
        return {"h": torch.zeros(n, self.hidden_size)}


class ForgetsAll(Good):
    def step(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        return self.advance(x, state["h"] * (not starts.any()))


class Unequal(Good):
    def forward_sequence(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        y, after = super().forward_sequence(x, state, starts)
        return y + 1e-3, after


class OtherEpisodes(Good):
    def run_episodes(self, x: Tensor) -> Tensor:
        return super().run_episodes(x) + 1e-3


class NoStartsWithin(Good):
    def forward_sequence(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        only_first = torch.cat([starts[:1], torch.zeros_like(starts[1:])])
        return super().forward_sequence(x, state, only_first)


class OldState(Good):
    def forward_sequence(self, x: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
        return super().forward_sequence(x, state, starts)[0], state


class Dropping(Good):
    def __init__(self, input_size: int, hidden_size: int = 128) -> None:
        super().__init__(input_size, hidden_size)
        self.drop = nn.Dropout(0.1)

    def advance(self, x: Tensor, h: Tensor) -> tuple[Tensor, State]:
        y, after = super().advance(x, h)
        return self.drop(y), after


class Batches(Dropping):
    def __init__(self, input_size: int, hidden_size: int = 128) -> None:
        super().__init__(input_size, hidden_size)
        self.drop: Any = nn.BatchNorm1d(hidden_size)


class NoiseInTraining(Good):
    def advance(self, x: Tensor, h: Tensor) -> tuple[Tensor, State]:
        y, after = super().advance(x, h)
        return (y + torch.randn_like(y) if self.training else y), after


class Forgotten(Counting):
    def __init__(self, input_size: int, hidden_size: int = 128, decay: float = 0.9) -> None:
        super().__init__(input_size, hidden_size, decay)
        del self.options["decay"]


class Fixed(Counting):
    def __init__(self, input_size: int, hidden_size: int = 128, decay: float = 0.9) -> None:
        super().__init__(input_size, hidden_size, decay)
        self.options["decay"] = 0.9


class NotPlain(Good):
    def __init__(self, input_size: int, hidden_size: int = 128) -> None:
        super().__init__(input_size, hidden_size)
        self.options["size"] = object


class Unregistered(Good):
    def __init__(self, input_size: int, hidden_size: int = 128) -> None:
        super().__init__(input_size, hidden_size)
        self.mixing = torch.randn(hidden_size, hidden_size)

    def advance(self, x: Tensor, h: Tensor) -> tuple[Tensor, State]:
        return super().advance(x, h @ self.mixing)


class OtherPlace(Good):
    def initial_state(self, n: int) -> State:
        return {"h": torch.zeros(n, self.hidden_size)}  # not with device=self.device
