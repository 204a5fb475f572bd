"""What each learner promises: the invariants of its update rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lifelong_helpers import Played, play_loop, same, tiny_args
from torch import Tensor

from mikasa_lifelong.learners.anchored import EWC, merge_anchors
from mikasa_lifelong.learners.base import Chance, Setup
from mikasa_lifelong.learners.registry import LEARNERS
from mikasa_lifelong.learners.subspace import Span, mix
from mikasa_lifelong.nets.model import Model, TensorBatch
from mikasa_lifelong.stream import ArrayDataset

pytestmark = pytest.mark.usefixtures("one_torch_thread")

IDLE: dict[str, dict[str, Any]] = {
    "l2": {"strength": 0.0},
    "ewc": {"strength": 0.0},
    "ewc-online": {"strength": 0.0},
    "er": {"capacity": 0},
}
KEEPS_POLICIES = ("scn", "ftn", "frz", "pnn", "hispo")
ONE_NETWORK = ("sc1", "scn", "ft1", "ftn", "frz", "er", "rpl", "l2", "ewc", "ewc-online")


@pytest.fixture(scope="module")
def sequential() -> Played:
    # It is made before the fixture of the module's tests takes effect, and another number of threads gives other bits.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    played = Played("sequential")
    torch.set_num_threads(threads)
    return played


@pytest.mark.parametrize("learner", IDLE)
def test_without_their_means_they_are_sequential_to_the_bit(learner: str, sequential: Played) -> None:
    idle = Played(learner, **IDLE[learner])
    assert idle.losses == sequential.losses
    assert same(idle.states[-1]["model"], sequential.states[-1]["model"])
    assert same(idle.learner.optimizer.state_dict(), sequential.learner.optimizer.state_dict())


def test_with_their_means_they_are_not(sequential: Played) -> None:
    for learner in ("l2", "ewc", "ewc-online", "er", "rpl"):
        changes: dict[str, Any] = {"strength": 1e3} if "strength" in LEARNERS[learner].options else {}
        played = Played(learner, stages=2, **changes)
        assert not same(played.states[1]["model"], sequential.states[1]["model"]), learner


def test_after_the_first_task_all_with_one_network_have_the_same_weights(sequential: Played) -> None:
    for learner in ONE_NETWORK:
        played = Played(learner, stages=1)
        assert same(played.states[0]["model"], sequential.states[0]["model"]), learner
        assert torch.equal(played.outputs[0][0], sequential.outputs[0][0]), learner


@pytest.mark.parametrize("learner", KEEPS_POLICIES)
def test_old_tasks_are_played_as_before_to_the_bit(learner: str) -> None:
    changes: dict[str, Any] = {"threshold": 0.0} if learner == "hispo" else {}
    played = Played(learner, **changes)
    for k in range(3):
        for later in range(k + 1, 3):
            assert torch.equal(played.outputs[later][k], played.outputs[k][k]), (k, later)
    if learner != "frz":
        assert not torch.equal(played.outputs[2][2], played.outputs[2][0]), "another task, another policy"


def test_keeping_copies_changes_nothing_about_learning(sequential: Played) -> None:
    copies = Played("ftn")
    for k in range(3):  # so ft1 and ftn have the same fwt_nav
        assert torch.equal(copies.outputs[k][k], sequential.outputs[k][k])


def test_what_is_kept_and_what_is_trained() -> None:
    scn, ftn, frz, sc1 = (Played(name, stages=2) for name in ("scn", "ftn", "frz", "sc1"))
    assert same(scn.states[1]["model"], sc1.states[1]["model"])
    assert not same(scn.states[1]["model"], ftn.states[1]["model"])
    assert same(frz.states[1]["model"], frz.states[0]["model"])
    sizes = {name: p.learner.sizes() for name, p in (("scn", scn), ("ftn", ftn), ("frz", frz), ("sc1", sc1))}
    one = sizes["sc1"].inference
    assert [sizes[name].inference / one for name in ("scn", "ftn", "frz")] == [2, 2, 1]


def test_the_learning_rate_of_each_task_falls_to_zero_and_its_gradient_is_bounded() -> None:
    learner = Played("sequential", stages=0, steps=5, learning_rate=0.02, max_grad_norm=1e-3).learner
    for k in range(2):
        learner.begin(k, learner.setup.data(k))
        rates = []
        for _ in range(5):
            learner.step()
            rates += [group["lr"] for group in learner.optimizer.param_groups]
            norms = [torch.linalg.norm(parameter.grad) for parameter in learner.model.parameters()]
            assert float(torch.stack(norms).norm()) == pytest.approx(1e-3, rel=1e-2), "the loss asks for more"
        assert rates == pytest.approx([0.02 * (1 + np.cos(np.pi * t / 5)) / 2 for t in range(5)])
        learner.end()


def test_joint_learning_draws_from_all_tasks_in_as_many_steps() -> None:
    played = Played("joint", stages=0)
    assert played.setup.steps == 3 * 3
    assert len(played.setup.data(0)) == sum(len(played.stream.dataset(k, 1)) for k in range(3))


def test_joint_learning_holds_all_data(tmp_path: Path) -> None:
    """As much as replay of everything does in the end."""
    joint, replay = (play_loop(tmp_path / name, name).record for name in ("joint", "rpl"))
    assert joint.training_numbers == replay.training_numbers > joint.inference_numbers


def test_replay_of_everything_draws_from_the_data_of_all_tasks_so_far() -> None:
    rpl = Played("rpl").learner
    assert len(rpl._seen) == sum(len(rpl.setup.data(k)) for k in range(3))
    assert rpl.sizes().training - rpl.sizes().inference == 65 * len(rpl._seen)


def test_replay_stores_what_it_says() -> None:
    er = Played("er", batch_size=32)
    rows = er.learner.stored
    assert [len(r) for r in rows] == [10, 10, 10]
    assert all(len(set(r.tolist())) == 10 for r in rows), "drawn without replacement"
    assert er.learner.sizes().training - er.learner.sizes().inference == 30 * 65
    batch = er.learner.draw()  # of task 3, so tasks 1 and 2 are in store
    assert batch["x"].shape == (64, 64)
    rng = np.random.default_rng(0)
    held = torch.cat(
        [torch.from_numpy(er.setup.data(k).take(rows[k].numpy()).draw(np.arange(10), rng)["x"]) for k in range(2)]
    )
    for x in batch["x"][32:]:
        assert (held == x).all(dim=1).any()
    shared = Played("er", capacity=None, capacity_total=31)
    assert [len(r) for r in shared.learner.stored] == [10, 10, 10]
    first = Played("er", stages=1, capacity=None, capacity_total=31).learner.stored[0]
    assert torch.equal(first[:10], shared.learner.stored[0]), "it gives up its last items"


# ---- anchors
def test_merged_anchors_are_the_sum_of_all() -> None:
    torch.manual_seed(0)
    anchors = [(torch.rand(50) * (torch.rand(50) > 0.7), torch.randn(50)) for _ in range(4)]
    omega, centre = anchors[0][0], anchors[0][1]
    for importance, weights in anchors[1:]:
        omega, centre = merge_anchors(omega, centre, importance, weights)
    for _ in range(3):
        theta, other = torch.randn(50, requires_grad=True), torch.randn(50)

        def penalty(at: Tensor) -> Tensor:
            return sum((w * (at - c).square()).sum() for w, c in anchors)  # type: ignore[return-value]

        (gradient,) = torch.autograd.grad(0.5 * penalty(theta), theta)
        torch.testing.assert_close(omega * (theta.detach() - centre), gradient, atol=1e-5, rtol=1e-5)
        merged = (omega * ((theta - centre).square() - (other - centre).square())).sum()
        torch.testing.assert_close(merged, penalty(theta) - penalty(other), atol=1e-4, rtol=1e-4)
    nowhere = omega == 0
    assert nowhere.any()
    assert torch.equal(centre[nowhere], anchors[-1][1][nowhere]), "the weights where nothing matters"


class Gaussian(Model):
    """y ~ N(x w, s²): the Fisher information of w is mean(x²) / s², where the residuals have that variance."""

    def __init__(self, weight: float, deviation: float) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor(weight))
        self.deviation = deviation

    def forward(self, batch: TensorBatch, noise: Any = None) -> Tensor:
        return batch["x"] * self.w

    def log_prob(self, outputs: Tensor, batch: TensorBatch) -> Tensor:
        return -0.5 * ((batch["y"] - outputs) / self.deviation).square()


@pytest.mark.parametrize("fisher", ["example", "minibatch"])
def test_the_fisher_information_of_a_gaussian_mean(fisher: str) -> None:
    x = np.array([0.5, 1.0, 2.0, -1.0, 0.25, 3.0], np.float32)
    residual = np.array([1, -1, 1, 1, -1, -1], np.float32) * 0.4  # of the data's own targets
    y = 0.7 * x + residual
    options = {"strength": 1.0, "fisher": fisher, "fisher_samples": 6}
    data = ArrayDataset({"x": x, "y": y})
    learner = EWC(Setup(Chance(0), lambda: Gaussian(0.7, 0.4), lambda k: data, 1, 2, 1e-3, 1.0, options))
    learner.begin(0, data)
    while not learner.end():
        pass
    score = residual * x / 0.4**2  # the derivative of the log-probability of each example
    if fisher == "example":
        expected = float((x**2).mean() / 0.4**2)  # the closed form, as the squared residuals are the variance
        assert np.mean(score**2) == pytest.approx(expected)
    else:
        order = Chance(0).numpy("fisher", 0, 0).permutation(6)
        expected = float(np.mean(score[order].reshape(3, 2).mean(axis=1) ** 2))
    assert float(learner.omega["w"]) == pytest.approx(expected, rel=1e-5)
    assert float(learner.centre["w"]) == pytest.approx(0.7)


def test_the_online_fisher_information_fades() -> None:
    two = {name: Played("ewc-online", stages=2, fisher_update=name, gamma=0.75) for name in ("mean", "sum")}
    for name, share in (("mean", 0.25), ("sum", 1.0)):
        played = two[name]
        before, after, fresh = played.states[0], played.states[1], Played("ewc-online", stages=1)
        assert same(before["omega"], fresh.states[0]["omega"])
        assert same(after["centre"], after["model"]), "it is around the last weights only"
        played.learner.load(after)
        assert same(played.learner.state(), after)
        own = ewc_of(played, after)
        for weight, value in after["omega"].items():
            torch.testing.assert_close(value, 0.75 * before["omega"][weight] + share * own[weight])
    assert two["sum"].learner.factor == 2
    assert two["mean"].learner.factor == 1


def ewc_of(played: Played, state: dict[str, Any]) -> dict[str, Tensor]:
    """The Fisher information of the last task alone, by ewc at the same weights."""
    other: Any = Played("ewc", stages=0, fisher="minibatch").learner
    other.k, other.data = state["k"], played.setup.data(state["k"])
    other.model.load_state_dict(state["model"])
    while not other.end():
        pass
    found: dict[str, Tensor] = other.omega
    return found


def test_the_penalty_is_added_to_the_gradient() -> None:
    l2 = Played("l2", stages=1, strength=3.0).learner
    with torch.no_grad():
        for parameter in l2.model.parameters():
            parameter += 0.5
            parameter.grad = torch.ones_like(parameter)
    l2.add_penalty()
    for parameter in l2.model.parameters():
        torch.testing.assert_close(parameter.grad, torch.full_like(parameter, 1 + 3.0 * 0.5))


@pytest.mark.parametrize(("update", "factor"), [("mean", 1.0), ("sum", 2.0)])
def test_a_sum_of_fisher_informations_has_no_half(update: str, factor: float) -> None:
    learner = Played("ewc-online", stages=1, fisher_update=update, strength=3.0).learner
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter += 0.5
            parameter.grad = torch.zeros_like(parameter)
    learner.add_penalty()
    for name, parameter in learner.model.named_parameters():
        torch.testing.assert_close(parameter.grad, factor * 3.0 * 0.5 * learner.omega[name])


# ---- columns and subspaces
def test_a_column_reads_the_earlier_ones_and_leaves_them() -> None:
    pnn = Played("pnn", stages=2)
    before, after = pnn.states
    for part in ("columns", "laterals"):
        for name, value in before[part].items():
            assert torch.equal(after[part][name], value), name
    lateral = pnn.learner.laterals[1]
    assert len(lateral) == 3, "layers 2 and 3 and the outputs"
    start: Any = Played("pnn", stages=1)
    start.learner.begin(1, start.setup.data(1))
    for name, value in start.learner.laterals[1].named_parameters():
        assert not torch.equal(dict(lateral.named_parameters())[name], value), f"{name} trains"
    with torch.no_grad():
        pnn.learner.columns[0].trunk.layers[0].weight.add_(1.0)
    assert not torch.equal(pnn.learner.policy(1).outputs(pnn.inputs), pnn.outputs[1][1]), "it reads column 1"


def test_dropout_is_in_the_newest_column_only() -> None:
    learner = Played("pnn", stages=2, dropout=0.5).learner
    batch, noise = learner.draw(), learner.setup.chance.torch("dropout", 1, 0)
    with torch.no_grad():
        plain = learner.outputs(batch, 1)
        assert not torch.equal(learner.outputs(batch, 1, noise), plain)
        learner.columns[1].trunk.dropout = 0.0
        assert torch.equal(learner.outputs(batch, 1, noise), plain), "what it reads of the first column is whole"


def test_a_subspace_keeps_an_anchor_only_where_it_pays() -> None:
    strict = Played("hispo", threshold=1.0)
    assert len(strict.learner.spans[0].anchors) == 1
    assert [alpha.tolist() for alpha in strict.learner.spans[0].alphas] == [[1.0]] * 3
    assert torch.equal(strict.outputs[2][2], strict.outputs[0][0])
    generous = Played("hispo", threshold=0.0, steps=30)
    assert len(generous.learner.spans[0].anchors) == 3
    for k, alpha in enumerate(generous.learner.spans[0].alphas):
        assert len(alpha) == k + 1
        assert alpha.min() >= 0
        assert float(alpha.sum()) == pytest.approx(1, abs=1e-6)
    anchors = generous.learner.spans[0].anchors
    mixed = mix(anchors, generous.learner.spans[0].alphas[1])
    name = "trunk.head.weight"
    by_hand = sum(a * anchor[name] for a, anchor in zip(generous.learner.spans[0].alphas[1], anchors, strict=False))
    torch.testing.assert_close(mixed[name], by_hand)


def test_anchors_that_point_the_same_way_cost() -> None:
    costs = []
    for strength in (0.0, 0.5):
        hispo: Any = Played("hispo", stages=1, strength=strength)
        hispo.learner.begin(1, hispo.setup.data(1))
        loss = hispo.learner.loss(hispo.learner.draw(), hispo.setup.chance.torch("dropout", 1, 0))
        costs.append(loss.item())
    assert costs[1] - costs[0] == pytest.approx(0.5, abs=1e-4), "at the start the new anchor equals the old one"


def test_the_likeness_of_anchors_is_a_mean_over_pairs() -> None:
    span = Span({"w": torch.tensor([1.0, 0.0])})
    assert float(span.likeness()) == 0, "one anchor is like no other"
    span.anchors += [{"w": torch.tensor([0.0, 2.0])}, {"w": torch.tensor([3.0, 3.0])}]
    assert float(span.likeness()) == pytest.approx((0.5 + 0.5) / 3), "of three pairs; that of the old ones is constant"


def test_every_learner_takes_its_own_options_and_no_others() -> None:
    for row in LEARNERS.values():
        args = tiny_args(row.name)
        assert set(args.learner_options()) == set(row.options)
        assert None not in args.learner_options().values()
