"""Encoding of observations: what the networks of the baselines begin with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .distributed import DistContext
from .spaces import Obs, ObservationLayout

__all__ = ["Encoder", "ObservationNormalizer", "feature_name", "mlp"]

JOINED_VECTOR = "all numbers"
"""Key of the vector that all parts of an observation but the images are joined to."""
IMAGE_FEATURES = 128
"""Size of the vector that an image is encoded as."""


def feature_name(image: str) -> str:
    """Key of the features of an image in an observation that has these in its place."""
    return f"features of {image}"


class ObservationNormalizer(nn.Module):
    """Shifts and scales observations by their running mean and standard deviation, which are part of ``state_dict``.

    ``update`` is called between policy updates only, so that an update recomputes the log-probabilities of its rollout. A
    new network is the exception: its statistics begin with the first rollout, before the first update.

    Args:
        obs_dim: size D of an observation.
        clip: normalised values are clamped to [-clip, clip].
        min_std: lower bound of the divisor, in the unit of the observation. Without it the numerical noise of a nearly
            constant component would be scaled up to the size of a signal.
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
    def update(self, obs: Tensor, dist: DistContext | None = None) -> None:
        """Add a batch of raw observations (..., D), those of all processes, to the statistics."""
        dist = dist or DistContext()
        batch = obs.reshape(-1, obs.shape[-1]).to(torch.float64)
        n = batch.shape[0] * dist.size
        total = self.count + n
        batch_mean = dist.sum(batch.sum(dim=0)) / n
        batch_var = dist.sum((batch - batch_mean).square().sum(dim=0)) / n
        delta = batch_mean - self.mean
        # Chan et al.: the parallel form of Welford's update.
        squares = self.var * self.count + batch_var * n + delta.square() * self.count * n / total
        self.mean.add_(delta * n / total)
        self.var.copy_(squares / total)
        self.count.copy_(total)

    @property
    def std(self) -> Tensor:
        """What observations are divided by: (D,) float64."""
        return self.var.sqrt().clamp_min(self.min_std)

    def scaled_mean(self, dtype: torch.dtype) -> Tensor:
        """The mean (D,) in standard deviations: added to normalised values, it gives the raw ones in that unit."""
        return (self.mean / self.std).to(dtype)

    def forward(self, obs: Tensor) -> Tensor:
        """(..., D) raw to (..., D) normalised, in the dtype of ``obs``."""
        normalised = (obs - self.mean.to(obs.dtype)) / self.std.to(obs.dtype)
        return normalised.clamp(-self.clip, self.clip)


def _linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def mlp(inputs: int, hidden: Sequence[int], outputs: int, output_gain: float) -> nn.Sequential:
    """A tanh MLP with orthogonal weights; ``output_gain`` scales those of its last layer."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [_linear(inputs, width, math.sqrt(2.0)), nn.Tanh()]
        inputs = width
    return nn.Sequential(*layers, _linear(inputs, outputs, output_gain))


class _ImageEncoder(nn.Sequential):
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
        super().__init__(*layers, nn.Flatten(), _linear(size, IMAGE_FEATURES, math.sqrt(2.0)), nn.Tanh())

    def forward(self, input: Tensor, scale: float = 1.0) -> Tensor:
        return super().forward((input.float() * scale).permute(0, 3, 1, 2))


class Encoder(nn.Module):
    """Encodes observations as one vector: numbers are normalised, discrete parts one-hot encoded, images go through a CNN.

    Encoding has two steps, because an update visits each observation many times: `normalize` does what has no weights,
    `encode` does the rest. Images stay bytes until `encode`. Sets of objects (`ObservationPart.items`) are left out: a
    network that asks for them reads them itself.

    Args:
        layout: the parts of an observation.
        normalize_obs: whether vectors are normalised by their running statistics.
        image_encoder: makes the network for images of a shape (H, W, C): it takes images (B, H, W, C), bytes among them, and
            the factor by which they are scaled, and gives features (B, `IMAGE_FEATURES`).
        fine_inputs: F. If it is not 0, each vector is encoded a second time, as tanh(z / F), where z is the raw number
            divided by its running standard deviation. An MLP is slow to learn what depends on small differences of its
            inputs (Rahaman et al., 2019, arXiv 1806.08734), such as that a hand is 1 cm beside a cube and not above it.

    Raises:
        ValueError: ``fine_inputs`` is negative, or there are no vectors with running statistics.
    """

    def __init__(
        self,
        layout: ObservationLayout,
        normalize_obs: bool,
        image_encoder: Callable[[tuple[int, ...]], nn.Module] | None = None,
        fine_inputs: float = 0.0,
    ) -> None:
        super().__init__()
        self.layout = layout
        self.obs_dim = layout.width
        self._joined = [part for part in layout.parts if not part.items]
        self._numbers = [part for part in self._joined if part.kind == "vector"]
        numbers = sum(part.width for part in self._numbers)
        self.normalizer = ObservationNormalizer(numbers) if normalize_obs and numbers else None
        self.fine_inputs = fine_inputs
        if fine_inputs < 0:
            raise ValueError(f"fine_inputs {fine_inputs} is negative; use 0 for none")
        if fine_inputs and self.normalizer is None:
            raise ValueError(
                f"fine_inputs {fine_inputs} needs vectors in the observation, and normalize_obs=True; use 0"
            )
        make = image_encoder or _ImageEncoder
        self.images = nn.ModuleList([make(part.shape) for part in layout.images])
        self.features = sum(part.width for part in self._joined) + IMAGE_FEATURES * len(layout.images)
        if fine_inputs:
            self.features += numbers

    def normalize(self, obs: Obs) -> Obs:
        """Raw observations (..., …) to the joined vector (..., D); with images to a dict of it and the images.

        With ``fine_inputs`` the second form of all numbers comes after all other columns.
        """
        raw = obs if isinstance(obs, dict) else {"": obs}
        batch = self._batch_shape(raw)
        normalised = iter(())
        if self._numbers:
            joined = torch.cat([raw[part.name].reshape(*batch, -1) for part in self._numbers], dim=-1).float()
            joined = joined if self.normalizer is None else self.normalizer(joined)
            normalised = iter(joined.split([part.width for part in self._numbers], dim=-1))
        columns: list[Tensor] = []
        for part in self._joined:
            if part.kind == "vector":
                columns.append(next(normalised))
            elif part.kind == "bounded":
                columns.append(raw[part.name].reshape(*batch, -1).float() * part.scale)
            elif part.kind == "discrete":
                values = raw[part.name].reshape(*batch, -1).long()
                for value, size, start in zip(values.unbind(-1), part.sizes, part.starts, strict=True):
                    columns.append(nn.functional.one_hot(value - start, size).float())
        if self.fine_inputs and self.normalizer is not None:
            columns.append(torch.tanh((joined + self.normalizer.scaled_mean(joined.dtype)) / self.fine_inputs))
        names = [name for part in self.layout.images for name in (part.name, feature_name(part.name))]
        images = {name: raw[name] for name in names if name in raw}
        if not images:
            return torch.cat(columns, dim=-1) if len(columns) > 1 else columns[0]
        return {JOINED_VECTOR: torch.cat(columns, dim=-1), **images} if columns else images

    def encode(self, normalized: Obs) -> Tensor:
        """Normalised observations (..., …) to features (..., F), with gradients.

        An image may come as the features (..., `IMAGE_FEATURES`) that its encoder gave before, under `feature_name`.
        """
        if not isinstance(normalized, dict):
            return normalized
        columns = [normalized[JOINED_VECTOR]] if JOINED_VECTOR in normalized else []
        for part, network in zip(self.layout.images, self.images, strict=True):
            if feature_name(part.name) in normalized:
                columns.append(normalized[feature_name(part.name)])
                continue
            image = normalized[part.name]
            batch = image.shape[: image.ndim - 3]
            columns.append(network(image.reshape(-1, *part.shape), part.scale).reshape(*batch, -1))
        return torch.cat(columns, dim=-1)

    def update_normalizer(self, obs: Obs, dist: DistContext | None = None) -> None:
        """Add raw observations (..., …) to the running statistics, if there are any."""
        if self.normalizer is not None:
            raw = obs if isinstance(obs, dict) else {"": obs}
            batch = self._batch_shape(raw)
            joined = torch.cat([raw[part.name].reshape(*batch, -1) for part in self._numbers], dim=-1)
            self.normalizer.update(joined, dist)

    def _batch_shape(self, raw: Mapping[str, Tensor]) -> torch.Size:
        part = self._joined[0]
        if feature_name(part.name) in raw:
            return raw[feature_name(part.name)].shape[:-1]
        shape = raw[part.name].shape
        return shape[: len(shape) - len(part.shape)]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # Checkpoints of version 1 have the weights of image encoders under another name.
        old = f"{prefix}pictures."
        for name in [name for name in state_dict if name.startswith(old)]:
            state_dict[f"{prefix}images.{name.removeprefix(old)}"] = state_dict.pop(name)
        super()._load_from_state_dict(state_dict, prefix, *args)
