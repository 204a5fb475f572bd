"""Memories of a user's own: a fault is named before a run begins, and good ones can be trained, saved and loaded."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from mikasa_robo.baselines.checkpoints import CheckpointError, load_network, load_policy, save_checkpoint
from mikasa_robo.baselines.memory import MEMORIES, make_memory
from mikasa_robo.baselines.memory.contract import check_memory, check_state_device
from mikasa_robo.tools import cli
from mikasa_robo.tools.sweep_plan import SweepError, read_plan

pytestmark = pytest.mark.usefixtures("one_torch_thread")
WORDS = (
    "--env-id MemoryLengthEasy-v0 --preset none --num-envs 4 --num-steps 16 --total-timesteps 128 --no-video "
    "--num-minibatches 2 --update-epochs 1 --eval-episodes 2 --eval-num-envs 2 --stagger-groups 2 --torch-threads 1 "
    "--head-sizes 8 --memory-size 8"
)
SMALL = WORDS.split()
MODES = ("Dropping", "Batches", "NoiseInTraining")
"""They compute something else in train mode. Evaluations are in eval mode, and PPO warns of such layers."""


def own(name: str) -> str:
    return f"toy_memories:{name}"


def train(memory: str, run: Path, *words: str) -> int:
    return cli.main(["train", "ppo", *SMALL, "--memory", memory, "--run-dir", str(run), *words])


# ---------------------------------------------------------------------- what a memory has to fulfil
@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in MEMORIES),
        *(
            (own(name), {})
            for name in ("Good", "WithoutWeights", "LearntStart", "ManyTypes", "Mask", "Numbers", "Items", *MODES)
        ),
        (own("Counting"), {"decay": 0.1}),
        (own("AnyOptions"), {"depth": 3}),
    ],
)
def test_a_good_memory_passes_and_stays_as_it_was(name: str, options: dict[str, Any]) -> None:
    memory = make_memory(name, 8, hidden_size=8, **options)
    weights = {key: value.clone() for key, value in memory.state_dict().items()}
    random = torch.get_rng_state()
    check_memory(memory, options)
    assert torch.equal(torch.get_rng_state(), random)
    assert memory.training
    assert all(torch.equal(value, weights[key]) for key, value in memory.state_dict().items())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NoStep", "it has no step; define it"),
        ("NoInitialState", "it has no initial_state; define it"),
        ("Narrow", r"step returns y of shape \(3, 15\), not \(3, 16\) \(environments, output_size\)"),
        ("Double", "step returns y of type torch.float64; return torch.float32"),
        ("OutputAlone", "step returns a Tensor; return y and the new state"),
        ("Fails", r"step fails with RuntimeError: mat1 and mat2 .* \(toy_memories.py, line \d+\)"),
        ("StateTuple", "initial_state returns a tuple; return a flat dict of tensors"),
        ("Nested", "initial_state returns 'cell' of type dict; return a flat dict of tensors"),
        ("Layers", r"initial_state\(3\) returns 'h' of shape \(2, 3, 16\); its first axis must be the 3 environments"),
        ("OtherNames", r"step returns a state of \['hidden'\], and initial_state one of \['h'\]"),
        ("OtherType", "step returns 'h' of the state as torch.float64, and initial_state as torch.float32"),
        ("Growing", r"step turns 'past' .* \(3, 0, 16\) into \(3, 1, 16\); a state must keep its size"),
        ("NotFinite", "step returns NaN or infinite numbers"),
        ("InPlace", "step changes 'h' of the state that it is given; return new tensors in a new dict"),
        ("SameDict", "step changes 'h' of the state that it is given; return new tensors in a new dict"),
        ("ChangesInput", "step changes its input x or starts"),
        ("InModule", "step gives two results for the same input and state; .* keep what it remembers in the state"),
        ("Noise", "step gives two results for the same input and state; it must draw no random numbers"),
        ("Counter", "a step changes its buffer 'calls'; .* keep this in the state"),
        ("AcrossRows", "what step returns for one environment depends on the others in the batch"),
        ("NeverForgets", "step ignores starts; forget the state"),
        ("StartsAlone", "initial_state must return what an episode begins with"),
        ("ForgetsAll", "step forgets also where starts is False"),
        ("Unequal", "forward_sequence does not give y that step gives; y differs by 0.001"),
        ("OtherEpisodes", "run_episodes does not give y that step gives; y differs by 0.001"),
        ("NoStartsWithin", r"forward_sequence does not give y that step gives where an episode begins .* \(starts\)"),
        ("OldState", "forward_sequence does not give the state that step gives"),
        ("Forgotten", r"a checkpoint would forget the option decay; pass it on: .*hidden_size, decay=decay\)"),
        ("Fixed", "made again from a checkpoint, .* it gives something else; pass every option on"),
        ("NotPlain", r"to_dict\(\)\['size'\] is a type, which a checkpoint cannot hold"),
        ("Unregistered", r"made again .* make every tensor a parameter or a persistent buffer"),
    ],
)
def test_a_fault_of_a_memory_is_named(name: str, message: str) -> None:
    torch.manual_seed(0)
    options = {"decay": 0.1} if name in ("Forgotten", "Fixed") else {}
    memory = make_memory(own(name), 16, hidden_size=16, **options)
    weights = {key: value.clone() for key, value in memory.state_dict().items()}
    random = torch.get_rng_state()
    with pytest.raises(ValueError, match=f"^{name}: .*{message}"):
        check_memory(memory, options)
    assert torch.equal(torch.get_rng_state(), random)
    assert memory.training
    assert all(torch.equal(value, weights[key]) for key, value in memory.state_dict().items())


def test_a_state_that_stays_on_the_cpu_is_named() -> None:
    memory = make_memory(own("OtherPlace"), 4, hidden_size=4)
    check_state_device(memory)
    with pytest.raises(ValueError, match=r"'h' on cpu, and the memory is on meta; make it with device=self.device"):
        check_state_device(memory.to("meta"))


@pytest.mark.parametrize("network", ["recurrent", "tokens"])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["Narrow"], "--memory toy_memories:Narrow: Narrow: step returns y of shape (3, 7), not (3, 8)"),
        (["NoStep"], "--memory toy_memories:NoStep: NoStep: it has no step"),
        (["Forgotten", "--memory-kwargs", "decay=0.1"], "Forgotten decay=0.1: Forgotten: a checkpoint would forget"),
        (["NoWidth"], "the memory 'toy_memories:NoWidth' takes no hidden_size, its width, which is required; define"),
        (["Good", "--memory-kwargs", "depth=2"], "'toy_memories:Good' has no option depth; it takes hidden_size"),
    ],
)
def test_a_run_with_a_faulty_memory_is_refused_before_its_folder_is_made(
    network: str, words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *more = words
    assert train(own(name), tmp_path / "run", "--network", network, *more) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------------- good ones, from training to evaluation
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("WithoutWeights", []),
        ("Lazy", []),
        ("Numbers", []),
        ("Items", []),
        ("Mask", []),
        ("AnyOptions", ["--memory-kwargs", "depth=3"]),
        ("Counting", ["--memory-kwargs", "decay=0.1"]),
    ],
)
def test_a_memory_of_ones_own_is_trained_loaded_and_evaluated(name: str, words: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(own(name), run, *words) == 0
    memory = load_network(run).memory
    if name == "Counting":
        assert memory.decay == 0.1
    evaluated = ["eval", "--checkpoint", str(run), "--memory", own(name), "--episodes", "2"]
    assert cli.main([*evaluated, "--out", str(tmp_path / "e.json")]) == 0


def test_the_weights_of_a_lazy_memory_follow_from_the_seed_of_the_run() -> None:
    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        memory: Any = make_memory(own("Lazy"), 4, hidden_size=4)
        check_memory(memory, {})
        found.append(memory.cell.weight.clone())
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def change(run: Path, name: str, value: float) -> None:
    """Put ``value`` into the weights ``name`` of the checkpoints of a run."""
    for path in run.glob("*.pt"):
        payload = torch.load(path, weights_only=True)
        weights = payload["policy" if "policy" in payload else "state_dict"]
        weights[name].view(-1)[0] = value
        save_checkpoint(path, payload)


def test_infinite_numbers_may_be_in_buffers_but_not_in_parameters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, memory = tmp_path / "run", ["--memory", own("Mask")]
    assert train(own("Mask"), run, "--checkpoint-every", "64", "--keep-checkpoints", "3") == 0
    (run / "final_eval.json").unlink()
    (run / "resume-000000000128.pt").unlink()
    assert bool(load_network(run).memory.mask.isinf().any())
    assert train(own("Mask"), tmp_path / "second", "--init-from", str(run)) == 0

    change(run, "memory.cell.bias", float("inf"))
    problem = "weights 'memory.cell.bias' that are not finite, so training has diverged"
    with pytest.raises(CheckpointError, match=f"{problem}; pass an earlier checkpoint"):
        load_network(run)
    assert train(own("Mask"), tmp_path / "third", "--init-from", str(run)) == 2
    assert f"--init-from {run / 'checkpoint.pt'}: it has {problem}; name an earlier" in capsys.readouterr().err
    assert not (tmp_path / "third").exists()
    assert cli.main(["train", "ppo", "--resume", str(run), *memory]) == 2
    assert problem in capsys.readouterr().err

    change(run, "memory.cell.bias", 0.0)
    change(run, "memory.mask", float("nan"))
    with pytest.raises(CheckpointError, match=r"weights 'memory\.mask' that are not finite"):
        load_network(run)
    assert cli.main(["train", "ppo", "--resume", str(run), *memory]) == 2
    assert "weights 'memory.mask' that are not finite" in capsys.readouterr().err
    change(run, "memory.mask", 0.0)
    assert cli.main(["train", "ppo", "--resume", str(run), *memory]) == 0


@pytest.mark.parametrize("name", ["Good", "Numbers"])
def test_a_file_that_describes_a_huge_memory_takes_no_memory(name: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(own(name), run) == 0
    payload = torch.load(run / "checkpoint.pt", weights_only=True)
    payload["network"]["memory_size"] = 10**7  # weights of 400 TB
    save_checkpoint(run / "checkpoint.pt", payload)
    with pytest.raises(CheckpointError, match=r"the file holds|too many for its weights"):
        load_network(run)


def test_in_python_a_policy_is_loaded_by_the_name_of_its_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert train(own("Good"), run) == 0
    MEMORIES.pop(own("Good"))
    sys.modules.pop("toy_memories")
    with pytest.raises(
        CheckpointError,
        match=r"add --memory toy_memories:Good \(in Python: load_policy\(\.\.\., memory='toy_memories:Good'\)\)",
    ):
        load_policy(run)
    assert "toy_memories" not in sys.modules
    for other in (own("Counting"), "gru"):
        with pytest.raises(CheckpointError, match=f"has the memory 'toy_memories:Good', not '{other}'"):
            load_policy(run, memory=other)
    evaluated = ["eval", "--checkpoint", str(run), "--episodes", "2", "--out", str(tmp_path / "e.json")]
    assert cli.main([*evaluated, "--memory", own("Counting")]) == 2
    said = capsys.readouterr().err
    assert "has the memory 'toy_memories:Good', not 'toy_memories:Counting'; use --memory toy_memories:Good" in said
    policy = load_policy(run, memory=own("Good"))
    assert policy.act(torch.zeros(2, policy.network.layout.width)).shape[0] == 2


@pytest.fixture(scope="module")
def gru(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with a memory of this package."""
    run = tmp_path_factory.mktemp("runs") / "gru"
    assert train("gru", run) == 0
    return run


@pytest.mark.parametrize(
    "words",
    [
        ["eval", "--checkpoint", "RUN", "--episodes", "2"],
        ["probe", "--checkpoint", "RUN"],
        ["serve", "--checkpoint", "RUN", "--port", "0"],
        ["record", "--policy", "RUN", "--env-id", "MemoryLengthEasy-v0"],
    ],
    ids=lambda words: words[0],
)
def test_a_memory_that_the_checkpoint_does_not_have_is_refused(
    words: list[str], gru: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would not be what is played."""
    monkeypatch.chdir(tmp_path)
    words = [str(gru) if word == "RUN" else word for word in words]
    assert cli.main([*words, "--memory", own("Good")]) == 2
    assert "checkpoint.pt has the memory 'gru', not 'toy_memories:Good'; leave it out" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------- sweeps
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Numbers", None),
        ("Items", None),
        ("Lazy", None),
        ("Narrow", "variant own: --memory toy_memories:Narrow: Narrow: step returns y of shape (3, 127)"),
        (
            "NoWidth",
            "variant own: --memory toy_memories:NoWidth: the memory 'toy_memories:NoWidth' takes no hidden_size",
        ),
    ],
)
def test_a_sweep_checks_memories_of_ones_own_before_it_starts(name: str, message: str | None, tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(
        f"""out = "{tmp_path / "out"}"
tasks = ["MemoryLengthEasy-v0"]
seeds = [1]
[[variant]]
name = "own"
algorithm = "ppo"
options = {{ memory = "{own(name)}" }}
"""
    )
    if message is None:
        assert len(read_plan(file).runs) == 1
    else:
        with pytest.raises(SweepError, match=re.escape(message)):
            read_plan(file)
