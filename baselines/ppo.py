"""What `ppo_mlp` and `ppo_lstm` share: minibatches, the clipped loss and the gradient step.

PPO is Schulman et al., 2017, arXiv 1707.06347.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .arguments import ArgumentError, refuse_options
from .critics import is_critic_parameter, rescale_values, value_unit
from .distributed import DistContext
from .divergence import diverged, steps_taken
from .exploration import NoiseSource
from .networks import NetworkPolicy, make_network
from .ppo_arguments import MAX_LEARNING_RATE, MIN_LEARNING_RATE, PPOArgs
from .protocol import Network, Setup

__all__ = [
    "PPO",
    "PPO_FIGURES",
    "PPOArgs",
    "adapt_learning_rate",
    "apply_gradients",
    "approximate_kl",
    "clipped_loss",
    "gradient_step",
    "has_moved",
    "minibatches",
    "part_loss",
    "rescale_values",
    "standardize",
    "summarize",
    "take_step",
    "value_loss",
    "value_unit",
]

log = logging.getLogger(__name__)

LEARNING_RATE_FACTOR = 1.5
"""What it is multiplied or divided by."""
PPO_FIGURES = 5
"""Number of figures of a minibatch, see `mean_figures`."""
DIVERGED = "a loss is infinite or NaN"


class PPO:
    """Base class of the two algorithms: the network, Adam, and what changes during the run."""

    recurrent: ClassVar[bool]
    """Which kind of network it trains."""
    samples_actions: ClassVar[bool] = True
    """See `protocol.Algorithm.make_policy`."""

    def __init__(self, args: PPOArgs, setup: Setup) -> None:
        self.args: Any = args
        self.generator, self.dist = setup.generator, setup.dist
        self.network: Any = make_network(args, setup, self.recurrent)
        self._check_network()
        fused = setup.device.type in ("cpu", "cuda")
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(
            self.network.parameters(), lr=args.learning_rate, eps=1e-5, fused=fused
        )
        self.noise = NoiseSource(
            self.network, self.generator, self.dist, args.exploration, args.gsde_interval, args.noise_correlation
        )
        self.warming = False
        """Whether only the critic learns."""

    def _check_network(self) -> None:
        """Raise ArgumentError where the network does not take one of the options."""
        args, network = self.args, self.network
        if args.exploration != "gaussian" and network.action.sizes:
            raise ArgumentError(
                f"--exploration {args.exploration} is for continuous actions, and those of {args.env_id} are discrete; "
                "leave it out"
            )
        if network.action.sizes and args.resume is None:  # runs of an earlier version may have them
            refuse_options(args, "init_log_std final_log_std", f"with the discrete actions of {args.env_id}")
        for option in args.asked_of_network().values():
            if option not in getattr(network, "ppo_options", ()):
                raise ArgumentError(f"--network {args.network_name} does not take {option}; leave one of them out")
        if kind := layer_that_varies(network):
            log.warning(
                "%s in the network: the log-probabilities of PPO's update differ from those of the rollout before the first "
                "gradient step; use LayerNorm, or no dropout",
                kind,
            )
        apart = [
            *(["--separate-grad-norms"] if args.separate_grad_norms else []),
            *(["--value-warmup-steps"] if args.value_warmup_steps else []),
        ]
        if apart and not any(is_critic_parameter(name) for name, _ in network.named_parameters()):
            raise ArgumentError(f"--network {args.network_name} has no part `critic`, which {apart[0]} asks for")

    def on_episode_start(self, starts: Tensor) -> None:
        """New episodes begin, in all environments or in those where ``starts`` (N,) bool is True."""
        self.noise.reset()

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

    def with_std(self, row: dict[str, float]) -> dict[str, float]:
        """The figures of an update, with the mean standard deviation of the actions of its rollout where that varies."""
        std = self.noise.pop_std()
        return row if std is None else {**row, "loss/action_std": std}

    def schedule(self, progress: float) -> None:
        """Set the learning rate, the bound of exploration and who learns, for the next rollout and update."""
        args = self.args
        self.warming = round(progress * args.total_timesteps) < args.value_warmup_steps
        if args.final_log_std is not None:
            self.network.limit_log_std((1 - progress) * args.init_log_std + progress * args.final_log_std)
        if args.anneal_lr and args.lr_schedule == "linear":
            self.optimizer.param_groups[0]["lr"] = args.learning_rate * (1.0 - progress)


def layer_that_varies(network: Any) -> str | None:
    """The class of a layer with which the outputs in train mode are not a function of the inputs alone; None without one."""
    for layer in network.modules():
        dropout = getattr(layer, "p" if isinstance(layer, nn.modules.dropout._DropoutNd) else "dropout", 0.0)
        drops = isinstance(dropout, float) and dropout > 0.0  # of torch's recurrent and attention layers, too
        if drops or isinstance(layer, nn.modules.batchnorm._BatchNorm):
            return type(layer).__name__
    return None


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
    old_values: Tensor | None = None,
    unit: Tensor | float = 1.0,
    warming: bool = False,
) -> tuple[Tensor, Tensor]:
    """What a part of a minibatch adds to its loss (), with gradients, and to its figures (5,) of `mean_figures`.

    Args:
        evaluated: log-probability, entropy and value by the present network, with gradients; all tensors have one shape.
        old_log_prob: as the rollout recorded it.
        advantages: standardised over the whole minibatch.
        returns: targets of the value.
        count: transitions of the whole minibatch, summed over all processes.
        old_values: those of the rollout, for ``--value-loss clipped``.
        unit: what errors of the value are divided by, see `critics.value_unit`.
        warming: only the critic learns.
    """
    log_prob, entropy, value = evaluated
    log_ratio = log_prob - old_log_prob
    policy_loss, clipped = _clipped_loss(log_ratio, advantages, count, args)
    of_value = value_loss(value, returns, args, old_values, unit).sum() / count
    mean_entropy = entropy.sum() / count
    loss = args.value_coef * of_value
    if not warming:
        loss = policy_loss + loss - args.entropy_coef * mean_entropy
    kl = approximate_kl(log_ratio, count, DistContext())
    return loss, torch.stack([policy_loss, of_value, mean_entropy, kl, clipped]).detach()


def value_loss(
    values: Tensor, targets: Tensor, args: PPOArgs, old_values: Tensor | None = None, unit: Tensor | float = 1.0
) -> Tensor:
    """The loss of each value (...), see ``--value-loss``.

    Args:
        values: with gradients; all tensors have this shape.
        targets: of the values.
        args: value_loss, value_clip and huber_delta.
        old_values: values when the update began; only "clipped" needs them.
        unit: () what errors, and so value_clip and huber_delta, are measured in.
    """
    errors = (values - targets) / unit
    if args.value_loss == "huber":
        return nn.functional.huber_loss(errors, torch.zeros_like(errors), reduction="none", delta=args.huber_delta)
    if args.value_loss == "clipped":
        assert old_values is not None
        near = ((values - old_values) / unit).clamp(-args.value_clip, args.value_clip) + (old_values - targets) / unit
        return 0.5 * torch.maximum(errors.square(), near.square())
    return 0.5 * errors.square()


def has_moved(figures: Tensor, done: int, args: PPOArgs, dist: DistContext) -> bool:
    """Whether an update stops before a minibatch, because the policy has moved by ``--target-kl``.

    Args:
        figures: (5,) of the minibatch, this process's share.
        done: minibatches of the update so far. There is always one.
    """
    return args.target_kl > 0.0 and bool(dist.sum(figures[3]) > args.target_kl) and done > 0


def adapt_learning_rate(
    optimizer: torch.optim.Optimizer, figures: Tensor, done: int, args: PPOArgs, dist: DistContext
) -> None:
    """Change the learning rate before a minibatch by how far the policy has moved in this update.

    The rule of RSL's rsl_rl (Rudin et al., 2022, arXiv 2109.11978), which IsaacLab's PPO uses too, with Schulman's estimate
    in place of the divergence of two Gaussians.

    Args:
        optimizer: whose rate is changed.
        figures: (5,) of the minibatch, this process's share.
        done: minibatches of the update so far. Before the first the policy has not moved, and nothing is changed.
        args: lr_schedule and desired_kl.
        dist: sums the figures.
    """
    if args.lr_schedule != "kl-adaptive" or done == 0:
        return
    kl = float(dist.sum(figures[3]))
    group = optimizer.param_groups[0]
    if kl > 2.0 * args.desired_kl:
        group["lr"] = max(MIN_LEARNING_RATE, group["lr"] / LEARNING_RATE_FACTOR)
    elif kl < 0.5 * args.desired_kl:
        group["lr"] = min(MAX_LEARNING_RATE, group["lr"] * LEARNING_RATE_FACTOR)


def take_step(
    network: Any,
    optimizer: torch.optim.Optimizer,
    figures: Tensor,
    done: int,
    args: PPOArgs,
    dist: DistContext,
    warming: bool = False,
) -> bool:
    """One step of the optimizer, once gradients are there; False where the update stops instead.

    Args:
        figures: (5,) of the minibatch, this process's share.
        done: minibatches of the update so far.
        warming: only the critic learns.
    """
    if not warming:
        adapt_learning_rate(optimizer, figures, done, args, dist)
        if has_moved(figures, done, args, dist):
            return False
    apply_gradients(network, optimizer, args, dist, warming)
    return True


def apply_gradients(
    network: Any, optimizer: torch.optim.Optimizer, args: PPOArgs, dist: DistContext, warming: bool = False
) -> None:
    """One step of the optimizer with the gradients of all processes, of bounded norm.

    With ``warming`` only the critic's own parameters take part. A part that actor and critic share is not the critic's own.
    """
    dist.sum_gradients(network.parameters())
    groups = [list(network.parameters())]
    if args.separate_grad_norms or warming:
        named = list(network.named_parameters())
        groups = [[value for name, value in named if is_critic_parameter(name) == own] for own in (True, False)]
    if warming:
        for parameter in groups.pop():
            parameter.grad = None
    for group in groups:
        nn.utils.clip_grad_norm_(group, args.max_grad_norm)
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
    all_figures = dist.sum(torch.stack(figures))
    if not all_figures[0].isfinite().all() and steps_taken(optimizer) <= len(figures):
        raise diverged(DIVERGED, learnt_before=False)
    row = mean_figures(all_figures, values, returns)
    log_std = getattr(network, "log_std", None)
    if log_std is not None and log_std.ndim == 1:
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
        raise diverged(DIVERGED, True, "use a smaller --learning-rate, or check the rewards")
    names = ("loss/policy", "loss/value", "loss/entropy", "loss/approx_kl", "loss/clip_fraction")
    row = dict(zip(names, figures.mean(dim=0).tolist(), strict=True))
    row["loss/explained_variance"] = float(1.0 - (returns - values).var() / returns.var().clamp_min(1e-12))
    row["loss/gradient_steps"] = float(len(figures))
    return row
