"""The memory models: steps and sequences agree, resets forget, states can be picked, checkpoints rebuild, and they learn."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import odd_memories
import pytest
import torch
from test_ppo_lstm import clocks
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mikasa_robo import tensors
from mikasa_robo.baselines import networks, ppo_lstm, token_policy, training
from mikasa_robo.baselines.checkpoints import CheckpointError, load_network, load_policy
from mikasa_robo.baselines.evaluation import in_eval_mode
from mikasa_robo.baselines.loggers import EpisodeStats
from mikasa_robo.baselines.memory import MEMORIES, Memory, State, make_memory
from mikasa_robo.baselines.memory.attention import sinusoids
from mikasa_robo.baselines.memory.base import episode_ages
from mikasa_robo.baselines.memory.scan import linear_scan, log_scan
from mikasa_robo.baselines.networks import NaNPolicyError, NetworkPolicy, RecurrentActorCritic
from mikasa_robo.baselines.ppo import layer_that_varies
from mikasa_robo.baselines.registry import RegistryError, use_memory
from mikasa_robo.baselines.spaces import ActionLayout, ObservationLayout, map_tensors
from mikasa_robo.tools import cli

ROOT = Path(__file__).resolve().parent.parent
OPTIONS: dict[str, dict[str, Any]] = {
    "gtrxl": {"window": 6, "heads": 2},
    "transformer": {"window": 9, "heads": 2},
    "shm": {"memory_size": 6},
    "ffm": {"memory_size": 6},
}
"""Small windows, so that a sequence is longer than they are."""
CLOSE: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-5}
every_model = pytest.mark.parametrize("name", list(MEMORIES))


pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture(autouse=True)
def _default_dtype() -> Iterator[None]:
    dtype = torch.get_default_dtype()
    yield
    torch.set_default_dtype(dtype)


def make(name: str, seed: int = 0, **options: Any) -> Memory:
    torch.manual_seed(seed)
    return make_memory(name, 5, hidden_size=16, **{**OPTIONS.get(name, {}), **options})


def used_state(memory: Memory, n: int) -> State:
    """A state in the middle of episodes of different ages."""
    starts = torch.zeros(12, n, dtype=torch.bool)
    starts[torch.arange(n) % 7, torch.arange(n)] = True
    with torch.no_grad():
        return memory.forward_sequence(torch.randn(12, n, 5), memory.initial_state(n), starts)[1]


def assert_same_state(one: State, other: State) -> None:
    assert list(one) == list(other)
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], **CLOSE)


# ---------------------------------------------------------------------- the interface
@every_model
def test_steps_give_what_the_sequence_gives(name: str) -> None:
    memory = make(name)
    for steps, share in ((40, 0.1), (1, 0.5), (7, 0.0)):
        x, starts = torch.randn(steps, 4, 5), torch.rand(steps, 4) < share
        state = used_state(memory, 4)
        before = {name: value.clone() for name, value in state.items()}
        y, after = memory.forward_sequence(x, state, starts)
        assert y.shape == (steps, 4, memory.output_size)
        one_by_one, last = Memory.forward_sequence(memory, x, state, starts)  # calls `step`
        torch.testing.assert_close(one_by_one, y, **CLOSE)
        assert_same_state(last, after)
        assert all(torch.equal(state[name], value) for name, value in before.items()), "the state passed in stays"


@every_model
def test_a_reset_inside_a_sequence_equals_two_sequences(name: str) -> None:
    memory = make(name)
    x, starts, state = torch.randn(30, 3, 5), torch.zeros(30, 3, dtype=torch.bool), used_state(memory, 3)
    starts[11, :2] = True  # not in the third
    y, last = memory.forward_sequence(x, state, starts)
    first, between = memory.forward_sequence(x[:11], state, starts[:11])
    second, after = memory.forward_sequence(x[11:], memory.initial_state(3), torch.zeros_like(starts[11:]))
    torch.testing.assert_close(y[:11], first, **CLOSE)
    torch.testing.assert_close(y[11:, :2], second[:, :2], **CLOSE)
    assert_same_state({k: v[:2] for k, v in last.items()}, {k: v[:2] for k, v in after.items()})
    going_on, kept = memory.forward_sequence(x[11:], between, torch.zeros_like(starts[11:]))
    torch.testing.assert_close(y[11:, 2:], going_on[:, 2:], **CLOSE)
    assert_same_state({k: v[2:] for k, v in last.items()}, {k: v[2:] for k, v in kept.items()})


@every_model
def test_what_was_before_an_episode_does_not_matter_even_to_rounding(name: str) -> None:
    """A run that was resumed has the state of new episodes where the other has that of old ones."""
    memory = make(name)
    x, starts = torch.randn(30, 3, 5), torch.rand(30, 3) < 0.1
    starts[0] = True
    used, new = (
        memory.forward_sequence(x, state, starts) for state in (used_state(memory, 3), memory.initial_state(3))
    )
    assert torch.equal(used[0], new[0])
    assert all(torch.equal(used[1][key], value) for key, value in new[1].items())


@every_model
def test_whole_episodes_give_what_the_sequence_gives_to_the_bit(name: str) -> None:
    memory = make(name)
    x, starts = torch.randn(30, 3, 5), torch.zeros(30, 3, dtype=torch.bool)
    starts[0] = True
    whole, sequence = memory.run_episodes(x), memory.forward_sequence(x, memory.initial_state(3), starts)[0]
    assert torch.equal(whole, sequence)
    weights = torch.randn_like(whole)
    gradients = [torch.autograd.grad((y * weights).sum(), list(memory.parameters())) for y in (whole, sequence)]
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


@every_model
def test_gradients_stop_at_a_reset_and_nowhere_else(name: str) -> None:
    memory = make(name)
    x = torch.randn(6, 2, 5, requires_grad=True)
    state = {k: v.requires_grad_() if v.is_floating_point() else v for k, v in used_state(memory, 2).items()}
    starts = torch.zeros(6, 2, dtype=torch.bool)
    starts[3] = True
    for run in (memory.forward_sequence, lambda *args: Memory.forward_sequence(memory, *args)):
        y, _ = run(x, state, starts)
        leaves = [x, *(v for v in state.values() if v.is_floating_point())]
        early, *of_state = torch.autograd.grad(y[2].square().sum(), leaves, retain_graph=True, allow_unused=True)
        late, *none = torch.autograd.grad(y[5].square().sum(), leaves, allow_unused=True)
        reach = [bool((gradient != 0).any()) for gradient in (*early, *late)]
        if name == "none":
            assert reach == [False, False, True, *[False] * 3, *[False] * 5, True]
        else:
            window = make(name).options.get("frames", 6)
            assert reach[:6] == [t >= 3 - window for t in range(3)] + [False] * 3
            assert reach[6:] == [False] * 3 + [True] * 3
            assert any(bool((gradient != 0).any()) for gradient in of_state if gradient is not None)
        assert not any(bool((gradient != 0).any()) for gradient in none if gradient is not None)


@every_model
def test_rows_of_a_state_can_be_picked_and_exchanged(name: str) -> None:
    memory = make(name)
    state, x = used_state(memory, 5), torch.randn(8, 5, 5)
    assert all(value.shape[0] == 5 for value in state.values())
    assert sum(value[0].numel() for value in state.values()) == memory.state_size()
    none = torch.zeros(8, 5, dtype=torch.bool)
    rows = torch.tensor([3, 0])
    part, _ = memory.forward_sequence(x[:, rows], {k: v[rows] for k, v in state.items()}, none[:, rows])
    torch.testing.assert_close(part, memory.forward_sequence(x, state, none)[0][:, rows], **CLOSE)


@every_model
def test_plain_values_rebuild_a_memory(name: str) -> None:
    memory = make(name)
    values = json.loads(json.dumps(memory.to_dict()))
    assert values["name"] == name
    assert {**values, **OPTIONS.get(name, {})} == values
    again = Memory.from_dict(values)
    again.load_state_dict(memory.state_dict())
    assert type(again) is type(memory)
    x, starts = torch.randn(9, 2, 5), torch.rand(9, 2) < 0.2
    y, _ = again.forward_sequence(x, again.initial_state(2), starts)
    assert torch.equal(y, memory.forward_sequence(x, memory.initial_state(2), starts)[0])


@every_model
def test_a_thousand_steps_in_float32_are_those_in_float64(name: str) -> None:
    """With inputs that drive gates to their ends, and weights as training may leave them."""
    memory = make(name)
    with torch.no_grad():
        for parameter in memory.parameters():
            parameter.mul_(1.5)
    x, starts = 3 * torch.randn(1000, 2, 5), torch.zeros(1000, 2, dtype=torch.bool)
    starts[400, 1] = True
    y, state = memory.forward_sequence(x, memory.initial_state(2), starts)
    y.square().mean().backward()
    assert bool(y.isfinite().all())
    assert all(bool(value.isfinite().all()) for value in state.values())
    gradients = [parameter.grad for parameter in memory.parameters() if parameter.grad is not None]
    assert gradients
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)
    torch.set_default_dtype(torch.float64)
    exact = Memory.from_dict(memory.to_dict())
    exact.load_state_dict(memory.state_dict())
    expected, _ = exact.forward_sequence(x.double(), exact.initial_state(2), starts)
    torch.testing.assert_close(y.double(), expected, atol=2e-3, rtol=2e-3)


@every_model
def test_a_step_waits_for_no_number(name: str) -> None:
    """Tensors of the meta device have no numbers: what reads one on the host, as a GPU would have to wait for, fails."""
    with torch.device("meta"):
        memory = make(name)
        state = memory.initial_state(3)
        for _ in range(2):
            y, state = memory.step(torch.empty(3, 5), state, torch.empty(3, dtype=torch.bool))
    assert y.shape == (3, memory.output_size)
    assert memory.device.type == y.device.type == "meta"
    assert all(value.device.type == "meta" for value in state.values())


@pytest.mark.gpu
@every_model
def test_a_gpu_computes_the_same(name: str) -> None:
    """What a CPU has to give, to the same tolerance; and a step waits for nothing."""
    with torch.device("cuda"):
        test_steps_give_what_the_sequence_gives(name)
        test_a_reset_inside_a_sequence_equals_two_sequences(name)
        test_what_was_before_an_episode_does_not_matter_even_to_rounding(name)
        test_gradients_stop_at_a_reset_and_nowhere_else(name)
    memory = make(name)
    x, starts, state = torch.randn(30, 3, 5), torch.rand(30, 3) < 0.2, memory.initial_state(3)
    expected = memory.forward_sequence(x, state, starts)[0]
    memory, x, starts = memory.to("cuda"), x.to("cuda"), starts.to("cuda")
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # by default cuDNN multiplies with 10 bits
        y, state = memory.forward_sequence(x, memory.initial_state(3), starts)
    torch.testing.assert_close(y.cpu(), expected, **CLOSE)
    memory.step(x[0], state, starts[0])  # libraries are loaded at their first use
    torch.cuda.set_sync_debug_mode("error")
    try:
        memory.step(x[0], state, starts[0])
    finally:
        torch.cuda.set_sync_debug_mode("default")


@every_model
def test_what_is_remembered_after_how_long(name: str) -> None:
    memory = make(name, **({"memory_size": 32} if name == "shm" else {}))  # or a query may be 0
    x = torch.randn(30, 1, 5)
    other = torch.cat([torch.randn(1, 1, 5), x[1:]])
    starts = torch.zeros(30, 1, dtype=torch.bool)
    outputs = [memory.forward_sequence(each, memory.initial_state(1), starts)[0] for each in (x, other)]
    differs = (outputs[0] != outputs[1]).flatten(1).any(dim=1).tolist()
    reach = {"none": 1, "frame-stack": 4, "transformer": 19, "gtrxl": 13}.get(name, 30)  # two layers reach twice as far
    assert differs == [t < reach for t in range(30)]


@every_model
def test_the_order_of_what_was_seen_counts(name: str) -> None:
    """With one layer, because the second of a causal transformer tells the order without positions, too."""
    options: dict[str, Any] = {"transformer": {"layers": 1}, "gtrxl": {"layers": 1}, "shm": {"memory_size": 32}}
    memory = make(name, **options.get(name, {}))
    x, starts = torch.randn(4, 1, 5), torch.zeros(4, 1, dtype=torch.bool)
    last, swapped = (
        memory.forward_sequence(each, memory.initial_state(1), starts)[0][-1] for each in (x, x[[1, 0, 2, 3]])
    )
    assert torch.allclose(last, swapped, atol=1e-4) == (name == "none")


# ---------------------------------------------------------------------- the papers' formulas
@torch.no_grad()
def test_mingru_is_that_of_the_paper() -> None:
    memory: Any = make("mingru", layers=1)
    x, before = torch.randn(3, 5), torch.rand(3, 1, 16)
    y, after = memory.step(x, {"hidden": before}, torch.zeros(3, dtype=torch.bool))
    embedded = memory.embed(x)
    z, content = memory.gates[0](memory.norms[0](embedded)).chunk(2, dim=-1)
    new = torch.where(content >= 0, content + 0.5, content.sigmoid())  # g of appendix B
    hidden = (1 - z.sigmoid()) * before[:, 0] + z.sigmoid() * new
    torch.testing.assert_close(after["hidden"][:, 0], hidden, **CLOSE)
    torch.testing.assert_close(y, memory.final(embedded + memory.outputs[0](hidden)), **CLOSE)


@torch.no_grad()
def test_ffm_is_that_of_the_paper() -> None:
    memory: Any = make("ffm", memory_size=3, context_size=2, max_period=50)
    x = torch.randn(2, 5)
    before = {"real": torch.randn(2, 3, 2), "imaginary": torch.randn(2, 3, 2)}
    y, after = memory.step(x, before, torch.zeros(2, dtype=torch.bool))
    value, gate = memory.read_in(x).chunk(2, dim=-1)
    turn = torch.exp(torch.complex(-memory.decay.abs()[:, None].expand(3, 2), memory.frequency.expand(3, 2)))
    traces = turn * torch.complex(before["real"], before["imaginary"]) + (value * gate.sigmoid())[..., None]
    torch.testing.assert_close(torch.complex(after["real"], after["imaginary"]), traces, **CLOSE)
    z = memory.norm(memory.read_out(torch.cat([traces.real, traces.imag], dim=-1).flatten(-2)))
    skip, passed = memory.skip(x).chunk(2, dim=-1)
    torch.testing.assert_close(y, z * passed.sigmoid() + skip * (1 - passed.sigmoid()), **CLOSE)
    assert float(turn.abs().max()) ** 50 == pytest.approx(0.01, rel=1e-3), "what is left after the longest period"


@torch.no_grad()
def test_shm_is_that_of_the_paper() -> None:
    memory: Any = make("shm")
    x, before = torch.randn(2, 5), torch.randn(2, 6, 6)
    state = {"matrix": before, "age": torch.tensor([3, 8])}
    y, after = memory.step(x, state, torch.zeros(2, dtype=torch.bool))
    projected = memory.project(memory.norm(x))
    key, query, value, calibration = projected[:, :-1].chunk(4, dim=-1)
    key, query = (part.relu() / (part.relu().sum(dim=-1, keepdim=True) + 1e-5) for part in (key, query))
    for i, age in enumerate((3, 8)):
        calibrate = 1 + torch.outer(memory.theta[memory.order[age]], calibration[i]).tanh()
        matrix = calibrate * before[i] + projected[i, -1].sigmoid() * torch.outer(value[i], key[i])
        torch.testing.assert_close(after["matrix"][i], matrix, **CLOSE)
        read = matrix @ query[i] + memory.skip(memory.norm(x[i]))
        torch.testing.assert_close(y[i], memory.output(read), **CLOSE)


@torch.no_grad()
def test_gtrxl_is_that_of_the_paper() -> None:
    memory: Any = make("gtrxl", layers=1)
    block, x, starts = memory.blocks[0], torch.randn(3, 1, 5), torch.zeros(3, 1, dtype=torch.bool)
    for bias in (block.content_bias, block.place_bias):
        bias.normal_()
    y, _ = memory.forward_sequence(x, memory.initial_state(1), starts)
    stream = memory.embed(x)[:, 0]
    seen = block.before_attention(stream)
    (key, value), query = block.read(seen).chunk(2, dim=-1), block.ask(seen)
    place = block.place(sinusoids(torch.arange(3), 16))
    read = []
    for head, part in enumerate((slice(0, 8), slice(8, 16))):
        of_content, of_place = (query[2, part] + bias[head, 0] for bias in (block.content_bias, block.place_bias))
        # of the last step; step s is 2 - s before it
        scores = torch.stack([of_content @ key[s, part] + of_place @ place[2 - s, part] for s in range(3)])
        read.append((scores / 8**0.5).softmax(dim=0) @ value[:, part])
    after = gated(block.attention_gate, stream[2], block.output(torch.cat(read)).relu())
    after = gated(block.mlp_gate, after, block.mlp(block.before_mlp(after)).relu())
    torch.testing.assert_close(y[2, 0], memory.final(after), **CLOSE)


def gated(gate: Any, x: Tensor, y: Tensor) -> Tensor:
    """The gate of GTrXL's paper, of the stream x (H,) and what a part of a block adds to it, y (H,)."""
    of_reset, of_mix, of_content = gate.of_update(y).chunk(3)  # the bias of the gate is in the second
    reset, mix = (of_reset + gate.of_stream(x)[:16]).sigmoid(), (of_mix + gate.of_stream(x)[16:]).sigmoid()
    return (1 - mix) * x + mix * (of_content + gate.of_reset(reset * x)).tanh()


@torch.no_grad()
def test_lru_is_that_of_the_paper() -> None:
    memory: Any = make("lru", layers=1)
    block, x = memory.blocks[0], torch.randn(2, 5)
    before = {name: torch.randn(2, 1, 16) for name in ("real", "imaginary")}
    y, after = memory.step(x, before, torch.zeros(2, dtype=torch.bool))
    embedded = memory.embed(x)
    inputs = block.norm(embedded)
    factor = torch.exp(torch.complex(-block.log_nu.exp(), block.log_theta.exp()))
    into, out = torch.complex(*block.read_in.weight.chunk(2)), torch.complex(*block.read_out.weight.chunk(2, dim=1))
    hidden = factor * torch.complex(before["real"][:, 0], before["imaginary"][:, 0])
    hidden = hidden + block.log_gamma.exp() * (inputs.to(into.dtype) @ into.T)
    torch.testing.assert_close(torch.complex(after["real"], after["imaginary"])[:, 0], hidden, **CLOSE)
    read = (hidden @ out.T).real + block.direct * inputs
    value, gate = block.glu(torch.nn.functional.gelu(read)).chunk(2, dim=-1)
    torch.testing.assert_close(y, memory.final(embedded + value * gate.sigmoid()), **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize(("name", "part"), [("gru", "hidden"), ("lstm", "cell")])
def test_a_new_gate_tends_to_keep_what_is_held(name: str, part: str) -> None:
    memory = make(name)
    for key, parameter in memory.named_parameters():
        if "weight" in key:
            parameter.zero_()  # what is left follows from the biases
    state = {key: torch.ones_like(value) for key, value in memory.initial_state(1).items()}
    _, after = memory.step(torch.zeros(1, 5), state, torch.zeros(1, dtype=torch.bool))
    torch.testing.assert_close(after[part], torch.full((1, 16), 1.0).sigmoid())


@torch.no_grad()
def test_gates_of_gtrxl_start_near_the_identity() -> None:
    x, starts = torch.randn(9, 2, 5), torch.zeros(9, 2, dtype=torch.bool)
    shut: Any = make("gtrxl", gate_bias=40.0)
    y, _ = shut.forward_sequence(x, shut.initial_state(2), starts)
    torch.testing.assert_close(y, shut.final(shut.embed(x)), **CLOSE)
    usual: Any = make("gtrxl")
    moved = usual.forward_sequence(x, usual.initial_state(2), starts)[0] - usual.final(usual.embed(x))
    assert 0.01 < float(moved.abs().mean()) < 0.3


@torch.no_grad()
def test_lru_forgets_as_its_radii_say() -> None:
    memory: Any = make_memory("lru", 5, hidden_size=256, min_radius=0.9, max_radius=0.99, max_phase=0.5)
    for block in memory.blocks:
        radius = (-block.log_nu.exp()).exp()
        assert 0.9 <= float(radius.min()) < 0.91
        assert 0.98 < float(radius.max()) <= 0.99
        torch.testing.assert_close(block.log_gamma.exp(), (1 - radius.square()).sqrt(), **CLOSE)
        assert float(block.log_theta.exp().max()) <= 0.5


# ---------------------------------------------------------------------- parts
def test_scans_are_the_recurrence() -> None:
    for steps in (1, 2, 3, 8, 13):
        a, b, initial = torch.rand(steps, 4), torch.rand(steps, 4) + 0.1, torch.rand(4)
        a[steps // 2, 1] = 0.0
        expected, state = [], initial
        for t in range(steps):
            state = a[t] * state + b[t]
            expected.append(state)
        torch.testing.assert_close(linear_scan(a, b, initial), torch.stack(expected))
        torch.testing.assert_close(log_scan(a.log().clamp_min(-1e4), b.log(), initial), torch.stack(expected))
        turning = torch.polar(a, b)
        found = linear_scan(turning, b.to(turning.dtype), initial.to(turning.dtype))
        torch.testing.assert_close(found[-1], turning[-1] * (found[-2] if steps > 1 else initial) + b[-1])


def test_ages_count_from_the_start_of_an_episode() -> None:
    starts = torch.tensor([[0, 1], [0, 0], [1, 0], [0, 0]], dtype=torch.bool)
    assert episode_ages(torch.tensor([5, 5]), starts).T.tolist() == [[5, 6, 0, 1], [0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"name": "gru", "sise": 3}, "the memory 'gru' has no option sise; it takes hidden_size"),
        ({"name": "gru", "hidden_size": 0}, "GRU: hidden_size 0 cannot be used"),
        ({"name": "gtrxl", "hidden_size": 30}, "GTrXL: hidden_size 30 is no multiple of 2 x heads 4"),
        ({"name": "lru", "max_radius": 1.0}, r"LRU: .* use 0 <= min_radius < max_radius < 1"),
        ({"name": "frame-stack", "frames": 2.5}, "FrameStack: frames 2.5 cannot be used"),
        ({"name": "grue"}, "there is no memory 'grue'; use one of none, frame-stack, lstm"),
        ({"name": "json:JSONDecoder"}, "it does not derive from mikasa_robo.baselines.memory.Memory"),
        ({"name": "json:Nothing"}, "there is no such class"),
        ({"name": "no_such_module:X"}, "there is no module 'no_such_module'"),
    ],
)
def test_a_wrong_memory_is_named_with_the_fix(words: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_memory(input_size=4, **words)


def test_a_name_from_a_file_imports_nothing() -> None:
    with pytest.raises(RegistryError, match="imported only if you name it; add --memory antigravity:Memory"):
        Memory.from_dict({"name": "antigravity:Memory", "input_size": 2})
    assert "antigravity" not in sys.modules


# ---------------------------------------------------------------------- in PPO
@every_model
def test_a_replayed_rollout_gives_what_was_recorded(name: str) -> None:
    env = clocks(4, simple=True)
    torch.manual_seed(0)
    layout, action = ObservationLayout.of(env.single_observation_space), ActionLayout.of(env.single_action_space)
    options: dict[str, Any] = {"memory": name, "memory_size": 8, "memory_kwargs": OPTIONS.get(name, {})}
    network = RecurrentActorCritic(layout, action, (16,), head_sizes=(16,), **options)
    obs, _ = env.reset(seed=0)
    starts, state, generator = (
        torch.ones(4, dtype=torch.bool),
        network.initial_state(4),
        torch.Generator().manual_seed(1),
    )
    for _ in range(2):
        batch = ppo_lstm.rollout(env, network, obs, starts, state, 15, generator, EpisodeStats())
        obs, starts, state = batch.last_obs, batch.last_starts, batch.last_state
    for envs in (torch.arange(4), torch.tensor([2, 0])):
        picked = map_tensors(lambda x: x[:, envs], network.normalize(batch.obs))  # noqa: B023
        first: Any = map_tensors(lambda x: x[envs], batch.state)  # noqa: B023
        distribution, values, _ = network.forward_sequence(picked, first, batch.starts[:, envs])
        torch.testing.assert_close(distribution.log_prob(batch.actions[:, envs]), batch.log_probs[:, envs], **CLOSE)
        torch.testing.assert_close(values, batch.values[:, envs], **CLOSE)


def test_weights_of_an_earlier_version_are_found() -> None:
    network = RecurrentActorCritic(3, 1, (4,), 4, (4,))
    old = {name.replace("memory.lstm.", "lstm."): value for name, value in network.state_dict().items()}
    assert "lstm.weight_ih_l0" in old
    values = network.to_dict()
    shape = {k: v for k, v in values.items() if not k.startswith("memory")} | {"lstm_size": 4}
    again = RecurrentActorCritic.from_dict(shape)
    again.load_state_dict(old)
    obs, starts = torch.randn(2, 3), torch.zeros(2, dtype=torch.bool)
    assert torch.equal(
        again.step(obs, again.initial_state(2), starts)[1], network.step(obs, network.initial_state(2), starts)[1]
    )


WORDS = (
    "--env-id MemoryLengthEasy-v0 --preset none --num-envs 4 --num-steps 16 --total-timesteps 128 --no-video "
    "--num-minibatches 2 --update-epochs 1 --eval-episodes 2 --eval-num-envs 2 --stagger-groups 2 --torch-threads 1 "
    "--encoder-sizes 8 --head-sizes 8"
)
SMALL = WORDS.split()


def documented_example() -> str:
    """The module of the section about a memory of one's own."""
    text = (ROOT / "docs" / "baselines.md").read_text()
    (block,) = re.findall(r"```python\n(# my_memories\.py\n.*?)```", text, re.DOTALL)
    return block


def test_the_documented_memory_of_ones_own_trains_resumes_and_is_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_memories.py").write_text(documented_example())
    monkeypatch.syspath_prepend(tmp_path)
    (documented,) = re.findall(r"mikasa train ppo --memory (my_memories:\w+)", (ROOT / "docs/baselines.md").read_text())
    run = tmp_path / "run"
    own = ["--memory", documented, "--checkpoint-every", "64"]
    assert cli.main(["train", "ppo", *SMALL, *own, "--memory-size", "8", "--run-dir", str(run)]) == 0
    assert load_policy(run).act(torch.zeros(2, load_network(run).layout.width)).shape[0] == 2

    MEMORIES.pop(documented)
    sys.modules.pop("my_memories")
    with pytest.raises(CheckpointError, match=f"add --memory {documented}"):
        load_network(run)
    evaluated = ["eval", "--checkpoint", str(run), "--episodes", "2", "--out", str(tmp_path / "e.json")]
    assert cli.main(evaluated) == 2
    assert f"add --memory {documented}" in capsys.readouterr().err
    (run / "final_eval.json").unlink()
    (run / "resume-000000000128.pt").unlink()
    assert cli.main(["train", "ppo", "--resume", str(run)]) == 2
    assert f"add --memory {documented}" in capsys.readouterr().err
    assert "my_memories" not in sys.modules
    assert cli.main([*evaluated, "--memory", documented]) == 0
    assert cli.main(["train", "ppo", "--resume", str(run), "--memory", documented]) == 0
    assert json.loads((run / "final_eval.json").read_text())["training_steps"] == 128
    MEMORIES.pop(documented)
    sys.modules.pop("my_memories")


def test_an_evaluation_is_in_eval_mode_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With dropout and batch normalisation the final evaluation is that of `mikasa eval`; the rest of a run is trained."""
    run, seen, modes = tmp_path / "run", [], []
    played = training.evaluate

    def evaluate(policy: Any, *args: Any, **kwargs: Any) -> Any:
        before = {name: value.clone() for name, value in policy.network.state_dict().items()}
        found = played(policy, *args, **kwargs)
        seen.append(all(torch.equal(value, before[name]) for name, value in policy.network.state_dict().items()))
        assert not any(part.training for part in policy.network.modules())
        return found

    update = ppo_lstm.update

    def watched_update(network: Any, *args: Any) -> Any:
        modes.append(all(part.training for part in network.modules()))
        return update(network, *args)

    monkeypatch.setattr(training, "evaluate", evaluate)
    monkeypatch.setattr(ppo_lstm, "update", watched_update)
    own = ["--memory", "odd_memories:Dropping", "--memory-size", "8"]
    assert cli.main(["train", "ppo", *SMALL, *own, "--eval-every", "64", "--run-dir", str(run)]) == 0
    assert seen == [True, True, True], "two evaluations during training, and the final one"
    assert modes == [True, True]
    assert "BatchNorm1d in the network: the log-probabilities of PPO's update differ" in caplog.text
    out = tmp_path / "e.json"
    words = ["eval", "--checkpoint", str(run), "--episodes", "2", "--num-envs", "2", "--out", str(out)]
    assert cli.main([*words, "--memory", "odd_memories:Dropping"]) == 0
    final = json.loads((run / "final_eval.json").read_text())["final"]
    assert json.loads(out.read_text())["summary"]["return"]["mean"] == final["return"]


def test_each_part_of_a_network_gets_its_mode_back() -> None:
    network = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Dropout())
    network[0].eval()
    with in_eval_mode(network):
        assert not any(part.training for part in network.modules())
    assert [part.training for part in network.modules()] == [True, False, True]
    with pytest.raises(KeyError), in_eval_mode(network):
        raise KeyError
    assert [part.training for part in network.modules()] == [True, False, True]
    with in_eval_mode("a policy of somebody else's"):
        pass


@pytest.mark.parametrize("waits", [False, True])
def test_a_policy_that_gives_nan_has_no_score(
    waits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Actions are discrete, so that they do not show it. With ``waits`` it is found at the end, as on a GPU."""
    monkeypatch.setattr(odd_memories.NaN, "broken_at", -1)
    run, out, own = tmp_path / "run", tmp_path / "e.json", ["--memory", "odd_memories:NaN"]
    assert cli.main(["train", "ppo", *SMALL, *own, "--memory-size", "8", "--run-dir", str(run)]) == 0
    monkeypatch.setattr(tensors, "reads_wait", lambda device: waits)
    monkeypatch.setattr(odd_memories.NaN, "broken_at", 3)
    capsys.readouterr()
    words = ["eval", "--checkpoint", str(run), *own, "--episodes", "2", "--out", str(out)]
    for more in ([], ["--sample-actions"]):
        assert cli.main([*words, *more]) == 2
        error = capsys.readouterr().err
        assert error.splitlines()[-1].startswith(
            f"{run / 'checkpoint.pt'}: the network gives NaN at step 3 of the episodes"
        )
        assert "use an earlier checkpoint" in error
    assert not out.exists()
    monkeypatch.setattr(odd_memories.NaN, "broken_at", 100)
    assert cli.main(words) == 0


@pytest.mark.parametrize(
    "words",
    [
        # discrete actions, which hide it; a robot task, which refuses such an action; and a loss without any play before
        f"ppo {WORDS}",
        "ppo --env-id RememberColor3-v0 --preset none --num-envs 2 --num-steps 4 --num-minibatches 2 --stagger-groups 1 "
        "--total-timesteps 16 --eval-episodes 1 --no-video --torch-threads 1",
        "dagger --env-id RememberColor3-v0 --env-kwargs arm=held response_steps=5 --preset none --num-envs 2 "
        "--total-timesteps 240 --warm-start-steps 240 --warm-start-updates 2 --eval-episodes 1 --no-video "
        "--torch-threads 1",
    ],
    ids=["discrete", "robot", "dagger"],
)
def test_a_network_that_gives_nan_from_the_start_is_not_blamed_on_the_learning_rate(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(odd_memories.NaN, "broken_at", 2)
    for module in (networks, token_policy):  # as if the trial before a run had not met it
        monkeypatch.setattr(module, "check_memory", lambda memory, options: None)
    own = ["--memory", "odd_memories:NaN", "--memory-size", "8", "--run-dir", str(tmp_path / "run")]
    assert cli.main(["train", *words.split(), *own]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert "before the first gradient step of this run, so --learning-rate is not the cause" in error
    assert "look for 0/0" in error


def test_a_run_that_diverges_later_is_told_to_learn_more_slowly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    update, done = ppo_lstm.update, []

    def diverges(*args: Any) -> Any:
        done.append(1)
        if len(done) == 2:
            monkeypatch.setattr(odd_memories.NaN, "broken_at", 2)
        return update(*args)

    monkeypatch.setattr(odd_memories.NaN, "broken_at", -1)
    monkeypatch.setattr(ppo_lstm, "update", diverges)
    own = ["--memory", "odd_memories:NaN", "--memory-size", "8", "--run-dir", str(tmp_path / "run")]
    assert cli.main(["train", "ppo", *SMALL, *own]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == "a loss is infinite or NaN; use a smaller --learning-rate, or check the rewards"


def test_an_evaluation_of_nan_ends_a_run_as_a_diverged_loss_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played = training.evaluate

    def evaluate(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(odd_memories.NaN, "broken_at", 0)
        return played(*args, **kwargs)

    monkeypatch.setattr(odd_memories.NaN, "broken_at", -1)
    monkeypatch.setattr(training, "evaluate", evaluate)
    own = ["--memory", "odd_memories:NaN", "--memory-size", "8", "--run-dir", str(tmp_path / "run")]
    assert cli.main(["train", "ppo", *SMALL, *own]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("the policy: the network gives NaN at step 0 of the episodes")
    assert "a smaller --learning-rate" in error


def test_on_a_gpu_no_step_reads_whether_the_network_gives_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    class Reads(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            assert func.overloadpacket.__name__ not in ("_local_scalar_dense", "is_nonzero")
            return func(*args, **(kwargs or {}))

    monkeypatch.setattr(tensors, "reads_wait", lambda device: True)
    monkeypatch.setattr(odd_memories.NaN, "broken_at", 1)
    use_memory("odd_memories:NaN")
    network = RecurrentActorCritic(5, 8, (8,), 8, (8,), memory="odd_memories:NaN")
    policy = NetworkPolicy(network)
    with Reads():
        for _ in range(3):
            policy.act(torch.ones(2, 5))
    with pytest.raises(NaNPolicyError, match="at step 1 of"):
        policy.require_no_nan()
    policy.on_episode_start()
    policy.require_no_nan()


@pytest.mark.parametrize(
    ("layer", "found"),
    [
        (torch.nn.Dropout(0.1), "Dropout"),
        (torch.nn.Dropout(0.0), None),
        (torch.nn.BatchNorm2d(3), "BatchNorm2d"),
        (torch.nn.GRU(3, 3, 2, dropout=0.1), "GRU"),
        (torch.nn.MultiheadAttention(4, 2, dropout=0.1), "MultiheadAttention"),
        (torch.nn.MultiheadAttention(4, 2), None),
        (torch.nn.LayerNorm(3), None),
    ],
)
def test_layers_with_which_ppo_does_not_compute_what_it_recorded(layer: torch.nn.Module, found: str | None) -> None:
    assert layer_that_varies(torch.nn.Sequential(torch.nn.Linear(3, 3), layer)) == found


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--memory grue", "there is no memory 'grue'"),
        ("--memory gtrxl --memory-size 30", "--memory gtrxl: GTrXL: hidden_size 30 is no multiple"),
        ("--memory gru --memory-kwargs sise=3", "--memory gru sise=3: the memory 'gru' has no option sise"),
        ("--memory gru --memory-kwargs sise", "--memory-kwargs sise is not NAME=VALUE"),
        ("--memory gru --memory-kwargs hidden_size=64", "--memory-kwargs hidden_size=64 .*; use --memory-size 64"),
        ("--memory gru --memory-kwargs input_size=3", "--memory gru input_size=3: .* multiple values"),
        ("--memory gtrxl --memory-kwargs gate_bias=abc", "--memory gtrxl gate_bias=abc: "),
        ("--query-sizes 8", "--query-sizes 8 does nothing with --network recurrent; leave it out"),
        ("--tcp-token", "--tcp-token does nothing with --network recurrent; leave it out"),
        ("--sum-token", "--sum-token does nothing with --network recurrent; leave it out"),
    ],
)
def test_a_wrong_option_is_named_and_nothing_is_made(
    words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", "ppo", *SMALL, *words.split(), "--run-dir", str(tmp_path / "run")]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "run").exists()


def test_ppo_mlp_takes_no_memory_but_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for word in SMALL if word not in ("--encoder-sizes", "--head-sizes", "8")]
    words += ["--hidden-sizes", "8", "--run-dir", str(tmp_path / "run")]
    assert cli.main(["train", "ppo-mlp", *words, "--memory", "gru"]) == 2
    assert "ppo-mlp has no memory; use `mikasa train ppo --memory gru`" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert cli.main(["train", "ppo-mlp", *words, "--memory", "none"]) == 0
    assert cli.main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "report")]) == 0
    assert "| ppo-mlp |" in (tmp_path / "report" / "report.md").read_text()


# ---------------------------------------------------------------------- what the docs say
def test_the_table_of_models_is_up_to_date() -> None:
    text = (ROOT / "docs" / "baselines.md").read_text()
    rows = dict(re.findall(r"^\| `([\w-]+)` \|.*\| ([\d,]+ \| [\d,]+) \|$", text, re.MULTILINE))
    found = {}
    for name in MEMORIES:
        memory = make_memory(name, 128)
        parameters = sum(parameter.numel() for parameter in memory.parameters())
        found[name] = f"{memory.state_size():,} | {parameters:,}"
    assert rows == found


# ---------------------------------------------------------------------- they learn
@pytest.mark.slow
@pytest.mark.parametrize("name", ["gru", "mingru"])
def test_ppo_learns_a_memory_task(name: str, tmp_path: Path) -> None:
    """The cue of the first step is asked for in the last; without memory the return is 0 on average."""
    run = tmp_path / "run"
    words = f"--memory {name} --env-id MemoryLengthEasy-v0 --total-timesteps 30000 --torch-threads 1 --no-video"
    assert cli.main(["train", "ppo", *words.split(), "--eval-every", "0", "--run-dir", str(run)]) == 0
    assert json.loads((run / "final_eval.json").read_text())["final"]["return"] > 0.8
