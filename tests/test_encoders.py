"""Encoders: objects are a set, whose order says nothing and whose binding of what and where is kept; images."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from mani_skill.utils.geometry.rotation_conversions import quaternion_apply
from torch import Tensor

from mikasa_robo.baselines.arguments import ArgumentError
from mikasa_robo.baselines.checkpoints import CheckpointError, load_network, save_policy
from mikasa_robo.baselines.dagger_arguments import DAggerArgs
from mikasa_robo.baselines.encoder import Encoder
from mikasa_robo.baselines.encoders import (
    ImpalaEncoder,
    TokenPooling,
    TokenReading,
    token_at_tcp,
    token_features,
    token_sum,
)
from mikasa_robo.baselines.memory import MEMORIES
from mikasa_robo.baselines.spaces import ActionLayout, ObservationLayout, ObservationPart
from mikasa_robo.baselines.token_policy import TokenPolicy

K, C, B, S = 5, 4, 3, 6


def layout(images: bool = False, items: int = K) -> ObservationLayout:
    parts = [
        ObservationPart("objects", "vector", (K * (8 + C),), items=items),
        ObservationPart("joints", "vector", (25,)),
    ]
    if images:
        parts.append(ObservationPart("rgb", "image", (32, 32, 6), 1 / 255))
    return ObservationLayout((*parts, ObservationPart("prompt", "vector", (2,))))


def observed(*shape: int, images: bool = False, seed: int = 0) -> dict[str, Tensor]:
    """Raw observations (*shape, …) in which about a third of the objects is hidden."""
    g = torch.Generator().manual_seed(seed)
    objects = torch.randn(*shape, K, 8 + C, generator=g)
    objects[..., 4:8] = torch.nn.functional.normalize(objects[..., 4:8], dim=-1)
    visible = torch.rand(*shape, K, 1, generator=g) > 0.3
    objects[..., :1] = 1.0
    obs = {"objects": (objects * visible).flatten(-2), "joints": torch.randn(*shape, 25, generator=g)}
    obs["prompt"] = torch.randn(*shape, 2, generator=g)
    if images:
        obs["rgb"] = torch.randint(0, 256, (*shape, 32, 32, 6), generator=g, dtype=torch.uint8)
    return obs


def permuted(obs: dict[str, Tensor], order: list[int]) -> dict[str, Tensor]:
    return {**obs, "objects": obs["objects"].unflatten(-1, (K, -1))[..., order, :].flatten(-2)}


def policy(memory: str = "gru", images: bool = False, **options: Any) -> TokenPolicy:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"memory_size": 16, "token_size": 16, "head_sizes": (32,)}
    network = TokenPolicy(layout(images), 8, memory=memory, **sizes, **options)
    with torch.no_grad():
        for parameter in network.parameters():  # small last layers would hide differences
            parameter.add_(0.2 * torch.randn_like(parameter))
    network.update_normalizer(observed(64, images=images, seed=9))
    return network


def test_a_token_tells_where_an_object_is_and_nothing_of_a_hidden_one() -> None:
    half = math.radians(15)
    objects = torch.zeros(2, 8 + C)
    objects[0, 0], objects[0, 1:4] = 1.0, torch.tensor([0.1, 0.2, 0.02])
    objects[0, 4:8] = torch.tensor([math.cos(half), 0, 0, math.sin(half)])  # turned by 30 degrees about z
    objects[0, 8:] = torch.tensor([1.0, 0.0, 0.0, 1.0])
    tcp = torch.tensor([0.4, 0.2, 0.32, 1.0, 0, 0, 0])
    tokens = token_features(objects, tcp)
    assert tokens.shape == (2, 16 + C)
    offset = torch.tensor([-1.0, 0.0, -1.0])  # 0.3 m each
    assert torch.allclose(tokens[0, 1:4], offset, atol=1e-6)
    assert torch.allclose(tokens[0, 4:7], torch.tanh(10 * offset), atol=1e-6)
    expected = [math.cos(2 * half), math.sin(2 * half), 0, -math.sin(2 * half), math.cos(2 * half), 0]
    assert torch.allclose(tokens[0, 10:16], torch.tensor(expected), atol=1e-6)
    assert torch.equal(tokens[0, 16:], objects[0, 8:])
    assert not tokens[1].any()
    turned = objects.clone()
    turned[:, 4:8] *= -1
    assert torch.equal(token_features(turned, tcp), tokens), "q and -q are one rotation"


def test_a_token_tells_the_place_on_the_table_and_any_rotation() -> None:
    objects, tcp = observed(B)["objects"].unflatten(-1, (K, -1)), torch.randn(B, 7)
    tokens = token_features(objects, tcp)
    visible = objects[..., :1]
    assert torch.allclose(tokens[..., 7:10], objects[..., 1:4] / 0.3 * visible, atol=1e-6), "wherever the hand is"
    quaternion = objects[..., 4:8]
    for column in range(2):
        axis = torch.eye(3)[column].expand(B, K, 3)
        turned = quaternion_apply(quaternion, axis) * visible
        assert torch.allclose(tokens[..., 10 + 3 * column : 13 + 3 * column], turned, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"query_sizes": (24,)}, {"tcp_token": True}, {"sum_token": True}])
@pytest.mark.parametrize("order", [[4, 3, 2, 1, 0], [1, 2, 3, 4, 0]])
def test_tokens_move_with_their_objects_and_what_is_read_stays(order: list[int], options: dict[str, Any]) -> None:
    network, obs = policy(**options), observed(B)
    obs["objects"] = obs["objects"].unflatten(-1, (K, -1))
    obs["objects"][..., 1:4] *= 0.03  # some of them near the hand
    obs["objects"], obs["joints"][:, -7:-4] = obs["objects"].flatten(-2), 0.0
    before, after = (network.embed(network.normalize(one)) for one in (obs, permuted(obs, order)))
    assert before[1] is not None
    assert after[1] is not None
    assert before[2] is not None
    assert after[2] is not None
    assert torch.allclose(after[1], before[1][:, order], atol=1e-6)  # equivariance
    assert torch.equal(after[2], before[2][:, order])
    assert torch.allclose(network.write(after), network.write(before), atol=1e-5)  # invariance
    y = torch.randn(B, 16)
    assert torch.allclose(network.look(y, after), network.look(y, before), atol=1e-5)
    scores = [network.look_and_point(y, embedded)[1] for embedded in (before, after)]
    assert scores[0] is not None
    assert scores[1] is not None
    assert scores[0].shape == (B, 4, K + 1)
    assert torch.equal(scores[0][..., :K].isinf(), ~before[2][:, None].expand(B, 4, K))
    assert torch.allclose(scores[1], scores[0][..., [*order, K]], atol=1e-5)


def test_a_policy_does_not_depend_on_the_order_of_objects_but_on_which_is_where() -> None:
    network, obs = policy(), observed(S, B)
    starts = torch.zeros(S, B, dtype=torch.bool)

    def run(one: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        distribution, value, _ = network.forward_sequence(network.normalize(one), network.initial_state(B), starts)
        return distribution.mode(), value

    with torch.no_grad():
        whole = run(obs)
        for one, two in zip(whole, run(permuted(obs, [2, 0, 4, 1, 3])), strict=True):
            assert torch.allclose(one, two, atol=1e-5)
        # the same places and the same codes, but other codes at these places
        objects = obs["objects"].unflatten(-1, (K, -1)).clone()
        objects[..., 8:] = objects[..., [1, 2, 3, 4, 0], 8:] * objects[..., :1]
        assert (run({**obs, "objects": objects.flatten(-2)})[0] - whole[0]).abs().max() > 1e-2


def test_where_nothing_is_visible_the_empty_token_is_read() -> None:
    torch.manual_seed(0)
    pooling, reading = TokenPooling(8), TokenReading(4, 8)
    tokens, hidden = torch.randn(B, K, 8), torch.zeros(B, K, dtype=torch.bool)
    with torch.no_grad():
        pooling.empty.fill_(2.0)
        reading.empty.fill_(3.0)
        assert torch.equal(pooling(tokens, hidden), torch.full((B, 32), 2.0))
        assert torch.equal(reading(torch.randn(B, 4), tokens, hidden)[0], torch.full((B, 32), 3.0))
        # what a hidden token holds does not matter
        some = torch.tensor([True, False, True, True, False]).expand(B, K)
        other = torch.where(some[..., None], tokens, torch.full_like(tokens, 99.0))
        assert torch.equal(pooling(tokens, some), pooling(other, some))
        assert not torch.equal(pooling(tokens, some), pooling(tokens, hidden))


@torch.no_grad()
def test_what_a_query_reads_by_hand() -> None:
    pooling = TokenPooling(4, queries=1)
    pooling.queries.fill_(1.0)
    tokens = torch.tensor([[[1.0] * 4, [3.0] * 4]])
    found = pooling(tokens, torch.tensor([[True, False]]))
    # The score is 4, divided by the square root of the size; that of the empty token is 0.
    share = math.exp(4 / 2) / (math.exp(4 / 2) + 1)
    torch.testing.assert_close(found, torch.full((1, 4), share))


def test_the_token_at_the_tcp_is_that_of_the_object_there() -> None:
    tcp = torch.tensor([0.1, 0.2, 0.3, 1.0, 0, 0, 0])
    objects = torch.zeros(3, 8 + C)
    objects[:, :1], objects[:, 4] = 1.0, 1.0
    objects[:, 1:4] = tcp[:3] + torch.tensor([[0.0, 0.0, 0.0], [0.06, 0.0, 0.0], [0.0, 0.2, 0.0]])
    tokens, visible = torch.tensor([[1.0, 0.0], [0.0, 1.0], [9.0, 9.0]]), torch.ones(3, dtype=torch.bool)

    def at_tcp(objects: Tensor, visible: Tensor) -> Tensor:
        return token_at_tcp(token_features(objects, tcp), tokens, visible)

    # 1 at the hand, exp(-4) at 6 cm, as much as nothing has; the third is too far away to count
    total = 1.0 + 2.0 * math.exp(-4.0)
    assert torch.allclose(at_tcp(objects, visible), torch.tensor([1.0, math.exp(-4.0)]) / total, atol=1e-6)
    assert torch.allclose(at_tcp(objects, torch.tensor([False, True, True])), torch.tensor([0.0, 0.5]), atol=1e-6)
    assert at_tcp(objects, torch.tensor([False, False, True])).abs().max() < 1e-6, "nothing is near"
    assert not at_tcp(objects, torch.zeros(3, dtype=torch.bool)).any(), "nothing is visible"
    batch = token_features(objects.expand(2, 4, 3, 8 + C), tcp.expand(2, 4, 7))
    at_each = token_at_tcp(batch, tokens.expand(2, 4, 3, 2), visible.expand(2, 4, 3))
    assert torch.equal(at_each, at_tcp(objects, visible).expand(2, 4, 2))


def test_the_sum_is_of_the_visible_tokens_and_only_the_memory_is_given_it() -> None:
    tokens = torch.tensor([[1.0, 2.0], [10.0, 20.0], [100.0, 200.0]])
    assert torch.equal(token_sum(tokens, torch.tensor([True, False, True])), torch.tensor([101.0, 202.0]))
    assert torch.equal(token_sum(tokens, torch.zeros(3, dtype=torch.bool)), torch.zeros(2))
    network, without, obs = policy(sum_token=True), policy(), observed(B)
    assert network.head_inputs == without.head_inputs
    others, tokens, visible = network.embed(network.normalize(obs))
    assert tokens is not None
    assert visible is not None
    joined = torch.cat([others, network.pooling(tokens, visible), token_sum(tokens, visible)], dim=-1)
    assert torch.equal(network.write((others, tokens, visible)), network.trunk(joined))


@pytest.mark.parametrize("memory", sorted(MEMORIES))
def test_step_by_step_equals_the_whole_sequence(memory: str) -> None:
    network, obs = policy(memory, tcp_token=memory == "gru", sum_token=memory == "gru"), observed(S, B)
    starts = torch.zeros(S, B, dtype=torch.bool)
    starts[0], starts[3, 1] = True, True
    with torch.no_grad():
        normalized: Any = network.normalize(obs)
        means, values, _last = network.forward_sequence(normalized, network.initial_state(B), starts)
        state = network.initial_state(B)
        for t in range(S):
            now = {name: value[t] for name, value in normalized.items()}
            mean, value, state = network.step(now, state, starts[t])
            assert torch.allclose(mean.mode(), means.mode()[t], atol=1e-5)
            assert torch.allclose(value, values[t], atol=1e-5)


def test_a_policy_comes_back_from_its_checkpoint(tmp_path: Path) -> None:
    network = policy("lstm", images=True, tcp_token=True, sum_token=True)
    args = DAggerArgs(memory="lstm", memory_size=16, token_size=16, head_sizes=(32,), tcp_token=True, sum_token=True)
    save_policy(tmp_path / "a.pt", network, args, 7)
    again, obs = load_network(tmp_path / "a.pt"), observed(B, images=True)
    assert again.to_dict() == network.to_dict()
    starts = torch.ones(B, dtype=torch.bool)
    with torch.no_grad():
        one, two = (n.step(n.normalize(obs), n.initial_state(B), starts)[0].mode() for n in (network, again))
    assert torch.equal(one, two)


def test_a_checkpoint_imports_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evil_memory.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    network = policy()
    described = {**network.to_dict(), "memory": "evil_memory:Evil"}
    monkeypatch.setattr(network, "to_dict", lambda: described)
    save_policy(tmp_path / "a.pt", network, DAggerArgs(), 7)
    with pytest.raises(CheckpointError, match="evil_memory"):
        load_network(tmp_path / "a.pt")


def test_images_are_bytes_until_they_are_encoded() -> None:
    network, obs = policy(images=True), observed(B, images=True)
    normalized: Any = network.normalize(obs)
    assert normalized["rgb"].dtype == torch.uint8
    starts = torch.ones(B, dtype=torch.bool)
    with torch.no_grad():
        one = network.step(normalized, network.initial_state(B), starts)[0].mode()
        other = {**normalized, "rgb": 255 - normalized["rgb"]}
        assert not torch.allclose(network.step(other, network.initial_state(B), starts)[0].mode(), one, atol=1e-4)


@pytest.mark.parametrize("shape", [(16, 18, 3), (128, 128, 6)])
def test_impala_takes_images_of_any_size(shape: tuple[int, int, int]) -> None:
    encoder = ImpalaEncoder(shape, outputs=24)
    assert encoder(torch.rand(2, *shape)).shape == (2, 24)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"memory": "gnu"}, "there is no memory 'gnu'"),
        ({"memory_kwargs": ("depth=3",)}, "no option depth"),
    ],
)
def test_a_memory_that_cannot_be_made_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        TokenPolicy.from_args(layout(), ActionLayout(8), DAggerArgs(**change))
    with pytest.raises(ArgumentError, match="--num-workers"):
        TokenPolicy.from_args(layout(items=0), ActionLayout(8), DAggerArgs())


@pytest.mark.parametrize("shape", [(64, 64, 3), (66, 64, 6), (65, 64, 3), (32, 32, 3)])
def test_bytes_are_encoded_as_their_floats(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    encoder = ImpalaEncoder(shape, outputs=8)
    image = torch.randint(0, 256, (2, *shape), dtype=torch.uint8)
    assert torch.allclose(encoder(image, 1 / 255), encoder(image.float() / 255), atol=1e-5)


# ---------------------------------------------------------------------- small differences
def test_fine_inputs_tell_small_numbers_apart() -> None:
    torch.manual_seed(0)
    encoder = Encoder(ObservationLayout.from_dict(2), normalize_obs=True, fine_inputs=0.2)
    assert encoder.features == 4
    samples = torch.randn(10_000, 2, dtype=torch.float64) * torch.tensor([0.1, 5.0]) + torch.tensor([0.3, 0.0])
    encoder.update_normalizer(samples.float())
    assert encoder.normalizer is not None
    std = encoder.normalizer.var.sqrt().float()
    raw = torch.tensor([[0.01, 0.0], [0.02, 1.0], [0.3, -1.0]])
    seen = encoder.encode(encoder.normalize(raw))
    assert torch.equal(seen[:, :2], encoder.normalizer(raw)), "what was seen before comes first"
    # around 0, not around the mean, because 0 is where the hand meets the cube
    assert torch.allclose(seen[:, 2:], torch.tanh(raw / (0.2 * std)), atol=1e-5)
    near, far = seen[1] - seen[0], raw[1, 0] / std[0] - raw[0, 0] / std[0]
    assert near[2] > 3 * far, "a centimetre makes more of a difference"


def test_fine_inputs_need_numbers_with_statistics() -> None:
    with pytest.raises(ValueError, match=r"fine_inputs -1 is negative; use 0"):
        Encoder(ObservationLayout.from_dict(2), normalize_obs=True, fine_inputs=-1)
    with pytest.raises(ValueError, match="normalize_obs=True"):
        Encoder(ObservationLayout.from_dict(2), normalize_obs=False, fine_inputs=0.2)
