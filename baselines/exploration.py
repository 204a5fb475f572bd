"""How PPO explores continuous actions: the noise that is added to the most likely action, and its probability.

- ``gaussian``: independent noise at each step, with one standard deviation for each component that is learned.
- ``state-dependent``: independent noise whose standard deviations are computed from the features of the actor (`StdHead`).
- ``gsde``: generalised state-dependent exploration (Raffin et al., 2020, arXiv 2005.05719): the noise is a random linear
  function of the features, which stays the same for some steps. So it is smooth, and small where the features are small.
- ``smooth``: noise that is correlated from step to step, an autoregressive process of first order.

What is exact: with the first two, everything. With ``gsde`` the probability is that of an action in its state, for a random
function; that the actions of neighbouring steps share the function is left out, as in the paper, and so is the gradient of
the noise with respect to the features. With ``smooth`` the probability is conditioned on the noise of the step before, which
a rollout records. So the ratio of new to old probability is exact for each step, given what is recorded. Two things are left
out: that another policy would have come to the step with other noise (as with recorded recurrent states), and that the
critic, which does not see the carried noise, values its mean.
"""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from .distributed import DistContext
from .distributions import Distribution, Gaussian

__all__ = ["MAX_LOG_STD", "MIN_LOG_STD", "Exploration", "NoiseSource", "StdHead"]

Exploration: TypeAlias = Literal["gaussian", "state-dependent", "gsde", "smooth"]
MIN_LOG_STD, MAX_LOG_STD = -5.0, 1.0
"""Range of the logarithm of a standard deviation that depends on the state."""


class _Cap(torch.autograd.Function):
    """min(x, cap), with a gradient above the cap only where gradient descent would lower x.

    That of a clamp would be zero there: what has risen above a falling cap could never narrow again.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, cap: Tensor) -> Tensor:
        ctx.save_for_backward(x > cap)
        return x.clamp(max=cap)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (above,), (gradient,) = ctx.saved_tensors, gradients
        return torch.where(above & (gradient < 0.0), torch.zeros_like(gradient), gradient), None


class StdHead(nn.Module):
    """The logarithm of the standard deviation of each component of an action, from the features of the actor.

    It lies between `MIN_LOG_STD` and `MAX_LOG_STD`, and not above ``cap``, which is part of ``state_dict``.

    Args:
        inputs: H, number of features.
        outputs: A.
        initial: its value at first, everywhere.
    """

    cap: Tensor  # ()

    def __init__(self, inputs: int, outputs: int, initial: float) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        share = (initial - MIN_LOG_STD) / (MAX_LOG_STD - MIN_LOG_STD)
        nn.init.zeros_(self.linear.weight)
        nn.init.constant_(self.linear.bias, math.log(share / (1.0 - share)))
        self.register_buffer("cap", torch.tensor(MAX_LOG_STD))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        state_dict.setdefault(f"{prefix}cap", torch.tensor(MAX_LOG_STD))  # older checkpoints do not have it
        super()._load_from_state_dict(state_dict, prefix, *args)

    def forward(self, features: Tensor) -> Tensor:
        """(..., A) for features (..., H)."""
        log_std = MIN_LOG_STD + (MAX_LOG_STD - MIN_LOG_STD) * torch.sigmoid(self.linear(features))
        capped: Tensor = _Cap.apply(log_std, self.cap)
        return capped


class NoiseSource:
    """Samples actions in rollouts, and keeps the noise that goes on from step to step.

    All its random numbers come from ``generator``. `reset` forgets the noise, so that a run that is resumed where episodes
    begin draws what one that goes on draws.

    Args:
        network: the policy.
        generator: of random numbers for all environments of all processes.
        dist: this process among those that train together.
        exploration: see the module.
        interval: steps for which gSDE keeps its random function.
        correlation: of smooth noise from one step to the next, in [0, 1).
    """

    def __init__(
        self,
        network: Any,
        generator: torch.Generator,
        dist: DistContext,
        exploration: Exploration = "gaussian",
        interval: int = 8,
        correlation: float = 0.8,
    ) -> None:
        self.network, self.generator, self.dist = network, generator, dist
        self.exploration, self.interval, self.correlation = exploration, interval, correlation
        self._noise: Tensor | None = None  # gSDE: (N, H, A) standard normal
        self._age = 0
        self._carried: Tensor | None = None  # smooth: (N, A) noise of the last step, in standard deviations
        self._stds: list[Tensor] = []

    def reset(self) -> None:
        """Forget the noise: new episodes begin in all environments."""
        self._noise, self._carried = None, None

    def act(self, distribution: Distribution, n: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Sampled actions (N, A), their log-probabilities (N,), and with smooth noise the carried noise (N, A) before.

        Args:
            distribution: of the actions of N environments, as the network returns it.
            n: N.
        """
        if isinstance(distribution, Gaussian) and distribution.log_std.ndim > 1:
            self._stds.append(distribution.log_std.exp().mean())
        if self.exploration == "smooth":
            return self._act_smoothly(distribution, n)
        if self.exploration == "gsde":
            if self._noise is None or self._age >= self.interval:
                self._noise, self._age = self._draw(n), 0
            self._age += 1
            noise = self._noise
        else:
            noise = self._draw(n)
        actions = distribution.sample(noise)
        return actions, distribution.log_prob(actions), None

    def _act_smoothly(self, distribution: Distribution, n: int) -> tuple[Tensor, Tensor, Tensor]:
        assert isinstance(distribution, Gaussian)
        carried = self._draw(n) if self._carried is None else self._carried
        fresh = self._draw(n)
        conditional = distribution.given(carried, self.correlation)
        actions = conditional.sample(fresh)
        self._carried = self.correlation * carried + math.sqrt(1.0 - self.correlation**2) * fresh
        return actions, conditional.log_prob(actions), carried

    def _draw(self, n: int) -> Tensor:
        noise: Tensor = self.network.sample_noise(n, self.generator, self.dist)
        return noise

    def pop_std(self) -> float | None:
        """Mean standard deviation of this process's actions since the last call; None where it does not depend on states."""
        if not self._stds:
            return None
        mean = float(torch.stack(self._stds).mean())
        self._stds.clear()
        return mean
