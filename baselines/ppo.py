"""What `ppo_mlp` and `ppo_lstm` share: minibatches, the clipped loss and the gradient step.

PPO is Schulman et al., 2017, arXiv 1707.06347.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .distributed import DistContext
from .networks import NetworkPolicy, make_network
from .ppo_arguments import PPOArgs
from .protocol import Network, Setup

__all__ = [
    "PPO",
    "PPOArgs",
    "apply_gradients",
    "approximate_kl",
    "clipped_loss",
    "gradient_step",
    "has_moved",
    "minibatches",
    "part_loss",
    "standardize",
    "summarize",
]


class PPO:
    """Base class of the two algorithms: the network, Adam, and what changes during the run."""

    recurrent: ClassVar[bool]
    """Which kind of network it trains."""

    def __init__(self, args: PPOArgs, setup: Setup) -> None:
        self.args: Any = args
        self.generator, self.dist = setup.generator, setup.dist
        self.network: Any = make_network(args, setup, self.recurrent)
        fused = setup.device.type in ("cpu", "cuda")
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(
            self.network.parameters(), lr=args.learning_rate, eps=1e-5, fused=fused
        )

    @staticmethod
    def make_policy(network: Network) -> NetworkPolicy:
        """The network by its most likely actions."""
        return NetworkPolicy(network)

    def eval_policy(self) -> NetworkPolicy:
        """The present policy, for an evaluation."""
        return self.make_policy(self.network)

    def state_dict(self) -> dict[str, Any]:
        """The state of the optimizer."""
        return {"optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        # A copy, because the optimizer keeps using the tensors that it is given.
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))

    def schedule(self, progress: float) -> None:
        """Set the learning rate and the bound of exploration for the next rollout and update."""
        args = self.args
        if args.final_log_std is not None:
            self.network.limit_log_std((1 - progress) * args.init_log_std + progress * args.final_log_std)
        if args.anneal_lr:
            self.optimizer.param_groups[0]["lr"] = args.learning_rate * (1.0 - progress)


def minibatches(count: int, args: PPOArgs, generator: torch.Generator, device: torch.device) -> Iterator[Tensor]:
    """All minibatches of an update: each epoch divides the numbers 0 to ``count`` - 1 in a new random order."""
    for _ in range(args.update_epochs):
        yield from torch.randperm(count, generator=generator, device=device).chunk(args.num_minibatches)


def approximate_kl(log_ratio: Tensor, count: int, dist: DistContext) -> Tensor:
    """How far the policy has moved, from the logarithms of probability ratios; Schulman's low-variance estimate."""
    with torch.no_grad():
        return dist.sum((log_ratio.exp() - 1.0 - log_ratio).sum()) / count


def clipped_loss(
    log_ratio: Tensor, advantages: Tensor, count: int, args: PPOArgs, dist: DistContext
) -> tuple[Tensor, Tensor]:
    """The clipped policy loss () of a minibatch, and the fraction () of ratios that left the clip range.

    Args:
        log_ratio: logarithms of the ratios of new to old probability, with gradients; any shape.
        advantages: of the same shape.
        count: transitions of the minibatch, summed over all processes; these tensors hold this process's.
    """
    return _clipped_loss(log_ratio, standardize(advantages, args, dist), count, args)


def _clipped_loss(log_ratio: Tensor, advantages: Tensor, count: int, args: PPOArgs) -> tuple[Tensor, Tensor]:
    ratio = log_ratio.exp()
    bounded = ratio.clamp(1.0 - args.clip_range, 1.0 + args.clip_range)
    loss = -torch.minimum(ratio * advantages, bounded * advantages).sum() / count
    return loss, ((ratio - 1.0).abs() > args.clip_range).sum() / count


def standardize(advantages: Tensor, args: PPOArgs, dist: DistContext) -> Tensor:
    """The advantages of a minibatch, of any shape; shifted and scaled if ``--normalize-advantages`` asks for it."""
    return dist.standardize(advantages) if args.normalize_advantages else advantages


def part_loss(
    evaluated: tuple[Tensor, Tensor, Tensor],
    old_log_prob: Tensor,
    advantages: Tensor,
    returns: Tensor,
    count: int,
    args: PPOArgs,
) -> tuple[Tensor, Tensor]:
    """What a part of a minibatch adds to its loss (), with gradients, and to its figures (5,) of `mean_figures`.

    Args:
        evaluated: log-probability, entropy and value by the present network, with gradients; all tensors have one shape.
        old_log_prob: as the rollout recorded it.
        advantages: standardised over the whole minibatch.
        returns: targets of the value.
        count: transitions of the whole minibatch, summed over all processes.
    """
    log_prob, entropy, value = evaluated
    log_ratio = log_prob - old_log_prob
    policy_loss, clipped = _clipped_loss(log_ratio, advantages, count, args)
    value_loss = 0.5 * (value - returns).square().sum() / count
    mean_entropy = entropy.sum() / count
    loss = policy_loss + args.value_coef * value_loss - args.entropy_coef * mean_entropy
    kl = approximate_kl(log_ratio, count, DistContext())
    return loss, torch.stack([policy_loss, value_loss, mean_entropy, kl, clipped]).detach()


def has_moved(figures: Tensor, done: int, args: PPOArgs, dist: DistContext) -> bool:
    """Whether an update stops before a minibatch, because the policy has moved by ``--target-kl``.

    Args:
        figures: (5,) of the minibatch, this process's share.
        done: minibatches of the update so far. There is always one.
    """
    return args.target_kl > 0.0 and bool(dist.sum(figures[3]) > args.target_kl) and done > 0


def apply_gradients(network: Any, optimizer: torch.optim.Optimizer, args: PPOArgs, dist: DistContext) -> None:
    """One step of the optimizer with the gradients of all processes, of bounded norm."""
    dist.sum_gradients(network.parameters())
    nn.utils.clip_grad_norm_(network.parameters(), args.max_grad_norm)
    optimizer.step()


def gradient_step(
    network: Any, optimizer: torch.optim.Optimizer, loss: Tensor, args: PPOArgs, dist: DistContext
) -> None:
    """One step of the optimizer on ``loss``, with a gradient of bounded norm."""
    optimizer.zero_grad()
    if loss.requires_grad:  # False where a process has no share in the minibatch
        loss.backward()
    apply_gradients(network, optimizer, args, dist)


def summarize(
    figures: list[Tensor],
    values: Tensor,
    returns: Tensor,
    network: Any,
    optimizer: torch.optim.Optimizer,
    dist: DistContext,
) -> dict[str, float]:
    """The figures of an update for the log.

    Args:
        figures: for each minibatch those (5,) of `mean_figures`, this process's share.
        values, returns: of the rollout, of one shape.

    Raises:
        FloatingPointError: a figure is not finite.
    """
    row = mean_figures(dist.sum(torch.stack(figures)), values, returns)
    log_std = getattr(network, "log_std", None)
    if log_std is not None:
        row["loss/action_std"] = float(log_std.detach().exp().mean())
    row["learning_rate"] = optimizer.param_groups[0]["lr"]
    return row


def mean_figures(figures: Tensor, values: Tensor, returns: Tensor) -> dict[str, float]:
    """The means over M minibatches, by their names in the log, and the explained variance.

    Args:
        figures: (M, 5) policy loss, value loss, entropy, approximate KL divergence and fraction of clipped ratios.
        values, returns: of the rollout, of one shape.

    Raises:
        FloatingPointError: a figure is not finite.
    """
    if not figures.isfinite().all():
        raise FloatingPointError("a loss is infinite or NaN; use a smaller --learning-rate, or check the rewards")
    names = ("loss/policy", "loss/value", "loss/entropy", "loss/approx_kl", "loss/clip_fraction")
    row = dict(zip(names, figures.mean(dim=0).tolist(), strict=True))
    row["loss/explained_variance"] = float(1.0 - (returns - values).var() / returns.var().clamp_min(1e-12))
    row["loss/gradient_steps"] = float(len(figures))
    return row
