"""Decision transformer and RATE as memories: steps give what sequences give, nothing sees the future, memory carries on."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from mikasa_robo.baselines.memory import Memory, State
from mikasa_robo.baselines.memory.attention import sinusoids
from mikasa_robo.baselines.memory.decision import DecisionTransformer, step_tokens
from mikasa_robo.baselines.memory.rate import RATE, MemoryRetentionValve
from mikasa_robo.baselines.sequence_policy import SequencePolicy

CLOSE: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-5}
OBSERVED, ACTION = 4, 2
INPUT = OBSERVED + 1 + ACTION
KINDS: dict[str, Any] = {
    "decision": (DecisionTransformer, {"context": 5}),
    "decision, whole episodes": (DecisionTransformer, {"context": 64}),
    "rate": (RATE, {"segment": 4, "memory_tokens": 3}),
}
every_model = pytest.mark.parametrize("kind", list(KINDS))

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def make(kind: str, **options: Any) -> Any:
    torch.manual_seed(0)
    model, defaults = KINDS[kind]
    return model(INPUT, **{"hidden_size": 16, "action_size": ACTION, "heads": 2, **defaults, **options})


def begins(steps: int, n: int) -> Tensor:
    starts = torch.zeros(steps, n, dtype=torch.bool)
    starts[0] = True
    return starts


def assert_same_state(one: State, other: State) -> None:
    assert list(one) == list(other)
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], **CLOSE)


@every_model
def test_steps_give_what_the_sequence_gives(kind: str) -> None:
    memory = make(kind)
    for steps in (1, 3, 4, 8, 11):
        x = torch.randn(steps, 3, INPUT)
        y, after = memory.forward_sequence(x, memory.initial_state(3), begins(steps, 3))
        one_by_one, last = Memory.forward_sequence(memory, x, memory.initial_state(3), begins(steps, 3))
        assert y.shape == (steps, 3, memory.output_size)
        torch.testing.assert_close(one_by_one, y, **CLOSE)
        assert_same_state(last, after)
        assert torch.equal(memory.run_episodes(x), y)


@every_model
def test_episodes_that_begin_at_different_times_do_not_mix(kind: str) -> None:
    memory = make(kind)
    x, starts = torch.randn(13, 2, INPUT), torch.zeros(13, 2, dtype=torch.bool)
    starts[0], starts[6, 0], starts[9, 1] = True, True, True
    y, last = memory.forward_sequence(x, memory.initial_state(2), starts)
    for i, cut in enumerate((6, 9)):
        for part in (slice(0, cut), slice(cut, 13)):
            alone, state = memory.forward_sequence(x[part, i : i + 1], memory.initial_state(1), begins(len(x[part]), 1))
            torch.testing.assert_close(y[part, i : i + 1], alone, **CLOSE)
        assert_same_state({name: value[i : i + 1] for name, value in last.items()}, state)


@every_model
def test_nothing_sees_the_future(kind: str) -> None:
    memory = make(kind)
    x = torch.randn(12, 1, INPUT, requires_grad=True)
    y, _ = memory.forward_sequence(x, memory.initial_state(1), begins(12, 1))
    for t in (0, 5, 11):
        (gradient,) = torch.autograd.grad(y[t].square().sum(), x, retain_graph=True)
        reach = (gradient != 0).flatten(1).any(dim=1)
        assert reach[t]
        assert not reach[t + 1 :].any()


def test_the_tokens_of_a_step() -> None:
    x = torch.tensor([[[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]]])  # observation 1 2 3 4, return 5, action before 6 7
    before, target, observed = step_tokens(x, 2)
    assert before.tolist() == [[0, 0, 0, 0, 0, 6, 7, 1, 0, 0]]
    assert target.tolist() == [[0, 0, 0, 0, 5, 0, 0, 0, 1, 0]]
    assert observed.tolist() == [[1, 2, 3, 4, 0, 0, 0, 0, 0, 1]]


def test_the_three_tokens_of_a_step_share_its_position() -> None:
    positions = make("decision").transformer.positions(torch.arange(7))
    torch.testing.assert_close(positions, sinusoids(torch.tensor([0, 0, 0, 1, 1, 1, 2]), 16))


def test_returns_to_go_are_given_in_units_of_their_scale() -> None:
    torch.manual_seed(0)
    network = SequencePolicy(3, 2, memory_size=16, head_sizes=(8,), memory_kwargs={"heads": 2})
    torch.nn.init.normal_(network.actor[-1].weight)  # the actions of a new policy hardly differ
    obs, starts = torch.randn(1, 3), torch.ones(1, dtype=torch.bool)

    @torch.no_grad()
    def action(target: float, scale: float) -> Tensor:
        network.set_targets(torch.tensor([target]), scale)
        return network.step(network.normalize(obs), network.initial_state(1), starts)[0].mode()

    assert torch.equal(action(6.0, 12.0), action(0.5, 1.0))
    assert not torch.equal(action(6.0, 12.0), action(6.0, 1.0))


def test_all_that_a_decision_transformer_is_given_counts() -> None:
    memory = make("decision, whole episodes")
    x = torch.randn(6, 1, INPUT, requires_grad=True)
    y, _ = memory.forward_sequence(x, memory.initial_state(1), begins(6, 1))
    (gradient,) = torch.autograd.grad(y[5].square().sum(), x)
    assert (gradient != 0).all(), "observations, returns and actions of all steps"


def test_one_layer_attends_to_its_context() -> None:
    memory = make("decision", layers=1)
    x = torch.randn(9, 1, INPUT, requires_grad=True)
    y, _ = memory.forward_sequence(x, memory.initial_state(1), begins(9, 1))
    (gradient,) = torch.autograd.grad(y[8].square().sum(), x)
    assert (gradient != 0).flatten(1).any(dim=1).tolist() == [t > 3 for t in range(9)]


# ---------------------------------------------------------------------- RATE
def test_the_memory_carries_from_segment_to_segment() -> None:
    memory = make("rate")
    x = torch.randn(12, 1, INPUT, requires_grad=True)
    y, _ = memory.forward_sequence(x, memory.initial_state(1), begins(12, 1))
    (gradient,) = torch.autograd.grad(y[11].square().sum(), x, retain_graph=True)
    assert (gradient[0] != 0).any(), "two segments later"

    # The memory is the only way: with a valve that lets nothing through, each segment is on its own.
    closed = make("rate")
    torch.nn.init.zeros_(closed.valve.output.weight)
    y, _ = closed.forward_sequence(x, closed.initial_state(1), begins(12, 1))
    (gradient,) = torch.autograd.grad(y[11].square().sum(), x)
    assert (gradient != 0).flatten(1).any(dim=1).tolist() == [t >= 8 for t in range(12)]


@torch.no_grad()
def test_the_order_of_the_steps_of_a_segment_counts() -> None:
    """With one layer, because the second one of a causal transformer tells the order without positions, too."""
    memory, x = make("rate", layers=1), torch.randn(4, 1, INPUT)
    last, swapped = (
        memory.forward_sequence(each, memory.initial_state(1), begins(4, 1))[0][-1] for each in (x, x[[1, 0, 2, 3]])
    )
    assert not torch.allclose(last, swapped, atol=1e-4)


def test_the_memory_changes_where_a_segment_ends() -> None:
    memory = make("rate")
    state = memory.initial_state(1)
    seen = [state["memory"]]
    for t in range(9):
        _, state = memory.step(torch.randn(1, INPUT), state, torch.tensor([t == 0]))
        seen.append(state["memory"])
        assert bool(state["keys"].any()) == ((t + 1) % 4 != 0), "a new segment begins with nothing but the memory"
    changed = [not torch.equal(a, b) for a, b in itertools.pairwise(seen)]
    assert changed == [t in (3, 7) for t in range(9)]


def test_the_valve_is_cross_attention_of_the_old_memory_to_the_candidates() -> None:
    valve = MemoryRetentionValve(2, heads=1)
    for layer in (valve.ask, valve.key, valve.value, valve.output):
        torch.nn.init.eye_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
    old, candidates = torch.tensor([[[2.0, 0.0], [0.0, 0.0]]]), torch.tensor([[[1.0, 0.0], [0.0, 3.0]]])
    # First token: scores 2 and 0, divided by the square root of 2; the second has equal weights.
    share = 1.0 / (1.0 + torch.exp(torch.tensor(-2.0 / 2**0.5)).item())
    expected = torch.tensor([[[share, 3.0 * (1.0 - share)], [0.5, 1.5]]])
    torch.testing.assert_close(valve(old, candidates), expected)


@every_model
def test_a_step_waits_for_no_number(kind: str) -> None:
    with torch.device("meta"):
        memory = make(kind)
        state = memory.initial_state(3)
        for _ in range(2):
            y, state = memory.step(torch.empty(3, INPUT), state, torch.empty(3, dtype=torch.bool))
    assert y.shape == (3, memory.output_size)


@pytest.mark.parametrize("option", ["segment", "memory_tokens", "layers", "action_size"])
def test_sizes_are_whole_numbers(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} 0 cannot be used; use a whole number from 1 on"):
        make("rate", **{option: 0})
    with pytest.raises(ValueError, match="hidden_size 10 is no multiple"):
        make("rate", hidden_size=10)
