"""The table of tasks against memories: made from runs and from a CSV that nobody trained here."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import mikasa_base
from benchmarks.memory_table import aggregate_table, document, draw, in_words, main, on_one_scale
from mikasa_robo.catalog import CATALOG
from mikasa_robo.tools.env_ids import OptionError
from mikasa_robo.tools.sweep_plan import PlannedRun, read_plan
from mikasa_robo.tools.sweep_rows import Row, delay_of, gather, read_csv, read_run, write_csv

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HOME = Path(__file__).parent.parent / "docs" / "results" / "memory-table"
SWEEP = """
out = "{out}"
tasks = {tasks}
seeds = [1, 2]
variant = [
    {{ name = "gru", algorithm = "dagger", options = {{ memory = "gru" }} }},
    {{ name = "none", algorithm = "dagger", options = {{ memory = "none" }} }},
]
[options.dagger]
total_timesteps = 61_440
"""


def finish(folder: Path, env_id: str, memory: str, seed: int, success: float | None, algorithm: str = "dagger") -> None:
    """Write what a finished run leaves."""
    folder.mkdir(parents=True)
    (folder / "progress.csv").write_text("step,imitation/total_updates\n3840,250\n61440,1900\n")
    final = {"episodes": 100, "return": 30.5} | ({} if success is None else {"success_once": success})
    args = {"memory": memory, "variant": memory, "total_timesteps": 61440}
    result = {"env_id": env_id, "algorithm": algorithm, "seed": seed, "training_steps": 61440, "wall_time_s": 1800.0}
    (folder / "final_eval.json").write_text(
        json.dumps(result | {"final": final, "args": args, "git": {"revision": "0123456789abcdef"}})
    )


def table_of(file: Path) -> dict[str, list[str]]:
    """The cells of all tables, by their first column; of the first table that has it."""
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row[1:] for row in reversed(cells)}


def test_a_memory_with_one_task_does_not_take_the_others_from_the_mean() -> None:
    pytest.importorskip("rliable")
    lines: list[tuple[str, int | None]] = [("RememberColor3-v0", None), ("TakeItBack-v0", None)]
    row = Row(lines[0][0], "gru", "gru", None, 1, 61440, 1900, 100, 90, 30.5, 1800.0, "0123456789")
    cells = {(line, memory): [row] for line in lines for memory in ("gru", "lstm")}
    whole = aggregate_table(cells, lines, ["gru", "lstm", "none"])
    assert whole[0] == "| kind of memory | tasks | gru | lstm |"
    cells[lines[0], "none"] = [row]
    assert aggregate_table(cells, lines, ["gru", "lstm", "none"]) == [
        *whole,
        "",
        "Left out of these means, because only one task has a run of them: `none`.",
    ]


@pytest.mark.slow
def test_runs_become_rows_and_the_csv_goes_on_without_their_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rliable")
    tasks = ["RememberColor3-v0", "TakeItBack-v0"]
    sweep, out = tmp_path / "sweep.toml", tmp_path / "runs"
    sweep.write_text(SWEEP.format(out=out, tasks=json.dumps(tasks)))
    with pytest.raises(SystemExit, match="run the sweep first"):
        main([str(sweep)])
    finish(out / "RememberColor3-v0__gru__1", tasks[0], "gru", 1, 0.98)
    finish(out / "RememberColor3-v0__none__1", tasks[0], "none", 1, 0.35)
    main([str(sweep)])
    rows = read_csv(tmp_path / "sweep.csv")
    assert rows[0] == Row(tasks[0], "gru", "gru", None, 1, 61440, 1900, 100, 98, 30.5, 1800.0, "0123456789")
    assert [row.successes for row in rows] == [98, 35]
    assert max(map(len, (tmp_path / "sweep.md").read_text().splitlines()[:8])) <= 128
    text = " ".join((tmp_path / "sweep.md").read_text().split())
    assert table_of(tmp_path / "sweep.md")["`RememberColor3-v0`"] == [
        "object",
        "33.3",
        "98 (93 to 99)",
        "35 (26 to 45)",
    ]
    assert "**Missing: 6 of 8 runs** (2 of seed 1, 4 of seed 2); nothing was measured of `TakeItBack-v0`." in text
    assert "61,440 env steps and 1,900 gradient steps" in text
    assert "2 runs took 1.0 hours" in text
    assert "No mean over tasks" in text
    assert "Over seeds" not in text, "each cell has one"

    # The machine of the first runs is gone, and another has made the rest but one.
    for folder in out.iterdir():
        folder.rename(tmp_path / folder.name)
    finish(out / "RememberColor3-v0__gru__2", tasks[0], "gru", 2, 1.0)
    finish(out / "RememberColor3-v0__none__2", tasks[0], "none", 2, 0.25)
    finish(out / "TakeItBack-v0__gru__1", tasks[1], "gru", 1, 0.9)
    finish(out / "TakeItBack-v0__gru__2__attempt-2", tasks[1], "gru", 2, 0.7)
    finish(out / "TakeItBack-v0__none__1", tasks[1], "none", 1, 0.0)
    (out / "TakeItBack-v0__gru__2").mkdir()
    (out / "TakeItBack-v0__gru__2" / "progress.csv").touch()
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- memory-table -->\nold\n<!-- memory-table -->\nafter\n")
    main([str(sweep), "--readme", str(readme)])
    assert "7 runs, 5 of them new" in capsys.readouterr().out
    rows = read_csv(tmp_path / "sweep.csv")
    assert [row.key for row in rows if row.env_id == tasks[0]] == [
        (tasks[0], "gru", 1),
        (tasks[0], "gru", 2),
        (tasks[0], "none", 1),
        (tasks[0], "none", 2),
    ]
    found = table_of(tmp_path / "sweep.md")
    assert found["`RememberColor3-v0`"][2:] == ["99 (96 to 100)", "30 (24 to 37)"], "over both seeds"
    assert found["`TakeItBack-v0`"] == ["spatial", "-", "80 (74 to 85)", "0 (0 to 4)"]
    by_seed = (tmp_path / "sweep.md").read_text().split("## Over seeds")[1].split("## Over tasks")[0]
    assert [line for line in by_seed.splitlines() if line.startswith("| `")] == [
        "| `RememberColor3-v0` | gru | 98, 100 | 99.0 ± 1.0 |",
        "| `RememberColor3-v0` | none | 35, 25 | 30.0 ± 5.0 |",
        "| `TakeItBack-v0` | gru | 90, 70 | 80.0 ± 10.0 |",
    ]
    assert found["all"][0] == "2"
    assert found["all"][1].startswith("94 ("), "the middle two of 98, 100, 90 and 70 %"
    assert found["all"][2] == "18", "without an interval: one run of the task with the fewest"
    assert found["spatial"][1].startswith("80 ("), "of one task: both runs"
    assert "as many of each as the task\nwith the fewest has" in (tmp_path / "sweep.md").read_text()
    assert (tmp_path / "sweep.png").stat().st_size > 0
    assert "![sweep](sweep.png)" in (tmp_path / "sweep.md").read_text()
    shown = readme.read_text()
    assert shown.startswith("before\n<!-- memory-table -->\n| ID |")
    assert shown.endswith("<!-- memory-table -->\nafter\n")
    assert "99 (96 to 100)" in shown
    assert "old" not in shown
    # the README has one row of each family
    more = ["RememberColor3-v0", "RememberColor5-v0", "TakeItBack-v0"]
    sweep.write_text(SWEEP.format(out=out, tasks=json.dumps(more)))
    finish(out / "RememberColor5-v0__gru__1", "RememberColor5-v0", "gru", 1, 0.97)
    main([str(sweep), "--readme", str(readme)])
    assert "`RememberColor5-v0`" in table_of(tmp_path / "sweep.md")
    assert {name for name in table_of(readme) if "-v0" in name} == {"`RememberColor3-v0`", "`TakeItBack-v0`"}


def test_a_sweep_of_delays_has_a_line_for_each(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    sweep = tmp_path / "delays.toml"
    variant = (
        '{{ name = "{0}-{1}", algorithm = "dagger", options = {{ memory = "{0}", env_kwargs = ["delay_steps={1}"] }} }}'
    )
    variants = ", ".join(variant.format(memory, delay) for memory in ("gru", "none") for delay in (5, 50))
    sweep.write_text(
        f'out = "{tmp_path}/runs"\ntasks = ["RememberColor3-v0"]\nseeds = [1]\nvariant = [{variants}]\n'
        "[options.dagger]\ntotal_timesteps = 61_440\n"
    )
    runs = (("gru-5", "gru", 5, 1.0), ("gru-50", "gru", 50, 0.6), ("none-5", "none", 5, 0.3))
    for name, memory, delay, success in runs:
        folder = tmp_path / "runs" / f"RememberColor3-v0__{name}__1"
        finish(folder, "RememberColor3-v0", memory, 1, success)
        file = folder / "final_eval.json"
        changed = f'"variant": "{name}", "env_kwargs": ["delay_steps={delay}"]'
        file.write_text(file.read_text().replace(f'"variant": "{memory}"', changed))
    main([str(sweep)])
    assert [(row.memory, row.delay, row.successes) for row in read_csv(tmp_path / "delays.csv")] == [
        ("gru", 5, 100),
        ("gru", 50, 60),
        ("none", 5, 30),
    ]
    lines = [line for line in (tmp_path / "delays.md").read_text().splitlines() if line.startswith("| `")]
    assert [line.split(" | ")[3:] for line in lines] == [
        ["5", "100 (96 to 100)", "30 (22 to 40) |"],
        ["50", "60 (50 to 69)", "- |"],
    ]
    assert (tmp_path / "delays.png").stat().st_size > 0

    second = replace(read_csv(tmp_path / "delays.csv")[1], seed=2, successes=80)
    write_csv(tmp_path / "delays.csv", [*read_csv(tmp_path / "delays.csv"), second])
    sweep.write_text(sweep.read_text().replace("seeds = [1]", "seeds = [1, 2]"))
    main([str(sweep)])
    assert "| `RememberColor3-v0`, delay 50 | gru | 60, 80 | 70.0 ± 10.0 |" in (tmp_path / "delays.md").read_text()


def test_chance_is_that_of_the_task_with_its_arguments(tmp_path: Path) -> None:
    text = SWEEP.format(out=tmp_path / "runs", tasks='["RememberColor9-v0"]')
    row = Row("RememberColor9-v0", "gru", "gru", None, 1, 61440, 1900, 100, 30, 30.5, 1800.0, "0123456789")
    sweep = tmp_path / "sweep.toml"
    for words, told in (("[]", "11.1"), ('["n=3", "arm=held"]', "33.3"), ('["on_mistake=ignore"]', "-")):
        sweep.write_text(f"{text}env_kwargs = {words}\n")
        lines = document(read_plan(sweep), [row], sweep, None).splitlines()
        assert f"| `RememberColor9-v0` | object | {told} | 30 (22 to 40) | - |" in lines


def test_tasks_of_a_sweep_of_delays_have_lines_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    axes = pytest.importorskip("matplotlib.axes").Axes
    sweep = tmp_path / "delays.toml"
    options = '{{ memory = "gru", env_kwargs = ["delay_steps={0}"] }}'
    variant = '{{ name = "gru-{0}", algorithm = "dagger", options = ' + options + " }}"
    variants = ", ".join(variant.format(delay) for delay in (5, 50))
    tasks = ["RememberColor3-v0", "RememberShape3-v0"]
    sweep.write_text(f'out = "{tmp_path}/runs"\ntasks = {json.dumps(tasks)}\nseeds = [1]\nvariant = [{variants}]\n')
    rows = [
        Row(task, f"gru-{delay}", "gru", delay, 1, 61440, 1900, 100, 90, 30.5, 1800.0, "0123456789")
        for task in tasks
        for delay in (5, 50)
    ]
    drawn: list[tuple[list[int], str]] = []
    monkeypatch.setattr(axes, "plot", lambda self, x, y, label, **_: drawn.append((x, label)))
    assert draw(read_plan(sweep), rows, tmp_path / "delays.png")
    assert drawn == [([5, 50], f"gru, {task}") for task in tasks]


def test_the_title_says_what_the_columns_are(tmp_path: Path) -> None:
    sweep = tmp_path / "colors.toml"
    row = Row("RememberColor3-v0", "gru", "gru", None, 1, 61440, 1900, 100, 90, 30.5, 1800.0, "0123456789")
    for memories, columns, title in (
        (["gru"], "memory", "Tasks"),
        (["gru", "lstm"], "memory", "Memories"),
        (["gru", "lstm"], "variant", "Algorithms"),
    ):
        variants = ", ".join(
            f'{{ name = "{m}", algorithm = "dagger", options = {{ memory = "{m}" }} }}' for m in memories
        )
        sweep.write_text(f'out = "runs"\ntasks = ["RememberColor3-v0"]\nseeds = [1]\nvariant = [{variants}]\n')
        assert document(read_plan(sweep), [row], sweep, None, columns).startswith(f"# {title}: colors\n")


def test_returns_are_told_where_there_is_no_success() -> None:
    one, other = (
        Row("MemoryLengthEasy-v0", "gru", "gru", None, seed, 9, None, 100, None, mean, 1.0, "a")
        for seed, mean in ((1, 0.5), (2, 0.9))
    )
    assert in_words([one]) == "0.50"
    assert in_words([one, other]) == "0.70 ± 0.20"
    assert in_words(None) == "-"


def test_returns_are_put_on_one_scale() -> None:
    """0 is an agent without memory, and 1 one with perfect memory."""
    cards = mikasa_base.VARIANTS["MemoryCardsEasy-v0"]
    assert cards.memoryless is not None
    assert cards.perfect is not None
    middle = (cards.memoryless + cards.perfect) / 2
    told = [cards.memoryless, cards.perfect, middle]
    rows = [
        Row(cards.id, "gru", "gru", None, seed, 9, None, 100, None, mean, 1.0, "a") for seed, mean in enumerate(told)
    ]
    robot = Row("TakeItBack-v0", "gru", "gru", None, 1, 9, None, 100, 90, 5.0, 1.0, "a")
    # nobody's; memory brings nothing there; its scores are success rates
    others = [replace(rows[0], env_id=name) for name in ("CartPole-v1", "LabyrinthExplore-v0", "MysteryPath-v0")]
    assert [row.score for row in on_one_scale([*rows, robot, *others])] == pytest.approx([0.0, 1.0, 0.5, 0.9])


def test_returns_stand_beside_those_of_scripted_agents(tmp_path: Path) -> None:
    pytest.importorskip("rliable")
    tasks = ["MemoryLengthEasy-v0", "MemoryCardsEasy-v0"]
    sweep, out = tmp_path / "sweep.toml", tmp_path / "runs"
    sweep.write_text(SWEEP.format(out=out, tasks=json.dumps(tasks)))
    for task in tasks:
        finish(out / f"{task}__none__1", task, "none", 1, None)
        finish(out / f"{task}__gru__1", task, "gru", 1, None)
    main([str(sweep)])
    rows = table_of(tmp_path / "sweep.md")
    assert rows["ID"] == ["memoryless", "perfect", "gru", "none"]
    for task in tasks:
        memoryless, perfect = mikasa_base.VARIANTS[task].memoryless, mikasa_base.VARIANTS[task].perfect
        assert rows[f"`{task}`"] == [f"{memoryless:.2f}", f"{perfect:.2f}", "30.50", "30.50"]
    assert rows["object"] == ["1", "3050", "3050"]
    assert rows["capacity"][0] == "1"


def test_files_that_do_not_fit_are_named(tmp_path: Path) -> None:
    (tmp_path / "sweep.csv").write_text("a,b\n1,2\n")
    with pytest.raises(OptionError, match="has other columns than env_id"):
        read_csv(tmp_path / "sweep.csv")


ROW = Row("RememberColor3-v0", "gru", "gru", None, 1, 61440, None, 100, None, 30.5, 1800.0, "0123456789")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (",100,", ",,", "line 3 has no episodes; correct the line, or remove it"),
        (",100,", ",0,", "line 3: episodes = 0 is less than 1; correct"),
        (",30.5,", ",many,", "line 3: mean_return = 'many' is not a number of its kind; correct"),
        (",1800.0,0123456789", "", "line 3 has no seconds; correct"),
        ("0123456789", "0123456789,1", "line 3 has more cells than there are columns; correct"),
        ("0123456789", "x" * 131_073, "is no CSV file"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    file = tmp_path / "sweep.csv"
    write_csv(file, [ROW, ROW])
    assert read_csv(file) == [ROW, ROW]
    head, first, second = file.read_text().splitlines()
    assert old in second
    file.write_text("\n".join([head, first, second.replace(old, new), ""]))
    with pytest.raises(OptionError, match=message) as refusal:
        read_csv(file)
    assert str(refusal.value).startswith(f"--csv {file}")


def test_a_disk_that_is_full_does_not_cost_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "sweep.csv"
    write_csv(file, [ROW])

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OptionError, match=r"sweep.csv cannot be written: No space left .*unchanged: make room"):
        write_csv(file, [ROW, ROW])
    assert read_csv(file) == [ROW]
    assert list(tmp_path.iterdir()) == [file]


def test_a_csv_of_other_sweeps_is_refused_and_kept(tmp_path: Path) -> None:
    sweep, file = tmp_path / "sweep.toml", tmp_path / "sweep.csv"
    sweep.write_text(SWEEP.format(out=tmp_path / "runs", tasks='["RememberColor3-v0"]'))
    write_csv(file, [replace(ROW, variant="other")])
    before = file.read_bytes()
    with pytest.raises(SystemExit, match=r"holds none \(1 of other sweeps\); run the sweep first, or name the CSV"):
        main([str(sweep)])
    assert file.read_bytes() == before
    assert not (tmp_path / "sweep.md").exists()


def test_a_run_with_other_options_is_named(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep.toml"
    sweep.write_text(SWEEP.format(out=tmp_path / "runs", tasks='["RememberColor3-v0"]').replace("61_440", "122_880"))
    finish(tmp_path / "runs" / "RememberColor3-v0__gru__1", "RememberColor3-v0", "gru", 1, 0.98)
    with pytest.raises(SystemExit, match=r"sweep.toml: .*is finished with total_timesteps = 61440, and the sweep asks"):
        main([str(sweep)])


def test_the_delay_of_a_run(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep.toml"
    text = SWEEP.format(out=tmp_path, tasks='["RememberColor3-v0"]')
    sweep.write_text(text + 'env_kwargs = "delay_steps=50"\n')
    assert {delay_of(run) for run in read_plan(sweep).runs} == {50}
    assert delay_of(PlannedRun("RememberColor3-v0", "dagger", 1, {"env_kwargs": "delay_steps=5"})) == 5
    assert delay_of(PlannedRun("RememberColor3-v0", "dagger", 1, {"env_kwargs": ["arm=held"]})) is None
    with pytest.raises(OptionError, match="__1: delay_steps=long is not a whole number; write one"):
        delay_of(PlannedRun("RememberColor3-v0", "dagger", 1, {"env_kwargs": ["delay_steps=long"]}))


def test_the_published_sweeps_hold_every_task_and_memory(tmp_path: Path) -> None:
    """Their files are read; one task of each is checked in full, because reading all takes long."""
    sweeps = {name: tomllib.loads((HOME / f"{name}.toml").read_text()) for name in ("table", "delays", "base")}
    memories = {"none", "frame-stack", "lstm", "gru", "mingru", "ffm", "shm", "gtrxl", "transformer"}
    assert sweeps["table"]["tasks"] == [row.id for row in CATALOG.values() if row.paper]
    for content in sweeps.values():
        assert {variant["options"]["memory"] for variant in content["variant"]} == memories
        assert len({content["out"] for content in sweeps.values()}) == 3
    assert len(sweeps["delays"]["variant"]) == 45
    small = tmp_path / "table.toml"
    tasks = "\n".join(f'    "{task}",' for task in sweeps["table"]["tasks"])
    few = ["RememberColor3-v0", "InterceptFast-v0", "BunchOfColors3-v0"]
    general, special = (HOME / "table.toml").read_text().replace(tasks, f"{few}"[1:-1]).split("[task_options", 1)
    # A pattern that fits none of the tasks would be refused.
    kept = [part for part in special.split("[task_options") if part.startswith(('."Intercept', '."*OfColors'))]
    small.write_text("[task_options".join([general, *kept]))
    colors, intercept, bunch = ([run.options for run in read_plan(small).runs[9 * k : 9 * k + 9]] for k in range(3))
    assert all(options["env_kwargs"] == ["arm=held"] for options in colors + bunch)
    assert all(options["env_kwargs"] == [] and options["target_weight"] == 0.0 for options in intercept)
    assert {options["counted_weight"] for options in bunch} == {0.3}
    assert {options["total_timesteps"] for options in colors + intercept} == {92_160}
    assert {options["total_timesteps"] for options in bunch} == {491_520}


def test_columns_can_be_the_variants(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    sweep = tmp_path / "offline.toml"
    variants = ", ".join(
        f'{{ name = "{name}", algorithm = "{algorithm}", options = {{ memory = "gru", dataset = "nowhere" }} }}'
        for name, algorithm in (("bc-gru", "bc"), ("iql", "iql"))
    )
    sweep.write_text(
        f'out = "{tmp_path}/runs"\ntasks = ["RememberColor3-v0"]\nseeds = [1]\nvariant = [{variants}]\n'
        "[options.bc]\ntotal_timesteps = 61_440\n[options.iql]\ntotal_timesteps = 61_440\n"
    )
    for name, algorithm, success in (("bc-gru", "bc", 0.9), ("iql", "iql", 0.4)):
        folder = tmp_path / "runs" / f"RememberColor3-v0__{name}__1"
        finish(folder, "RememberColor3-v0", "gru", 1, success, algorithm)
        file = folder / "final_eval.json"
        file.write_text(file.read_text().replace('"variant": "gru"', f'"variant": "{name}", "dataset": "nowhere"'))
    (tmp_path / "offline.png").write_text("drawn when there were more tasks")
    main([str(sweep), "--columns", "variant"])
    assert "![offline]" not in (tmp_path / "offline.md").read_text(), "one task has no profile"
    assert (tmp_path / "offline.png").exists(), "the earlier picture stays"
    assert {row.env_steps for row in read_csv(tmp_path / "offline.csv")} == {0}, "nothing was played"
    found = table_of(tmp_path / "offline.md")
    assert found["ID"][2:] == ["bc-gru", "iql"]
    assert found["`RememberColor3-v0`"][2:] == ["90 (83 to 94)", "40 (31 to 50)"]


def test_variants_of_one_memory_are_not_averaged(tmp_path: Path) -> None:
    """They share a cell of the memory, as if they were seeds; in columns of their own they do not."""
    pytest.importorskip("matplotlib")
    sweep = tmp_path / "sizes.toml"
    variants = ", ".join(
        f'{{ name = "ffm-{size}", options = {{ memory = "ffm", memory_kwargs = ["memory_size={size}"] }} }}'
        for size in (8, 16)
    )
    sweep.write_text(
        f'out = "{tmp_path}/runs"\ntasks = ["RememberColor3-v0"]\nseeds = [1]\nvariant = [{variants}]\n'.replace(
            ", options", ', algorithm = "dagger", options'
        )
    )
    rows = [Row("RememberColor3-v0", f"ffm-{size}", "ffm", None, 1, 1, 1, 100, size, 1.0, 1.0, "0") for size in (8, 16)]
    write_csv(tmp_path / "sizes.csv", rows)
    with pytest.raises(
        SystemExit, match=r"ffm-8 and ffm-16 both have the memory ffm on RememberColor3-v0.*--columns variant"
    ):
        main([str(sweep)])
    assert not (tmp_path / "sizes.md").exists()
    main([str(sweep), "--columns", "variant"])
    found = table_of(tmp_path / "sizes.md")
    assert found["ID"][2:] == ["ffm-8", "ffm-16"]
    assert [cell.split()[0] for cell in found["`RememberColor3-v0`"][2:]] == ["8", "16"]


def test_a_memory_in_the_current_folder_is_found(tmp_path: Path) -> None:
    """Also by a script, on whose path the current folder is not."""
    (tmp_path / "memories_here.py").write_text(
        "from mikasa_robo.baselines.memory.none import NoMemory\nclass Mine(NoMemory):\n    pass\n"
    )
    (tmp_path / "own.toml").write_text(
        'out = "runs"\ntasks = ["RememberColor3-v0"]\nseeds = [1]\n[[variant]]\nname = "own"\nalgorithm = "dagger"\n'
        'options = { memory = "memories_here:Mine" }\n'
    )
    script = Path(__file__).parents[1] / "benchmarks" / "memory_table.py"
    done = subprocess.run(
        [sys.executable, script, "own.toml"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert "no run of own.toml is finished in runs" in done.stderr, done.stderr


@pytest.mark.parametrize(("algorithm", "steps"), [("sac", 61440), ("bc", 0)])
def test_steps_are_counted_where_they_are_played(algorithm: str, steps: int, tmp_path: Path) -> None:
    """With a dataset behaviour cloning plays nothing, and SAC plays all the same."""
    sweep, run_dir = tmp_path / "sweep.toml", tmp_path / "run"
    sweep.write_text(f'out = "runs"\ntasks = ["RememberColor3-v0"]\nalgorithms = ["{algorithm}"]\nseeds = [1]\n')
    finish(run_dir, "RememberColor3-v0", "none", 1, 0.5, algorithm)
    result = json.loads((run_dir / "final_eval.json").read_text())
    result["args"]["dataset"] = "data"
    (run_dir / "final_eval.json").write_text(json.dumps(result))
    assert read_run(read_plan(sweep).runs[0], run_dir).env_steps == steps


def test_a_run_is_gathered_once_and_with_what_it_has_come_to(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep.toml"
    sweep.write_text(SWEEP.format(out=tmp_path / "runs", tasks='["RememberColor3-v0"]'))
    plan = read_plan(sweep)
    for seed in (1, 2):
        finish(tmp_path / "runs" / f"RememberColor3-v0__gru__{seed}", "RememberColor3-v0", "gru", seed, 0.5)
    known = [replace(ROW, variant="other"), replace(ROW, seed=2), replace(ROW, variant="none")]
    rows = gather(plan, known)
    assert [row.key[1:] for row in rows] == [("gru", 1), ("gru", 2), ("none", 1), ("other", 1)]
    assert rows[1:] == [known[1], known[2], known[0]], "what is known is not read again"
    assert (rows[0].gradient_steps, rows[0].successes, rows[0].score) == (1900, 50, 0.5)


def test_every_success_of_a_run_is_counted(tmp_path: Path) -> None:
    """A rate times the number of episodes may be a little less than their number: 0.29 * 100 is 28.999999999999996."""
    run = PlannedRun("RememberColor3-v0", "dagger", 1, {"env_kwargs": ["delay_steps=5", "delay_steps=50"]})
    for successes in (0, 29, 57, 58, 100):
        finish(tmp_path / str(successes), run.env_id, "gru", 1, successes / 100)
        row = read_run(run, tmp_path / str(successes))
        assert (row.successes, row.episodes, row.score) == (successes, 100, successes / 100)
        assert (row.delay, row.env_steps, row.gradient_steps) == (50, 61440, 1900), "the last delay counts"


def test_a_result_that_lacks_something_is_named(tmp_path: Path) -> None:
    sweep = tmp_path / "one.toml"
    sweep.write_text(
        f'out = "{tmp_path}/runs"\ntasks = ["RememberColor3-v0"]\nseeds = [1]\n'
        'variant = [{ name = "gru", algorithm = "dagger", options = { memory = "gru", total_timesteps = 61_440 } }]\n'
    )
    folder = tmp_path / "runs" / "RememberColor3-v0__gru__1"
    finish(folder, "RememberColor3-v0", "gru", 1, 0.9)
    file = folder / "final_eval.json"
    file.write_text(file.read_text().replace('"episodes"', '"episodez"'))
    with pytest.raises(SystemExit, match=r"final_eval.json is broken \(KeyError: 'episodes'\); move that folder away"):
        main([str(sweep)])


def test_the_sweep_over_data_names_the_data_of_each_task() -> None:
    content = tomllib.loads((HOME.parent / "offline" / "table.toml").read_text())
    assert content["tasks"] == [row.id for row in CATALOG.values() if row.paper]
    assert content["seeds"] == [1, 2, 3]
    assert {variant["algorithm"] for variant in content["variant"]} == {"bc", "dt", "rate", "iql"}
    runs = read_plan(HOME.parent / "offline" / "table.toml").runs
    assert len(runs) == 32 * 6 * 3
    assert all(run.options["dataset"] == f"runs/offline/data/{run.env_id}" for run in runs)
