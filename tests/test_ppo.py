"""What PPO-MLP and PPO-LSTM share: the loss, when an update ends, the learning rate; and how files are replaced."""

from __future__ import annotations

import math
import os
from pathlib import Path

import gymnasium as gym
import pytest
import torch

from mikasa_robo.baselines.checkpoints import write_atomically
from mikasa_robo.baselines.distributed import DistContext
from mikasa_robo.baselines.networks import ActorCritic
from mikasa_robo.baselines.ppo import PPOArgs, clipped_loss, has_moved, part_loss
from mikasa_robo.baselines.ppo_mlp import PPOMLP, Args
from mikasa_robo.baselines.protocol import Setup


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clipped"),
    [
        (1.1, 2.0, -2.2, -2.2, 0.0),  # within the range: as it is
        (1.5, 2.0, -2.4, 0.0, 1.0),  # a gain counts up to 1.2 only, and pulls no further
        (0.5, 2.0, -1.0, -1.0, 1.0),  # a loss counts in full, so that it can be made good
        (0.5, -2.0, 1.6, 0.0, 1.0),
        (1.5, -2.0, 3.0, 3.0, 1.0),
    ],
)
def test_the_policy_loss_is_clipped_by_hand(
    ratio: float, advantage: float, loss: float, gradient: float, clipped: float
) -> None:
    """The gradient with respect to the logarithm of the ratio is minus ratio times advantage, or zero."""
    log_ratio = torch.tensor([math.log(ratio)], requires_grad=True)
    args = PPOArgs(clip_range=0.2, normalize_advantages=False)
    value, fraction = clipped_loss(log_ratio, torch.tensor([advantage]), 1, args, DistContext())
    value.backward()
    assert log_ratio.grad is not None
    assert value.item() == pytest.approx(loss)
    assert log_ratio.grad.item() == pytest.approx(gradient)
    assert fraction.item() == clipped


def test_entropy_lowers_the_loss_by_its_coefficient() -> None:
    args, none = PPOArgs(entropy_coef=0.1, value_coef=0.0), torch.zeros(4)
    for entropy in (1.0, 2.0):
        loss, _ = part_loss((none, torch.full((4,), entropy), none), none, none, none, 4, args)
        assert loss.item() == pytest.approx(-0.1 * entropy)


def test_an_update_stops_where_the_policy_has_moved_too_far() -> None:
    args, dist = PPOArgs(target_kl=0.01), DistContext()
    # loss of the policy, of the value, entropy, divergence and clipped ratios
    far, near = torch.tensor([0.0, 0.0, 0.0, 0.02, 0.0]), torch.tensor([0.0, 0.0, 0.0, 0.005, 0.9])
    assert has_moved(far, 1, args, dist)
    assert not has_moved(far, 0, args, dist), "there is always one minibatch"
    assert not has_moved(near, 1, args, dist), "however many ratios are clipped"
    assert not has_moved(far, 1, PPOArgs(target_kl=0.0), dist)


def test_a_new_policy_hardly_moves() -> None:
    torch.manual_seed(0)
    actions = ActorCritic(3, 2).action_distribution(torch.randn(50, 3)).mode()
    assert float(actions.detach().abs().max()) < 0.1


def test_the_learning_rate_falls_linearly_to_zero() -> None:
    spaces = gym.spaces.Box(-1.0, 1.0, (3,)), gym.spaces.Box(-1.0, 1.0, (2,))
    setup = Setup(*spaces, 4, torch.device("cpu"), torch.Generator(), DistContext())
    algorithm = PPOMLP(Args(learning_rate=0.01), setup)
    rates = []
    for progress in (0.0, 0.25, 1.0):
        algorithm.schedule(progress)
        rates.append(algorithm.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.01, 0.0075, 0.0])


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "checkpoint.pt"
    write_atomically(path, b"old")

    def fail(handle: int) -> None:
        assert path.read_bytes() == b"old", "the old file is gone before the new one is on the disk"
        raise OSError

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError):  # noqa: PT011  any error of the disk
            write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path], "a half-written file is left"
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
