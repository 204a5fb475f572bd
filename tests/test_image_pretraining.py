"""Image encoders that are taught on single frames first: what is learnt, what stays fixed, and episodes of features."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from train_helpers import assert_same_policy, break_off

from mikasa_robo.baselines.checkpoints import Checkpoints, load_network
from mikasa_robo.baselines.command import main
from mikasa_robo.baselines.dagger import DAgger
from mikasa_robo.baselines.dagger_arguments import DAggerArgs
from mikasa_robo.baselines.dataset import DatasetBC
from mikasa_robo.baselines.encoder import feature_name
from mikasa_robo.baselines.episodes import Episode, EpisodeBuffer
from mikasa_robo.baselines.image_pretraining import FrameHead, encode_episode, freeze_images, pretrain_images
from mikasa_robo.baselines.imitation import Learner, imitation_loss
from mikasa_robo.baselines.loggers import EpisodeStats
from mikasa_robo.baselines.spaces import ObservationLayout, ObservationPart
from mikasa_robo.baselines.token_policy import TokenPolicy
from mikasa_robo.tools.plot import read_progress

pytestmark = pytest.mark.usefixtures("one_torch_thread")

SIZE = 16
LAYOUT = ObservationLayout(
    (ObservationPart("joints", "vector", (2,)), ObservationPart("rgb", "image", (SIZE, SIZE, 3), 1 / 255))
)
OPTIONS = SimpleNamespace(
    learning_rate=3e-3,
    huber_delta=0.5,
    max_grad_norm=1.0,
    bptt=0,
    loss="huber",
    oracle_weight=0.0,
    counted_weight=0.0,
    target_weight=0.0,
)


def policy(layout: ObservationLayout = LAYOUT) -> TokenPolicy:
    torch.manual_seed(0)
    return TokenPolicy(layout, 1, memory_size=8, head_sizes=(8,))


def episodes(count: int, length: int = 6) -> list[Episode]:
    """The first two frames have one colour, which has to be remembered; the others a bar, whose column is the action or,
    for the colour 1, its negative."""
    g = torch.Generator().manual_seed(1)
    found = []
    for k in range(count):
        images = torch.zeros(length, SIZE, SIZE, 3, dtype=torch.uint8)
        images[:2, ..., k % 2] = 200
        columns = torch.randint(SIZE, (length,), generator=g)
        for t in range(2, length):
            images[t, :, columns[t], 2] = 255
        action = (columns / (SIZE - 1) * 2 - 1) * (1 if k % 2 == 0 else -1)
        known = torch.arange(length) >= 2
        found.append(
            {
                "obs/joints": torch.randn(length, 2, generator=g),
                "obs/rgb": images,
                "labels": action[:, None],
                "carried": known.clone(),
                "known": known,
                "oracle": torch.full((length, 1), k % 2),
            }
        )
    return found


def head_for(network: TokenPolicy) -> FrameHead:
    return FrameHead(network.features, 1, torch.zeros(1, 1, dtype=torch.int64), 2)


def test_features_stand_for_images() -> None:
    network = policy()
    learner = Learner(network, None)
    shown = episodes(3)
    encoded = [encode_episode(network, episode) for episode in shown]
    for one in encoded:
        assert "obs/rgb" not in one
        assert one[f"obs/{feature_name('rgb')}"].shape == (6, 128)
    by_images, figures = imitation_loss(learner, shown, 18.0, OPTIONS)
    by_features, same_figures = imitation_loss(learner, encoded, 18.0, OPTIONS)
    assert torch.allclose(by_images, by_features, atol=1e-6)
    assert torch.allclose(figures, same_figures, atol=1e-6)
    again = encode_episode(network, encoded[0])
    assert again.keys() == encoded[0].keys(), "what has been done is not done twice"


def test_features_stand_for_the_only_part_of_an_observation() -> None:
    network = policy(ObservationLayout((LAYOUT.parts[1],)))
    shown = [{name: value for name, value in one.items() if name != "obs/joints"} for one in episodes(2)]
    encoded = [encode_episode(network, episode) for episode in shown]
    one, _ = imitation_loss(Learner(network, None), shown, 12.0, OPTIONS)
    other, _ = imitation_loss(Learner(network, None), encoded, 12.0, OPTIONS)
    assert torch.allclose(one, other, atol=1e-6)


def test_pretraining_teaches_the_encoder_alone() -> None:
    network = policy()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    head = head_for(network)
    losses = pretrain_images(network, head, episodes(40), 150, OPTIONS, torch.Generator().manual_seed(0))
    assert losses.shape == (150,)
    assert losses[-10:].mean() < 0.2 * losses[:5].mean()
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name]) != name.startswith("images."), name

    # frames that it has not seen: told the colour, it acts; in the cue it tells the colour
    frames = {name: torch.cat([one[name] for one in episodes(50)[40:]]) for name in episodes(1)[0]}
    with torch.no_grad():
        encoded = network.encode(network.normalize({"joints": frames["obs/joints"], "rgb": frames["obs/rgb"]}))
        carried, cue = frames["carried"], ~frames["known"]
        actions = head.act(encoded[carried], frames["oracle"][carried])
        assert (actions - frames["labels"][carried]).abs().mean() < 0.15, "a constant action is off by 0.5"
        lied = head.act(encoded[carried], 1 - frames["oracle"][carried])
        assert (lied + frames["labels"][carried]).abs().mean() < 0.15, "told another colour it acts otherwise"
        assert head.readout(encoded[cue], frames["oracle"][cue])[1].mean() == 1.0


def test_a_set_of_targets_is_told_without_its_order() -> None:
    head = FrameHead(4, 1, torch.tensor([[0, 2]]), 3, as_set=True)
    assert head.readout.linear.out_features == 3
    encoded, one, reversed_, other = (
        torch.randn(5, 4),
        *(torch.tensor([pair] * 5) for pair in ([0, 2], [2, 0], [0, 1])),
    )
    assert torch.equal(head.act(encoded, one), head.act(encoded, reversed_))
    assert not torch.equal(head.act(encoded, one), head.act(encoded, other))
    ordered = FrameHead(4, 1, torch.tensor([[0, 2]]), 3)
    assert not torch.equal(ordered.act(encoded, one), ordered.act(encoded, reversed_))

    frames = {"carried": torch.zeros(5, dtype=torch.bool), "known": torch.zeros(5, dtype=torch.bool)}
    losses = [head.loss(encoded, {**frames, "oracle": told}, 0.5) for told in (one, reversed_, other)]
    assert losses[0] == losses[1] != losses[2]


def test_fixed_encoders_are_not_changed_by_other_steps() -> None:
    network = policy()
    learner = Learner(network, None)
    loss, _ = imitation_loss(learner, episodes(2), 12.0, OPTIONS)
    loss.backward()
    assert all(weight.grad is not None for weight in network.images.parameters())
    freeze_images(network)
    imitation_loss(learner, episodes(2), 12.0, OPTIONS)[0].backward()
    assert all(weight.grad is None for weight in network.images.parameters())
    assert all(weight.grad is not None for weight in network.actor.parameters())


def test_features_are_those_of_an_evaluation() -> None:
    """Without dropout, for an encoder that has some."""
    network = policy()
    network.images[0].register_forward_hook(lambda part, seen, y: torch.nn.functional.dropout(y, 0.5, part.training))
    first, second = (encode_episode(network, episodes(1)[0])[f"obs/{feature_name('rgb')}"] for _ in range(2))
    assert torch.equal(first, second)
    assert network.images[0].training


def test_without_an_action_that_counts_there_is_nothing_to_learn() -> None:
    network = policy()
    shown = episodes(2)
    for one in shown:
        one["carried"][:] = False
    with pytest.raises(ValueError, match="no step"):
        pretrain_images(network, head_for(network), shown, 3, OPTIONS, torch.Generator())


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--obs objects+joints --image-pretraining-updates 5", "--obs objects+joints has no images"),
        ("--obs rgb+joints --image-pretraining-updates -1", "--image-pretraining-updates -1"),
        ("--obs rgb+joints --image-pretraining-steps 0", "--image-pretraining-steps 0"),
        (
            "--obs rgb+joints --image-pretraining-updates 5 --image-pretraining-steps 200000",
            "--image-pretraining-steps 200000 is more than",
        ),
    ],
)
def test_what_cannot_be_used_is_named(
    argv: str, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = [*shlex.split(argv), "--num-envs", "2", "--run-dir", str(tmp_path / "a")]
    assert main("dagger", words) == 2
    assert message in capfd.readouterr().err.strip().splitlines()[-1]
    assert not (tmp_path / "a").exists()


def test_when_and_how_long_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    heads: list[FrameHead] = []

    def counted(network: Any, head: Any, shown: Any, updates: int, args: Any, generator: Any) -> torch.Tensor:
        asked.append(updates)
        heads.append(head)
        return torch.zeros(updates)

    monkeypatch.setattr("mikasa_robo.baselines.dagger.pretrain_images", counted)

    def algorithm(**changes: Any) -> Any:
        one: Any = object.__new__(DAgger)
        one.args = DAggerArgs(**{"num_envs": 16, "num_steps": 60, **changes})
        one.network, one.step, one.images_fixed, one.pretrains_images = policy(), 0, False, True
        one.task, one.generator, one.buffer = SimpleNamespace(objects=[0, 1]), torch.Generator(), EpisodeBuffer(10_000)
        return one

    def due(one: Any) -> int:
        """The step before the first rollout that is followed by pretraining."""
        for one.step in range(0, 9600, 960):
            if one._pretraining_due():
                break
        return int(one.step)

    one = algorithm()
    assert due(one) == 6720
    assert due(algorithm(total_timesteps=7680)) == 960
    assert due(algorithm(image_pretraining_steps=3000)) == 2880
    one.buffer.episodes.extend(episodes(10))
    one.pretrain(torch.zeros(1, 4, 1, dtype=torch.int64))
    assert asked == [8], "one for eight of 60 frames"
    assert one.images_fixed
    assert not one._pretraining_due()
    assert f"obs/{feature_name('rgb')}" in one.buffer.episodes[0]

    many = algorithm()
    many.buffer.episodes.extend(episodes(10) * 200)
    many.pretrain(torch.zeros(1, 4, 1, dtype=torch.int64))
    assert asked[-1] == 1000

    assert not heads[-1].readout.as_set
    unordered = algorithm(oracle_weight=0.3, oracle_as_set=True)
    unordered.buffer.episodes.extend(episodes(10))
    unordered.pretrain(torch.zeros(1, 4, 1, dtype=torch.int64))
    assert heads[-1].readout.as_set


def test_a_dataset_becomes_features_where_the_policy_came_after_it() -> None:
    one: Any = object.__new__(DatasetBC)
    one.args, one.network, one.generator = SimpleNamespace(num_steps=3), policy(), torch.Generator()
    one.recorded, one.images_fixed = True, True
    one.buffer = EpisodeBuffer(10)
    one.buffer.episodes.extend(episodes(4))
    one.validation_episodes = episodes(2)
    batch = one.rollout(SimpleNamespace(num_envs=2), {}, EpisodeStats())
    assert f"obs/{feature_name('rgb')}" in one.buffer.episodes[0]
    assert not any("obs/rgb" in episode for episode in (*one.buffer.episodes, *one.validation_episodes))
    assert len(one.validation_episodes) == 2
    assert batch.obs.keys() == {"joints", feature_name("rgb")}


@pytest.mark.slow
def test_a_run_resumes_with_features_to_the_bit(tmp_path: Path) -> None:
    """Pretraining comes after the second rollout; the run breaks off after the third, which kept features."""
    argv = shlex.split(
        "--env-id RememberColor3-v0 --obs rgb+joints --env-kwargs cue_steps=1 delay_steps=1 response_steps=25 arm=held "
        "--num-envs 2 --num-steps 30 --total-timesteps 240 --warm-start-steps 60 --warm-start-updates 4 "
        "--updates-per-rollout 2 --batch-episodes 2 --image-pretraining-updates 3 --image-pretraining-steps 120 "
        "--memory-size 8 --head-sizes 8 --eval-every 0 --eval-episodes 1 --no-video --checkpoint-every 60 --exact-resume "
        "--checkpoint-buffer --torch-threads 1"
    )
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert main("dagger", [*argv, "--run-dir", str(whole)]) == 0
    rows = read_progress(whole)
    assert [row["imitation/image_updates"] for row in rows if row["imitation/image_updates"]] == ["3.0"]
    assert [float(row["imitation/total_updates"]) for row in rows] == [0.0, 6.0, 8.0, 10.0], "steps wait, then catch up"
    break_off(lambda: main("dagger", [*argv, "--run-dir", str(broken)]), DAgger, "rollout", 3)
    saved = Checkpoints.load_newest(broken)["algorithm_state"]
    assert saved["images_fixed"]
    assert f"obs/{feature_name('rgb')}" in saved["buffer"]["steps"]
    assert "obs/rgb" not in saved["buffer"]["steps"]
    assert main("dagger", ["--resume", str(broken)]) == 0
    assert_same_policy(whole, broken)

    # a run that begins with this policy keeps its encoders, which the rest of it fits
    more = [word for word, before in zip(argv, ["", *argv], strict=False) if "--image-pretraining" not in word + before]
    more += ["--total-timesteps", "120", "--init-from", str(whole), "--run-dir", str(tmp_path / "more")]
    assert main("dagger", more) == 0
    rows = read_progress(tmp_path / "more")
    assert not any(row.get("imitation/image_updates") for row in rows)
    assert float(rows[-1]["imitation/total_updates"]) > 0
    first, second = (load_network(run / "checkpoint.pt").state_dict() for run in (whole, tmp_path / "more"))
    encoders = [name for name in first if name.startswith("images.")]
    assert encoders
    assert all(torch.equal(first[name], second[name]) for name in encoders)
    assert not torch.equal(first["actor.0.weight"], second["actor.0.weight"])
