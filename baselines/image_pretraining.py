"""Pretraining of image encoders on single frames, after which whole episodes are learnt from features instead of images.

A gradient step on whole episodes encodes each frame of them, and almost all its time goes there. But what an image shows can
be learnt from single frames, by a head that is told what has to be remembered and so needs no memory. After that the
encoder is fixed, episodes are kept as features, and a gradient step costs as much as one without images. That a network is
first taught with what it will not be told later is as in "Learning by Cheating" (Chen et al., 2019, arXiv 1912.12294).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .encoder import Encoder, feature_name
from .encoders import relu_mlp
from .episodes import Episode
from .evaluation import in_eval_mode
from .imitation import OBS, normalized_obs
from .readouts import OracleReadout

__all__ = ["FrameHead", "encode_episode", "freeze_images", "pretrain_images"]

BATCH = 256
"""Frames in a minibatch, a quarter of them of the cue."""
MOST_FRAMES = 256
"""Frames that are encoded at a time without gradients."""
SECONDS_BETWEEN_REPORTS = 30.0

log = logging.getLogger(__name__)


class FrameHead(nn.Module):
    """Predicts two things from a frame: the expert's action, given what has to be remembered; and in the cue, what that is.

    Args:
        features: size of an encoded observation.
        actions: size of an action.
        oracle: (N, d) an example of what has to be remembered.
        classes: number of values of it, where these are whole numbers.
        as_set: neither tell nor ask for the order of these whole numbers; see `OracleReadout`.
    """

    def __init__(self, features: int, actions: int, oracle: Tensor, classes: int, as_set: bool = False) -> None:
        super().__init__()
        self.readout = OracleReadout(features, oracle, classes, as_set)
        told = self.readout.linear.out_features
        self.actor = relu_mlp(features + told, (256, 256), actions)

    def act(self, encoded: Tensor, oracle: Tensor) -> Tensor:
        """Actions (M, A) for encoded observations (M, F), told what has to be remembered (M, d)."""
        readout = self.readout
        if readout.as_set:
            told = readout.members(oracle)
        elif readout.discrete:
            told = nn.functional.one_hot(oracle.long(), readout.classes).flatten(1).float()
        else:
            told = readout.normalizer(oracle.float())
        actions: Tensor = self.actor(torch.cat([encoded, told], dim=-1))
        return actions

    def loss(self, encoded: Tensor, frames: Mapping[str, Tensor], delta: float) -> Tensor:
        """The loss () of frames (M, …): those of the cue teach what to remember, those whose actions count how to act."""
        carried, cue = frames["carried"], ~frames["known"]
        loss = encoded.new_zeros(())
        if bool(carried.any()):
            actions = self.act(encoded[carried], frames["oracle"][carried])
            loss = nn.functional.huber_loss(actions, frames["labels"][carried], delta=delta) / delta
        if bool(cue.any()):
            loss = loss + self.readout(encoded[cue], frames["oracle"][cue])[0].mean()
        return loss


def pretrain_images(
    network: Encoder, head: FrameHead, episodes: Sequence[Episode], updates: int, args: Any, generator: torch.Generator
) -> Tensor:
    """Train the image encoders of a network on single frames of episodes.

    Args:
        network: whose ``images`` are trained, and nothing else of it.
        head: is trained with them.
        episodes: to draw frames from.
        updates: gradient steps.
        args: learning_rate, which falls to 0 by a cosine, huber_delta and max_grad_norm.
        generator: draws the frames.

    Returns:
        The loss (updates,) of each gradient step.

    Raises:
        ValueError: no step of the episodes has an action that counts.
        FloatingPointError: a loss is infinite or NaN.
    """
    device = next(head.parameters()).device
    where = [(k, t) for k, episode in enumerate(episodes) for t in range(len(episode["labels"]))]
    steps = {name: torch.cat([episode[name] for episode in episodes]) for name in ("known", "carried")}
    cue, carried = (~steps["known"]).nonzero().squeeze(1), steps["carried"].nonzero().squeeze(1)
    if not len(carried):
        raise ValueError("no step of these episodes has an action that counts")
    weights = [*network.images.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(weights, lr=args.learning_rate, fused=device.type in ("cpu", "cuda"))
    annealing = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(updates, 1))
    from_cue = BATCH // 4 if len(cue) else 0
    losses: list[Tensor] = []
    log.info("the image encoder learns from %d frames of %d episodes", len(where), len(episodes))
    told = time.monotonic()
    for _ in range(updates):
        drawn = [_draw(carried, BATCH - from_cue, generator)]
        drawn += [_draw(cue, from_cue, generator)] if from_cue else []
        frames = _frames(episodes, [where[row] for row in torch.cat(drawn).tolist()], device)
        encoded = network.encode(normalized_obs(network, frames))
        loss = head.loss(encoded, frames, args.huber_delta)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(weights, args.max_grad_norm)
        optimizer.step()
        annealing.step()
        losses.append(loss.detach())
        if time.monotonic() - told > SECONDS_BETWEEN_REPORTS or len(losses) == updates:
            told = time.monotonic()
            log.info("image encoder, gradient step %d of %d: loss %.4f", len(losses), updates, losses[-1].item())
    optimizer.zero_grad()
    found = torch.stack(losses) if losses else torch.zeros(0)
    if not found.isfinite().all():
        raise FloatingPointError("a loss of image pretraining is infinite or NaN; use a smaller --learning-rate")
    return found


def _frames(episodes: Sequence[Episode], where: Sequence[tuple[int, int]], device: torch.device) -> Episode:
    """The steps (M, …) at time t of episode k, for each (k, t) of ``where``."""
    return {name: torch.stack([episodes[k][name][t] for k, t in where]).to(device) for name in episodes[0]}


def _draw(rows: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """``count`` of these rows, with replacement, on the CPU."""
    drawn = torch.randint(len(rows), (count,), generator=generator, device=generator.device).cpu()
    return rows[drawn]


def freeze_images(network: Encoder) -> None:
    """Let no gradient change the image encoders of a network any more."""
    for weight in network.images.parameters():
        weight.requires_grad_(False)
        weight.grad = None


@torch.no_grad()
def encode_episode(network: Encoder, episode: Episode) -> Episode:
    """The episode with the features (L, F) of its images in place of the images; see `Encoder.encode`."""
    device = next(network.images.parameters()).device
    steps = dict(episode)
    for part, encoder in zip(network.layout.images, network.images, strict=True):
        image = steps.pop(f"{OBS}{part.name}", None)
        if image is None:  # it has been done
            continue
        with in_eval_mode(encoder):  # as in an evaluation
            parts = [encoder(frames.to(device), part.scale).cpu() for frames in image.split(MOST_FRAMES)]
        steps[f"{OBS}{feature_name(part.name)}"] = torch.cat(parts)
    return steps
