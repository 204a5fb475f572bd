"""Implicit Q-learning from a dataset (Kostrikov et al., 2021, arXiv 2110.06169), with memories for policy and critic.

    mikasa train iql --env-id RememberColor3-v0 --env-kwargs arm=held --dataset data/colors

The value of a state is an expectile of the Q values of the dataset's own actions, so no action is ever asked for that the
dataset does not have. The policy imitates the actions that were carried out, with the weight exp(beta (Q - V)). The squared
error stands for the likelihood of a Gaussian of fixed width. State means history here: the policy and the critic have a
memory each, as Ni et al., 2021 (arXiv 2110.05038) advise. Gradients go through whole episodes.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from mikasa_robo.core.env import MemoryEnv
from mikasa_robo.data.episode import Episode as RecordedEpisode

from .dataset import DIGEST, require_same_dataset, to_training_episode
from .encoders import relu_mlp
from .episodes import Episode
from .imitation import OBS, replay, told_figures
from .networks import make_network
from .offline import Offline, rewards_of
from .offline_arguments import IQLArgs
from .protocol import Setup
from .readouts import OracleReadout
from .token_policy import TokenPolicy

__all__ = ["IQL", "Critic", "IQLLearner", "expectile_loss"]

FIGURES = "loss/value", "loss/q", "iql/value", "loss/action", "iql/weight"
"""The first three are means over all steps, the others over those in which actions are carried out."""


def expectile_loss(error: Tensor, expectile: float) -> Tensor:
    """|expectile - [error < 0]| error², for the errors Q - V."""
    return torch.where(error < 0, 1.0 - expectile, expectile) * error.square()


class Critic(nn.Module):
    """Two Q functions and a value function of a memory's output.

    Args:
        body: encodes observations and has the memory; its ``critic`` is the value function.
    """

    def __init__(self, body: TokenPolicy) -> None:
        super().__init__()
        self.body = body
        inputs = body.head_inputs + body.action.dim
        self.q = nn.ModuleList(relu_mlp(inputs, body.head_sizes, 1) for _ in range(2))

    def read(self, episodes: Sequence[Episode], bptt: int) -> Tensor:
        """What the heads see (M, I) at all steps of whole episodes."""
        replayed = replay(self.body, episodes, bptt)
        return self.body.look(replayed.y, replayed.embedded)

    def values(self, seen: Tensor) -> Tensor:
        """V (M,)."""
        value: Tensor = self.body.critic(seen).squeeze(-1)
        return value

    def q_values(self, seen: Tensor, actions: Tensor) -> Tensor:
        """Both Q (2, M) of actions (M, A)."""
        joined = torch.cat([seen, actions], dim=-1)
        return torch.stack([q(joined).squeeze(-1) for q in self.q])


class IQLLearner(nn.Module):
    """The policy, the critic, and the slowly moving copy of the critic that gives the targets of V.

    Args:
        network: the policy.
        critic: of the same observations.
        readout: of what has to be remembered, from the memory of the policy.
    """

    def __init__(self, network: TokenPolicy, critic: Critic, readout: OracleReadout | None = None) -> None:
        super().__init__()
        self.network, self.critic, self.readout = network, critic, readout
        self.target = copy.deepcopy(critic).requires_grad_(False)
        for other in (self.critic, self.target):  # observations are the same for all
            other.body.normalizer = network.normalizer

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.network.device

    @torch.no_grad()
    def move_target(self, rate: float) -> None:
        """Move the copy this share of the way to the critic."""
        for slow, fast in zip(self.target.parameters(), self.critic.parameters(), strict=True):
            slow.lerp_(fast, rate)


def iql_loss(learner: IQLLearner, episodes: Sequence[Episode], count: float, args: IQLArgs) -> tuple[Tensor, Tensor]:
    """What some episodes add to the loss of a minibatch (), with gradients, and to its figures.

    The figures (7,) are sums for `FIGURES`, the number of steps, and the number of those in which actions are carried out,
    all divided by ``count``; or (10,), where there is a read-out, with the arguments of `imitation.told_figures`.

    Args:
        learner: the networks.
        episodes: as `IQL.convert` makes them, with a last row for the observation after the last action.
        count: number of steps that sums are divided by.
        args: of the run.
    """
    network, critic = learner.network, learner.critic
    replayed = replay(network, episodes, args.bptt)
    steps = replayed.steps
    now = steps["acted"].nonzero().squeeze(1)
    actions = steps["actions"][now]
    seen = critic.read(episodes, args.bptt)
    values = critic.values(seen)
    with torch.no_grad():
        slow = learner.target.q_values(learner.target.read(episodes, args.bptt)[now], actions).amin(dim=0)
        # The row after a step is the next of its episode: the last row of an episode has no action.
        later = values[now + 1].masked_fill(steps["terminal"][now], 0.0)
        goal = steps["rewards"][now] + args.gamma * later
        advantage = slow - values[now]
        weight = (args.temperature * advantage).exp().clamp(max=args.most_weight)
    value_loss = expectile_loss(slow - values[now], args.expectile).sum() / count
    q_loss = (critic.q_values(seen[now], actions) - goal).square().sum() / count
    means = network.actor(network.look(replayed.y, replayed.embedded)[now])
    # Where the arm is held, no action is carried out.
    carried = steps["carried"][now]
    weight = weight * carried
    action_loss = (weight * (means - actions).square().mean(dim=-1)).sum() / count
    loss = value_loss + q_loss + action_loss
    figures = [value_loss, q_loss, values[now].sum() / count, action_loss, weight.sum() / count]
    figures += [loss.new_tensor(len(now) / count), carried.sum() / count]
    if learner.readout is not None:
        known = steps["known"].nonzero().squeeze(1)
        errors, right = learner.readout(replayed.y[known], steps["oracle"][known])
        loss = loss + args.oracle_weight * errors.sum() / count
        figures += [errors.sum() / count, right.sum() / count, right.new_tensor(len(known) / count)]
    return loss, torch.stack(figures).detach()


class IQL(Offline):
    """Implicit Q-learning; see `protocol.Algorithm`."""

    args: IQLArgs
    args_type = IQLArgs

    def __init__(self, args: Any, setup: Setup) -> None:
        self.args = args  # `convert` reads it
        super().__init__(args, setup)
        body = cast(TokenPolicy, make_network(args, setup, recurrent=True))
        self.learner = IQLLearner(self.network, Critic(body).to(setup.device), self.learner.readout)
        self.make_optimizer(setup.device)

    def convert(self, episode: RecordedEpisode, task: MemoryEnv[Any], parts: Sequence[str]) -> Episode:
        """L + 1 rows: the steps, and what was observed after the last one."""
        length = episode.length
        steps = to_training_episode(episode, task, ())
        last = torch.arange(length + 1) == length
        padded = {
            "actions": torch.from_numpy(episode.actions),
            "rewards": rewards_of(episode, self.args.reward),
            **{name: steps[name] for name in ("carried", "known", "oracle")},
        }
        return {
            **{f"{OBS}{part}": torch.from_numpy(episode.observations[part or "state"]) for part in parts},
            **{name: torch.cat([value, torch.zeros_like(value[:1])]) for name, value in padded.items()},
            "acted": ~last,
            # Nothing comes after a success or a mistake, nor after the time limit, which ends an evaluation, too. The value
            # of what is observed there is never learnt, so a return that went on with it would have no end.
            "terminal": torch.arange(length + 1) == length - 1,
        }

    def loss(self, episodes: Sequence[Episode], count: float) -> tuple[Tensor, Tensor]:
        """See `EpisodeLearner.loss`."""
        return iql_loss(self.learner, episodes, count, self.args)

    def after_step(self) -> None:
        """Move the target network."""
        self.learner.move_target(self.args.target_rate)

    def describe_figures(self, figures: Sequence[float]) -> dict[str, float]:
        """See `EpisodeLearner.describe_figures`."""
        n = len(FIGURES)
        sums, (steps, carried), known = figures[:n], figures[n : n + 2], figures[n + 2 :]
        counts = [max(count, 1e-9) for count in (steps, steps, steps, carried, carried)]
        row = {name: total / count for name, total, count in zip(FIGURES, sums, counts, strict=True)}
        return row | told_figures(*known) if known else row

    def state_dict(self) -> dict[str, Any]:
        """See `Offline.state_dict`."""
        state = {
            "optimizer": self.optimizer.state_dict(),
            "updates": self.updates,
            DIGEST: self.dataset_digest,
            "critic": self.learner.critic.state_dict(),
            "target": self.learner.target.state_dict(),
        }
        if self.learner.readout is not None:
            state["readout"] = self.learner.readout.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Offline.load_state_dict`."""
        require_same_dataset(state, self.args.dataset, self.dataset_digest)
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates = state["updates"]
        self.learner.critic.load_state_dict(state["critic"])
        self.learner.target.load_state_dict(state["target"])
        if self.learner.readout is not None:
            self.learner.readout.load_state_dict(state["readout"])
