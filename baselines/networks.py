"""The networks of the baselines: what encodes observations, and actors and critics with and without memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .distributions import Categoricals, Distribution, Gaussian
from .spaces import ActionLayout, Obs, ObservationLayout, map_obs
from .team import Team

__all__ = ["ActorCritic", "Encoder", "ObservationNormalizer", "RecurrentActorCritic"]

ALL_NUMBERS = "all numbers"
"""Key of the vector that all parts of an observation but the pictures are joined to."""
PICTURE_FEATURES = 128
"""Numbers that a picture is encoded in."""


class ObservationNormalizer(nn.Module):
    """Shifts and scales observations by a running mean and standard deviation, which are part of ``state_dict``.

    ``update`` is called between policy updates only, so that the log-probabilities stored in a rollout are those the
    update recomputes.

    Args:
        obs_dim: size D of an observation.
        clip: normalised values are clamped to [-clip, clip].
        min_std: lower bound of the divisor, in the unit of the observation. Without it a component that is all but
            constant would have its numerical noise blown up to the size of a signal.
    """

    mean: Tensor  # (D,)
    var: Tensor  # (D,)
    count: Tensor  # ()

    def __init__(self, obs_dim: int, clip: float = 10.0, min_std: float = 1e-3) -> None:
        super().__init__()
        self.clip = clip
        self.min_std = min_std
        # float64: over millions of samples a float32 running mean stops moving.
        self.register_buffer("mean", torch.zeros(obs_dim, dtype=torch.float64))
        self.register_buffer("var", torch.ones(obs_dim, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def update(self, obs: Tensor, team: Team | None = None) -> None:
        """Takes a batch of raw observations (..., D), those of all processes of a team, into the statistics."""
        team = team or Team()
        batch = obs.reshape(-1, obs.shape[-1]).to(torch.float64)
        n = batch.shape[0] * team.size
        total = self.count + n
        batch_mean = team.sum(batch.sum(dim=0)) / n
        batch_var = team.sum((batch - batch_mean).square().sum(dim=0)) / n
        delta = batch_mean - self.mean
        # Chan et al.: the parallel form of Welford's update.
        squares = self.var * self.count + batch_var * n + delta.square() * self.count * n / total
        self.mean.add_(delta * n / total)
        self.var.copy_(squares / total)
        self.count.copy_(total)

    def forward(self, obs: Tensor) -> Tensor:
        """(..., D) raw to (..., D) normalised, in the dtype of ``obs``."""
        std = self.var.sqrt().clamp_min(self.min_std)
        normalised = (obs - self.mean.to(obs.dtype)) / std.to(obs.dtype)
        return normalised.clamp(-self.clip, self.clip)


def _linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def _mlp(inputs: int, hidden: Sequence[int], outputs: int, output_gain: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [_linear(inputs, width, math.sqrt(2.0)), nn.Tanh()]
        inputs = width
    return nn.Sequential(*layers, _linear(inputs, outputs, output_gain))


class _PictureEncoder(nn.Sequential):
    """Three convolutions and a linear layer: (B, H, W, C) scaled to (B, F)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        height, width, channels = shape
        first = (8, 4, 0) if min(height, width) >= 64 else (3, 1, 1)  # kernel, stride, padding
        layers: list[nn.Module] = []
        for outputs, (kernel, stride, padding) in zip((16, 32, 64), (first, (4, 2, 1), (3, 2, 1)), strict=True):
            convolution = nn.Conv2d(channels, outputs, kernel, stride, padding)
            nn.init.orthogonal_(convolution.weight, math.sqrt(2.0))
            nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]
            layers += [convolution, nn.ReLU()]
            channels = outputs
        with torch.no_grad():
            size = nn.Sequential(*layers)(torch.zeros(1, shape[2], height, width)).numel()
        super().__init__(*layers, nn.Flatten(), _linear(size, PICTURE_FEATURES, math.sqrt(2.0)), nn.Tanh())

    def forward(self, picture: Tensor) -> Tensor:
        return super().forward(picture.permute(0, 3, 1, 2))


class Encoder(nn.Module):
    """Turns observations into one vector: numbers normalised, discrete ones as one-hot codes, pictures by a small CNN.

    It works in two steps, as an update visits each observation many times: `normalize` does what has no weights, and
    `encode` the rest. Pictures stay bytes until `encode`.

    Args:
        layout: what an observation is made of.
        normalize_obs: whether vectors pass through a running normaliser.
    """

    def __init__(self, layout: ObservationLayout, normalize_obs: bool) -> None:
        super().__init__()
        self.layout = layout
        self.obs_dim = layout.width
        self._numbers = [part for part in layout.parts if part.kind == "vector"]
        numbers = sum(part.width for part in self._numbers)
        self.normalizer = ObservationNormalizer(numbers) if normalize_obs and numbers else None
        self.pictures = nn.ModuleList([_PictureEncoder(part.shape) for part in layout.pictures])
        self.features = layout.width + PICTURE_FEATURES * len(layout.pictures)

    def normalize(self, obs: Obs) -> Obs:
        """Raw (..., …) to the vector (..., D), or where there are pictures to a dict of it and of them, as they are.

        Where an observation is one vector, so is the result.
        """
        raw = obs if isinstance(obs, dict) else {"": obs}
        batch = self._batch_shape(raw)
        normalised = iter(())
        if self._numbers:
            joined = torch.cat([raw[part.name].reshape(*batch, -1) for part in self._numbers], dim=-1).float()
            joined = joined if self.normalizer is None else self.normalizer(joined)
            normalised = iter(joined.split([part.width for part in self._numbers], dim=-1))
        columns: list[Tensor] = []
        for part in self.layout.parts:
            if part.kind == "vector":
                columns.append(next(normalised))
            elif part.kind == "bounded":
                columns.append(raw[part.name].reshape(*batch, -1).float() * part.scale)
            elif part.kind == "discrete":
                values = raw[part.name].reshape(*batch, -1).long()
                for value, size, start in zip(values.unbind(-1), part.sizes, part.starts, strict=True):
                    columns.append(nn.functional.one_hot(value - start, size).float())
        pictures = {part.name: raw[part.name] for part in self.layout.pictures}
        if not pictures:
            return torch.cat(columns, dim=-1) if len(columns) > 1 else columns[0]
        return {ALL_NUMBERS: torch.cat(columns, dim=-1), **pictures} if columns else pictures

    def encode(self, normalized: Obs) -> Tensor:
        """What `normalize` gave (..., …) to features (..., F), with gradients."""
        if not isinstance(normalized, dict):
            return normalized
        columns = [normalized[ALL_NUMBERS]] if ALL_NUMBERS in normalized else []
        for part, network in zip(self.layout.pictures, self.pictures, strict=True):
            picture = normalized[part.name]
            batch = picture.shape[: picture.ndim - 3]
            scaled = picture.reshape(-1, *part.shape).float() * part.scale
            columns.append(network(scaled).reshape(*batch, -1))
        return torch.cat(columns, dim=-1)

    def update_normalizer(self, obs: Obs, team: Team | None = None) -> None:
        """Takes raw observations (..., …) into the running statistics, if there are any."""
        if self.normalizer is not None:
            raw = obs if isinstance(obs, dict) else {"": obs}
            batch = self._batch_shape(raw)
            joined = torch.cat([raw[part.name].reshape(*batch, -1) for part in self._numbers], dim=-1)
            self.normalizer.update(joined, team)

    def _batch_shape(self, raw: Mapping[str, Tensor]) -> torch.Size:
        part = self.layout.parts[0]
        shape = raw[part.name].shape
        return shape[: len(shape) - len(part.shape)]


class _Cloned:
    """Calls a function recorded as a CUDA graph, which writes each result where it wrote the one before, and copies it."""

    def __init__(self, recorded: Callable[[Tensor], Tensor]) -> None:
        self._recorded = recorded

    def __call__(self, x: Tensor) -> Tensor:
        return self._recorded(x).clone()


class _Policy(Encoder):
    """An encoder with a distribution of actions; `log_std` is a parameter where actions are continuous."""

    log_std: nn.Parameter

    def __init__(
        self,
        obs: int | Sequence[Mapping[str, Any]] | ObservationLayout,
        action: int | Sequence[int] | ActionLayout,
        normalize_obs: bool,
    ) -> None:
        super().__init__(ObservationLayout.parse(obs), normalize_obs)
        self.action = ActionLayout.parse(action)
        self.action_dim = self.action.dim

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def compile_parts(self, cuda_graphs: bool) -> None:
        """Has torch compile what holds weights, at its first use; names in ``state_dict`` stay as they are.

        The LSTM is left to torch's own implementation, which is one call already.
        """
        # Trained and played, one by one and in batches, each part is compiled several times: more often than torch's
        # limit of 8, beyond which it would silently go on without.
        limit = "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"
        setattr(torch._dynamo.config, limit, max(64, getattr(torch._dynamo.config, limit)))
        mode = "reduce-overhead" if cuda_graphs else None
        parts = [module for name, module in self.named_children() if name in ("actor", "critic", "trunk")]
        for module in [*parts, *self.pictures]:
            compiled = torch.compile(module.forward, mode=mode)
            module.forward = _Cloned(compiled) if cuda_graphs else compiled

    def distribution(self, parameters: Tensor) -> Distribution:
        """Of actions, from means or logits (..., P)."""
        return Categoricals(parameters, self.action.sizes) if self.action.sizes else Gaussian(parameters, self.log_std)

    def noise(self, n: int, generator: torch.Generator, team: Team) -> Tensor:
        """What actions (n, A) are sampled from: this process's rows of what is drawn for all environments."""
        draw = torch.rand if self.action.sizes else torch.randn
        return draw((n * team.size, self.action.dim), generator=generator, device=self.device)[team.rows(n)]

    def _add_log_std(self, initial: float) -> None:
        if not self.action.sizes:
            self.log_std = nn.Parameter(torch.full((self.action.dim,), initial))

    @torch.no_grad()
    def limit_log_std(self, most: float) -> None:
        """Lowers what is above ``most``; discrete actions have no standard deviation, and nothing happens."""
        if not self.action.sizes:
            self.log_std.clamp_(max=most)


class ActorCritic(_Policy):
    """A policy and a value function without memory: two separate tanh MLPs on top of the same encoder.

    Args:
        obs_dim: size D of an observation, or the layout of one that is more than a vector.
        action_dim: number A of continuous components of an action, each in [-1, 1], or the sizes of discrete ones.
        hidden_sizes: widths of the hidden layers, the same in both networks.
        normalize_obs: whether observations pass through a running normaliser.
        init_log_std: the logarithm of the initial standard deviation of every continuous component.
    """

    def __init__(
        self,
        obs_dim: int | Sequence[Mapping[str, Any]] | ObservationLayout,
        action_dim: int | Sequence[int] | ActionLayout,
        hidden_sizes: Sequence[int] = (256, 256, 256),
        normalize_obs: bool = True,
        init_log_std: float = -0.5,
    ) -> None:
        super().__init__(obs_dim, action_dim, normalize_obs)
        self.hidden_sizes = tuple(hidden_sizes)
        # A small last layer starts the policy near zero motion: with delta control the arm then stays where it is.
        self.actor = _mlp(self.features, self.hidden_sizes, self.action.parameters, output_gain=0.01)
        self.critic = _mlp(self.features, self.hidden_sizes, 1, output_gain=1.0)
        self._add_log_std(init_log_std)

    def plain(self) -> dict[str, Any]:
        """The arguments that make a policy of this shape."""
        return {
            "obs_dim": self.layout.plain(),
            "action_dim": self.action.plain(),
            "hidden_sizes": list(self.hidden_sizes),
            "normalize_obs": self.normalizer is not None,
        }

    @torch.no_grad()
    def act(self, obs: Obs) -> Tensor:
        """The likeliest action (B, A), as an environment takes it, for raw observations (B, …)."""
        mode = self.distribution(self.actor(self.encode(self.normalize(obs)))).mode()
        return self.action.to_env(mode)

    @torch.no_grad()
    def sample(self, obs: Obs, generator: torch.Generator, team: Team | None = None) -> tuple[Tensor, Tensor]:
        """A sampled action (B, A), not clamped, and its log-probability (B,), for raw observations (B, …)."""
        parameters = self.actor(self.encode(self.normalize(obs)))
        distribution = self.distribution(parameters)
        action = distribution.sample(self.noise(parameters.shape[0], generator, team or Team()))
        return action, distribution.log_prob(action)

    def value(self, obs: Obs) -> Tensor:
        """V (...) of raw observations (..., …)."""
        return self.critic(self.encode(self.normalize(obs))).squeeze(-1)

    def evaluate(self, normalized_obs: Obs, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probability, entropy and value, (B,) each, with gradients.

        Takes observations that are normalised already: an update visits each of them many times.
        """
        features = self.encode(normalized_obs)
        distribution = self.distribution(self.actor(features))
        return distribution.log_prob(action), distribution.entropy(), self.critic(features).squeeze(-1)


class RecurrentActorCritic(_Policy):
    """A policy and a value function that share an LSTM.

    Features pass through a tanh MLP and the LSTM; actor and critic are MLPs of what both give, so that what can be seen
    now need not pass through the memory. A memory is a tensor (2, B, H): hidden state and cell.

    Args:
        obs_dim, action_dim, normalize_obs, init_log_std: as `ActorCritic`'s.
        encoder_sizes: widths of the layers before the LSTM.
        lstm_size: H.
        head_sizes: widths of the hidden layers of actor and critic.
    """

    def __init__(
        self,
        obs_dim: int | Sequence[Mapping[str, Any]] | ObservationLayout,
        action_dim: int | Sequence[int] | ActionLayout,
        encoder_sizes: Sequence[int] = (128,),
        lstm_size: int = 128,
        head_sizes: Sequence[int] = (128,),
        normalize_obs: bool = True,
        init_log_std: float = -0.5,
    ) -> None:
        super().__init__(obs_dim, action_dim, normalize_obs)
        self.encoder_sizes, self.lstm_size, self.head_sizes = tuple(encoder_sizes), lstm_size, tuple(head_sizes)
        *hidden, width = self.encoder_sizes
        self.trunk = nn.Sequential(_mlp(self.features, hidden, width, output_gain=math.sqrt(2.0)), nn.Tanh())
        self.lstm = nn.LSTM(width, lstm_size)
        for name, parameter in self.lstm.named_parameters():
            if name.startswith("weight"):
                for gate in parameter.data.chunk(4):
                    nn.init.orthogonal_(gate)
            else:
                nn.init.zeros_(parameter)
        with torch.no_grad():
            # the forget gate starts open, so that a gradient finds its way back to a cue (Jozefowicz et al. 2015)
            dict(self.lstm.named_parameters())["bias_ih_l0"][lstm_size : 2 * lstm_size] = 1.0
        self.actor = _mlp(width + lstm_size, self.head_sizes, self.action.parameters, output_gain=0.01)
        self.critic = _mlp(width + lstm_size, self.head_sizes, 1, output_gain=1.0)
        self._add_log_std(init_log_std)

    def plain(self) -> dict[str, Any]:
        """The arguments that make a policy of this shape."""
        return {
            "obs_dim": self.layout.plain(),
            "action_dim": self.action.plain(),
            "encoder_sizes": list(self.encoder_sizes),
            "lstm_size": self.lstm_size,
            "head_sizes": list(self.head_sizes),
            "normalize_obs": self.normalizer is not None,
        }

    def empty_memory(self, n: int) -> Tensor:
        """The memory (2, n, H) at the start of an episode."""
        return torch.zeros((2, n, self.lstm_size), device=self.device)

    def step(self, obs: Obs, memory: Tensor, starts: Tensor) -> tuple[Distribution, Tensor, Tensor]:
        """One step of B environments.

        Args:
            obs: raw (B, …).
            memory: (2, B, H), what was known before.
            starts: (B,) bool, an episode begins with this observation: what was known is forgotten.

        Returns:
            the distribution of actions, the value (B,) and the new memory (2, B, H).
        """
        rows = map_obs(lambda x: x.unsqueeze(0), self.normalize(obs))
        parameters, value, memory = self._forward(rows, memory, starts.unsqueeze(0))
        return self.distribution(parameters.squeeze(0)), value.squeeze(0), memory

    def replay(self, normalized_obs: Obs, memory: Tensor, starts: Tensor) -> tuple[Distribution, Tensor, Tensor]:
        """S steps of B environments, with gradients through time that stop where episodes begin.

        Args:
            normalized_obs: (S, B, …) as `normalize` gives it.
            memory: (2, B, H) before the first step.
            starts: (S, B) bool, an episode begins with that observation.

        Returns:
            the distribution of actions (S, B, A), values (S, B) and the memory (2, B, H) after the last step.
        """
        parameters, values, memory = self._forward(normalized_obs, memory, starts)
        return self.distribution(parameters), values, memory

    def _forward(self, normalized_obs: Obs, memory: Tensor, starts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        inputs = self.trunk(self.encode(normalized_obs))  # (S, B, W)
        steps = inputs.shape[0]
        # One call for each stretch in which no episode begins anywhere: on CPU and with few environments that beats a loop
        # over steps, and rearranging all episodes into padded or packed sequences.
        cuts = [0, *(t for t in starts.any(dim=1).nonzero().squeeze(1).tolist() if t > 0), steps]
        outputs = []
        hidden, cell = memory.unsqueeze(1).unbind()  # (1, B, H) each
        for begin, end in itertools.pairwise(cuts):
            kept = (~starts[begin])[:, None].to(inputs.dtype)  # (B, 1)
            output, (hidden, cell) = self.lstm(inputs[begin:end], (hidden * kept, cell * kept))
            outputs.append(output)
        joined = torch.cat([inputs, torch.cat(outputs)], dim=-1)
        memory = torch.cat([hidden, cell])
        return self.actor(joined), self.critic(joined).squeeze(-1), memory
