"""Learning from whole episodes by gradient steps: what DAgger, behaviour cloning and the sequence models have in common.

`EpisodeLearner` takes minibatches of episodes from a buffer, and `imitation_loss` is the distance of a policy's actions to
labels. Where the episodes come from is the matter of `dagger` (an expert that acts or labels) and `offline` (a dataset).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn

from .arguments import ArgumentError
from .divergence import diverged
from .encoder import Encoder
from .episodes import Episode, EpisodeBuffer, cat_episodes, count_steps
from .evaluation import in_eval_mode
from .networks import NetworkPolicy, make_network
from .protocol import Setup
from .readouts import CountedReadout, OracleReadout, make_oracle_readout
from .registry import get_network
from .spaces import Obs
from .threads import BatchThreads
from .token_policy import Embedded, TokenPolicy

__all__ = [
    "OBS",
    "EpisodeLearner",
    "Figures",
    "Learner",
    "Replayed",
    "imitation_loss",
    "normalized_obs",
    "replay",
    "run_memory",
    "told_figures",
]

log = logging.getLogger(__name__)

OBS = "obs/"
"""Begin of the names of the parts of an observation in an `Episode`."""
MOST_LAST_SHARE = 0.2
"""A run that anneals the learning rate gets a warning if it still has more than this share of it in its last rollout."""


class Learner(nn.Module):
    """All that has weights: the policy, and the read-outs where there are any."""

    def __init__(
        self, network: TokenPolicy, readout: OracleReadout | None, counted_readout: CountedReadout | None = None
    ) -> None:
        super().__init__()
        self.network, self.readout, self.counted_readout = network, readout, counted_readout

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.network.device


@dataclass
class Replayed:
    """What a network makes of whole episodes, M steps in all, one episode after another."""

    steps: dict[str, Tensor]  # (M, …) by name, on the device of the network
    embedded: Embedded  # (M, …)
    y: Tensor  # (M, H) outputs of the memory


def replay(network: TokenPolicy, episodes: Sequence[Episode], bptt: int = 0) -> Replayed:
    """Run a network over whole episodes, with gradients.

    Args:
        network: whose memory begins anew with each episode.
        episodes: with the parts of the observations under names that begin with `OBS`.
        bptt: see `run_memory`.
    """
    device = network.device
    lengths = torch.tensor([len(next(iter(episode.values()))) for episode in episodes])
    steps = {name: value.to(device) for name, value in cat_episodes(episodes).items()}
    # Step m of all steps in a row is step `time` of episode `row`. Only what a memory runs over is padded.
    row = torch.arange(len(lengths)).repeat_interleave(lengths).to(device)
    time = torch.cat([torch.arange(length) for length in lengths.tolist()]).to(device)
    embedded = network.embed(normalized_obs(network, steps))
    written = network.write_recorded(embedded, steps)
    x = written.new_zeros((int(lengths.max()), len(lengths), written.shape[-1])).index_put((time, row), written)
    return Replayed(steps, embedded, run_memory(network.memory, x, bptt)[time, row])


@torch.no_grad()
def normalized_obs(network: Encoder, steps: Mapping[str, Tensor]) -> Obs:
    """The normalised observations (M, …) of recorded steps (M, …) by name."""
    obs = {name.removeprefix(OBS): value for name, value in steps.items() if name.startswith(OBS)}
    return network.normalize(obs.get("", obs))


class Figures(NamedTuple):
    """The figures of a minibatch, in the order in which `imitation_loss` stacks them. All are divided by its ``count``."""

    action_loss: float
    oracle_loss: float
    oracle_right: float
    """How often the read-out of the oracle is right."""
    known: float
    """The share of steps at which the oracle can be known."""
    acting: float
    """The share of steps at which actions count."""
    counted_loss: float
    counted_right: float
    target_loss: float
    """The loss of the first query."""
    target_right: float
    aimed: float
    """The share of steps that have a visible target."""


def imitation_loss(learner: Learner, episodes: Sequence[Episode], count: float, args: Any) -> tuple[Tensor, Tensor]:
    """What some episodes add to the loss of a minibatch (), with gradients, and to its `Figures` (10,).

    Args:
        learner: the networks.
        episodes: whole episodes.
        count: number of steps that sums are divided by.
        args: bptt, loss, huber_delta and target_weight; oracle_weight and counted_weight, where there are these read-outs.

    Returns:
        The loss, and the figures in one tensor. Those of a loss that is not asked for are 0.
    """
    network, device = learner.network, learner.device
    replayed = replay(network, episodes, args.bptt)
    steps, embedded, y = replayed.steps, replayed.embedded, replayed.y
    chosen = steps["carried"].nonzero().squeeze(1)
    others, *objects = embedded
    tokens, visible = (None if part is None else part[chosen] for part in objects)
    seen: Embedded = (others[chosen], tokens, visible)
    joined, scores = (
        network.look_and_point(y[chosen], seen) if args.target_weight else (network.look(y[chosen], seen), None)
    )
    means = network.actor(joined)
    if args.loss == "huber":
        # Divided by delta, so that the slope far off is 1 whatever delta is.
        each = nn.functional.huber_loss(means, steps["labels"][chosen], reduction="none", delta=args.huber_delta)
        each = each / args.huber_delta
    else:
        each = (means - steps["labels"][chosen]).square()
    action_loss = each.mean(dim=-1).sum() / count
    loss, zero = action_loss, torch.zeros((), device=device)
    figures = dict.fromkeys(Figures._fields, zero)
    figures |= {"action_loss": action_loss, "acting": zero + len(chosen) / count}
    if learner.readout is not None:
        known = steps["known"].nonzero().squeeze(1)
        errors, right = learner.readout(y[known], steps["oracle"][known])
        loss = loss + args.oracle_weight * errors.sum() / count
        figures |= {"oracle_loss": errors.sum() / count, "oracle_right": right.sum() / count}
        figures["known"] = zero + len(known) / count
    if learner.counted_readout is not None:
        errors, right = learner.counted_readout(y, steps["counted"])
        loss = loss + args.counted_weight * errors.sum() / count
        figures |= {"counted_loss": errors.sum() / count, "counted_right": right.sum() / count}
    if scores is not None:
        logits, target = scores[:, 0], steps["target"][chosen]
        visible_target = logits.gather(1, target.clamp(min=0)[:, None])[:, 0].isfinite()
        aimed = ((target >= 0) & visible_target).nonzero().squeeze(1)
        logits, target = logits[aimed], target[aimed]
        errors = nn.functional.cross_entropy(logits, target, reduction="none")
        loss = loss + args.target_weight * errors.sum() / count
        right = logits.argmax(dim=-1) == target
        figures |= {"target_loss": errors.sum() / count, "target_right": right.sum() / count}
        figures["aimed"] = zero + len(aimed) / count
    return loss, torch.stack(list(figures.values())).detach()


def told_figures(loss: float, right: float, known: float) -> dict[str, float]:
    """What the log says of a read-out of the oracle, among the steps at which it can be known.

    Args:
        loss, right, known: the summed errors, how often it is right, and how many steps count, all divided by one number.
    """
    steps = max(known, 1e-9)
    return {"loss/oracle": loss / steps, "imitation/oracle_told": right / steps}


def run_memory(memory: Any, x: Tensor, bptt: int) -> Tensor:
    """The outputs (T, B, H) of a memory for inputs (T, B, I) of whole episodes.

    Args:
        memory: a `memory.Memory`.
        x: the inputs.
        bptt: gradients do not pass multiples of this many steps; 0: they pass all.
    """
    length = len(x)
    if bptt == 0 or bptt >= length:
        whole: Tensor = memory.run_episodes(x)
        return whole
    starts = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
    starts[0] = True
    state = memory.initial_state(x.shape[1])
    outputs = []
    for begin in range(0, length, bptt):
        part = slice(begin, begin + bptt)
        y, state = memory.forward_sequence(x[part], state, starts[part])
        state = {name: value.detach() for name, value in state.items()}
        outputs.append(y)
    return torch.cat(outputs)


class EpisodeLearner:
    """Base class of algorithms that take gradient steps on minibatches of whole episodes; see `protocol.Algorithm`.

    A subclass calls `make_learner` and fills ``buffer``. It says what a minibatch is to teach in `loss`.
    """

    network_type: ClassVar[type] = TokenPolicy
    """See `protocol.Algorithm`."""
    args: Any
    generator: torch.Generator
    network: Any
    learner: Any
    """All that has weights, `Learner` or another module with ``network`` and ``device``."""
    optimizer: torch.optim.Optimizer
    buffer: EpisodeBuffer
    validation_episodes: Sequence[Episode] = ()
    """Episodes of a dataset that are not learnt from, see `validate`."""
    step: int
    """Steps of the run before the rollout that is being played or was just played."""
    updates: int
    """Gradient steps so far."""

    def make_learner(self, args: Any, setup: Setup, oracle: Tensor | None = None, candidates: int = 0) -> None:
        """Make the network and what trains it.

        Args:
            args: of the run.
            setup: of the run.
            oracle: (N, d) an example of what has to be remembered, where ``args.oracle_weight`` asks for a read-out.
            candidates: number of candidates, where ``args.counted_weight`` asks for a read-out of those touched so far.

        Raises:
            ArgumentError: the network is not a `TokenPolicy`, or see `make_oracle_readout`.
        """
        self.args, self.generator = args, setup.generator
        if not issubclass(get_network(args.network_name).load(), self.network_type):
            raise ArgumentError(f"--network {args.network_name} cannot be used; use tokens, or a class derived from it")
        network = cast(TokenPolicy, make_network(args, setup, recurrent=True))
        self.network = network
        outputs = network.memory.output_size
        readout = None
        if oracle is not None:
            readout = make_oracle_readout(args, setup.env.unwrapped, oracle, outputs).to(setup.device)
        counted = CountedReadout(outputs, candidates).to(setup.device) if candidates else None
        self.learner = Learner(network, readout, counted)
        self.make_optimizer(setup.device)
        self.buffer = EpisodeBuffer(args.buffer_episodes)
        self.step, self.updates = 0, 0
        self._warn_of_few_rollouts()

    def make_optimizer(self, device: torch.device) -> None:
        """Adam for all weights of ``learner``."""
        fused = device.type in ("cpu", "cuda")
        weights = [weight for weight in self.learner.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.Adam(weights, lr=self.args.learning_rate, fused=fused)

    def _warn_of_few_rollouts(self) -> None:
        args, of_one = self.args, self.args.num_envs * self.args.num_steps
        before_the_last = (math.ceil(args.total_timesteps / of_one) - 1) * of_one
        last = self._annealed(before_the_last / args.total_timesteps)
        if args.anneal_lr and last > MOST_LAST_SHARE:
            log.warning(
                "the learning rate falls once in %d steps (num_envs x num_steps), so in this run of %d steps it ends at "
                "%.2g of --learning-rate, and policies are often worse for it; use a smaller --num-steps, and a smaller "
                "--updates-per-rollout where there is one",
                of_one,
                args.total_timesteps,
                last,
            )

    def _annealed(self, progress: float) -> float:
        """What --anneal-lr leaves of the learning rate, as a share."""
        return 1.0 - progress if self.args.lr_schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))

    def schedule(self, progress: float) -> None:
        """Set the learning rate, and remember how far the run is."""
        self.step = round(progress * self.args.total_timesteps)
        if self.args.anneal_lr:
            self.optimizer.param_groups[0]["lr"] = self.args.learning_rate * self._annealed(progress)

    def loss(self, episodes: Sequence[Episode], count: float) -> tuple[Tensor, Tensor]:
        """What some episodes add to the loss of a minibatch (), with gradients, and to its figures (F,).

        Args:
            episodes: whole episodes.
            count: number of steps that sums are divided by.
        """
        return imitation_loss(self.learner, episodes, count, self.args)

    def after_step(self) -> None:
        """Called after each gradient step."""

    def take_steps(self, due: int) -> Tensor:
        """Take ``due`` gradient steps on minibatches from the buffer, which holds an episode at least.

        Returns:
            The figures (due, F) of the minibatches.

        Raises:
            FloatingPointError: one is infinite or NaN.
        """
        args = self.args
        found: list[Tensor] = []
        with BatchThreads(self.learner, args.compile) as threads:
            for episodes, count in self.buffer.minibatches(due, args.batch_episodes, self.generator):

                def loss(rows: slice) -> tuple[Tensor, Tensor]:
                    return self.loss(episodes[rows], count)  # noqa: B023  used at once

                found.append(threads.backward(len(episodes), loss))
                nn.utils.clip_grad_norm_(self.learner.parameters(), args.max_grad_norm)
                self.optimizer.step()
                self.after_step()
        self.updates += due
        figures = torch.stack(found) if found else torch.zeros(0, 0)
        if not figures.isfinite().all():
            raise diverged("a loss is infinite or NaN", self.updates > due or bool(figures[0].isfinite().all()))
        return figures

    def describe_steps(self, figures: Tensor) -> dict[str, float]:
        """What the log says of gradient steps with these figures (G, F)."""
        row = {
            "imitation/total_updates": float(self.updates),
            "loss/gradient_steps": float(len(figures)),
            "learning_rate": self.optimizer.param_groups[0]["lr"],
        }
        return row | self.describe_figures(figures.mean(dim=0).tolist()) if len(figures) else row

    def describe_figures(self, figures: Sequence[float]) -> dict[str, float]:
        """What the log says of the figures (F,) that `loss` gives, divided by the steps they are sums over."""
        mean = Figures(*figures)
        # the mean over the steps at which actions count
        row = {"loss/action": mean.action_loss / max(mean.acting, 1e-9)}
        if self.learner.readout is not None:
            row |= told_figures(mean.oracle_loss, mean.oracle_right, mean.known)
        if self.learner.counted_readout is not None:
            row |= {"loss/counted": mean.counted_loss, "imitation/counted_told": mean.counted_right}
        if self.args.target_weight:
            row |= {
                "loss/target": mean.target_loss,
                "imitation/target_found": mean.target_right / max(mean.aimed, 1e-9),
            }
        return row

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """What the log says of the episodes for validation: as `describe_figures`, with "validation/" before each name.

        {} where there are none.
        """
        episodes, size = sorted(self.validation_episodes, key=count_steps), self.args.batch_episodes
        if not episodes:
            return {}
        count = float(sum(map(count_steps, episodes)))
        with in_eval_mode(self.learner):  # as in an evaluation, and nothing is learnt from these episodes
            parts = [self.loss(episodes[k : k + size], count)[1] for k in range(0, len(episodes), size)]
        described = self.describe_figures(torch.stack(parts).sum(dim=0).tolist())
        return {f"validation/{name}": value for name, value in described.items()}

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs besides the network and the episodes."""
        readout, counted = self.learner.readout, self.learner.counted_readout
        return {
            "optimizer": self.optimizer.state_dict(),
            "readout": {} if readout is None else readout.state_dict(),
            "counted_readout": {} if counted is None else counted.state_dict(),
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        if self.learner.readout is not None:
            self.learner.readout.load_state_dict(state["readout"])
        if self.learner.counted_readout is not None:
            self.learner.counted_readout.load_state_dict(state["counted_readout"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates = state["updates"]

    @staticmethod
    def make_policy(network: Any) -> NetworkPolicy:
        """The network by its most likely actions."""
        return NetworkPolicy(network)

    def eval_policy(self) -> NetworkPolicy:
        """The present policy, for an evaluation."""
        return self.make_policy(self.network)
