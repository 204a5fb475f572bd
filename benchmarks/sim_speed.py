"""Speed of the batched CPU simulator, compared with ManiSkill's own ways to simulate on a CPU, in one run.

``python benchmarks/sim_speed.py`` measures, on one task and controller with random actions, a reset every 50 steps and
``obs_mode="state"``: ManiSkill's ``num_envs=1``; gymnasium's ``AsyncVectorEnv`` with 2 and 4 processes of ManiSkill's
``CPUGymWrapper``; and `mikasa_robo.sim` at 1, 16, 64 and 256 envs on 1 and 2 threads (and on all cores if there are
more). Each of them is built once. Every round then measures all of them in turn, about a second each, so that a
machine that is busy for a while slows down all of them alike. The best round of each counts.

A second table compares the threads of one process with the worker processes of `mikasa_robo.make_env`, one of either for
each core, on a task of this package in state mode and with images. Two more measurements predict the number of cores from
which workers are faster: the CPU time of a step in the thread that runs Python (which other threads cannot share), for a
whole batch and for a quarter of it, and the CPU time of the main process of the workers. See `predict`.
"""

from __future__ import annotations

import argparse
import csv
import functools
import importlib.metadata
import logging
import multiprocessing
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# worker processes import this file: nothing heavy before they need it
EPISODE = 50
SIZES = (1, 16, 64, 256)
PROCESSES = (2, 4)
GOAL_SINGLE = {64: 10.0, 256: 12.0}
"""How many times as fast as ``num_envs=1`` so many environments should be."""
GOAL_ASYNC, GOAL_MB = 6.0, 8.0
GOAL_ENVS, GOAL_THREADS = 64, 2


def quiet() -> None:
    """One torch thread, as the arrays are small; no warnings of other people's imports in the table."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    import torch

    torch.set_num_threads(1)


@dataclass
class Contender:
    """Something to measure: ``episode()`` runs one episode of all its envs, reset included."""

    name: str
    num_envs: int
    threads: str
    build_s: float
    episode: Callable[[], None]
    close: Callable[[], None]
    steps: int = EPISODE
    """Control steps of an episode."""
    rates: list[float] = field(default_factory=list)
    own_cpu: list[float] = field(default_factory=list)
    """CPU time of this process for one control step or reset, s, of each round."""

    @property
    def best(self) -> float:
        """Env-steps/s in the best round."""
        return max(self.rates)

    def measure(self, seconds: float) -> None:
        """One round: whole episodes, for at least ``seconds``."""
        episodes, start, cpu = 0, time.perf_counter(), time.process_time()
        while True:
            self.episode()
            episodes += 1
            elapsed = time.perf_counter() - start
            if elapsed >= seconds:
                break
        self.rates.append(episodes * self.steps * self.num_envs / elapsed)
        self.own_cpu.append((time.process_time() - cpu) / episodes / (self.steps + 1))


def maniskill_single(task: str, control_mode: str) -> Any:
    """ManiSkill's own environment, without a renderer (which state mode does not use)."""
    import gymnasium as gym
    import mani_skill.envs  # noqa: F401

    return gym.make(
        task, num_envs=1, obs_mode="state", control_mode=control_mode, sim_backend="physx_cpu", render_backend="none"
    )


class WrappedSingle:
    """Makes one env of an ``AsyncVectorEnv``; picklable, so that a fresh process can do it."""

    def __init__(self, task: str, control_mode: str) -> None:
        self.task, self.control_mode = task, control_mode

    def __call__(self) -> Any:
        quiet()
        from mani_skill.utils.wrappers.gymnasium import CPUGymWrapper

        return CPUGymWrapper(maniskill_single(self.task, self.control_mode))


def build_single(task: str, control_mode: str) -> Contender:
    import torch

    start = time.perf_counter()
    env = maniskill_single(task, control_mode)
    env.reset(seed=0)
    build_s = time.perf_counter() - start
    actions = torch.rand(EPISODE, *env.action_space.shape) * 2 - 1

    def episode() -> None:
        env.reset()
        for action in actions:
            env.step(action)

    return Contender("ManiSkill num_envs=1", 1, "-", build_s, episode, env.close)


def build_async(task: str, control_mode: str, processes: int) -> Contender:
    import gymnasium as gym
    import numpy as np

    start = time.perf_counter()
    # spawned, not forked: this process has threads
    env = gym.vector.AsyncVectorEnv([WrappedSingle(task, control_mode)] * processes, context="spawn")
    env.reset(seed=0)
    build_s = time.perf_counter() - start
    shape = env.action_space.shape
    assert shape is not None
    actions = np.random.default_rng(0).uniform(-1, 1, (EPISODE, *shape)).astype(np.float32)

    def episode() -> None:
        env.reset()
        for action in actions:
            env.step(action)

    return Contender(f"AsyncVectorEnv, {processes} processes", processes, "-", build_s, episode, env.close)


def build_ours(task: str, control_mode: str, num_envs: int, threads: int) -> Contender:
    import torch

    from mikasa_robo.sim.env import make

    start = time.perf_counter()
    env = make(
        task,
        num_envs=num_envs,
        obs_mode="state",
        control_mode=control_mode,
        # also a single env: what is measured here is the batched simulator
        sim_backend="physx_cpu_batched",
        sim_threads=threads,
        sim_debug=False,
    )
    env.reset(seed=0)
    build_s = time.perf_counter() - start
    actions = torch.rand(EPISODE, num_envs, env.single_action_space.shape[0]) * 2 - 1

    def episode() -> None:
        env.reset()
        for action in actions:
            env.step(action)

    return Contender("mikasa batched", num_envs, str(threads), build_s, episode, env.close)


# ---------------------------------------------------------------------- threads and worker processes
VEC_ENVS = {"state": 64, "rgb": 16}
VEC_STEPS = {"state": EPISODE, "rgb": 5}
"""Control steps between two resets; a picture takes as long as many steps."""
FEWER = 4
"""The batch is also measured with so many times fewer environments."""
SLOWER_AT_MOST = 0.9
PREDICTED_CORES = (1, 2, 4, 8, 16, 32, 64)


def build_vec(task: str, mode: str, num_envs: int, threads: int, workers: int) -> Contender:
    """One process with ``threads``, or ``workers`` processes if that is not 0."""
    import torch

    import mikasa_robo

    start = time.perf_counter()
    if workers:
        env: Any = mikasa_robo.make_env(task, num_envs, num_workers=workers, obs_mode=mode, sim_debug=False)
    else:
        env = mikasa_robo.make_env(
            task, num_envs, obs_mode=mode, sim_backend="physx_cpu_batched", sim_threads=threads, sim_debug=False
        )
    env.reset(seed=0)
    build_s = time.perf_counter() - start
    steps = VEC_STEPS[mode]
    actions = torch.rand(steps, num_envs, env.get_wrapper_attr("single_action_space").shape[0]) * 2 - 1

    def episode() -> None:
        env.reset()
        for action in actions:
            env.step(action)

    kind = f"{workers} worker process{'es' * (workers > 1)}" if workers else "one process"
    name = f"{mode}, {kind}"
    return Contender(name, num_envs, "1 each" if workers else str(threads), build_s, episode, env.close, steps)


@dataclass(frozen=True)
class Split:
    """Where the CPU time of a control step of one process goes, s."""

    num_envs: int
    serial: float
    """In the thread that runs Python, outside physics: no other thread can take a part of it."""
    shared: float
    """In physics and in the renderer's threads: as many cores as there are can share it."""


def measure_split(task: str, mode: str, num_envs: int, seconds: float) -> Split:
    """Steps a batch on one thread for about ``seconds``."""
    import mikasa_robo

    env: Any = mikasa_robo.make_env(
        task, num_envs, obs_mode=mode, sim_backend="physx_cpu_batched", sim_threads=1, sim_debug=False
    )
    env.reset(seed=0)
    pool = env.unwrapped.scene.px._pool
    physics, run = 0.0, pool.run

    def timed(job: Callable[[int], None]) -> None:
        nonlocal physics
        before = time.thread_time()
        run(job)
        physics += time.thread_time() - before

    env.step(env.action_space.sample())
    pool.run = timed
    steps, start = 0, time.perf_counter()
    main, everybody = time.thread_time(), time.process_time()
    while time.perf_counter() - start < seconds:
        env.step(env.action_space.sample())
        steps += 1
    main, everybody = time.thread_time() - main, time.process_time() - everybody
    env.close()
    return Split(num_envs, (main - physics) / steps, (everybody - main + physics) / steps)


@dataclass(frozen=True)
class Orders:
    """CPU time that the main process takes for an order to one worker, and for each further one, s."""

    one: float
    further: float


def predict(whole: Split, part: Split, orders: Orders, cores: int) -> tuple[float, float]:
    """Env-steps/s of one process with ``cores`` threads, and of ``cores`` worker processes.

    Threads: the serial time of the whole batch, and the shared time divided by the cores. Workers: of the serial time only
    what a part of the batch takes, between ``whole`` and ``part`` a straight line over the number of environments; the
    shared time divided likewise; and the main process's orders, as if no worker worked meanwhile.
    """
    workers = min(cores, whole.num_envs)
    slope = max(0.0, (whole.serial - part.serial) / (whole.num_envs - part.num_envs))
    serial = max(0.0, whole.serial - slope * (whole.num_envs - whole.num_envs / workers))
    threads = whole.serial + whole.shared / workers
    processes = serial + whole.shared / workers + orders.one + orders.further * (workers - 1)
    return whole.num_envs / threads, whole.num_envs / processes


def outlook(mode: str, whole: Split, part: Split, orders: Orders) -> str:
    """What `predict` makes of the measurements, and between how many cores workers are ahead."""
    counts = [n for n in PREDICTED_CORES if n <= whole.num_envs]
    rates = {n: predict(whole, part, orders, n) for n in counts}
    ahead = [n for n in counts if rates[n][1] > rates[n][0]]
    share = whole.shared / (whole.serial + whole.shared)
    return "\n".join(
        [
            f"{mode}, {whole.num_envs} envs: of {1e3 * (whole.serial + whole.shared):.2f} ms CPU time a step threads can "
            f"share {share:.0%}, so that they gain at most {1 / (1 - share):.1f} x; {1e3 * whole.serial:.2f} ms they "
            f"cannot share ({1e3 * part.serial:.2f} ms with {part.num_envs} envs). An order costs the main process "
            f"{1e3 * orders.one:.2f} ms, and {1e3 * orders.further:.2f} ms for each further worker.",
            "Predicted env-steps/s of threads and workers: "
            + "; ".join(f"{n} cores {a:.0f} and {b:.0f} ({b / a:.2f} x)" for n, (a, b) in rates.items()),
            f"Workers should win from {ahead[0]} to {ahead[-1]} cores." if ahead else "Workers should not win.",
        ]
    )


def compare_workers(task: str, rounds: int, seconds: float) -> list[list[str]]:
    """Measures, and prints what comes out. Returns the table of what was measured."""
    rows = [["simulator", "envs", "threads", "env-steps/s", "slowest round", "x threads (median)", "build s"]]
    notes = []
    for mode, num_envs in VEC_ENVS.items():
        count = min(max(2, cores()), num_envs)
        settings = ((1, 0), (count, 0), (1, 1), (1, count))
        contenders = [build_vec(task, mode, num_envs, threads, workers) for threads, workers in settings]
        for contender in contenders:
            contender.episode()
        for i in range(rounds):
            for contender in contenders:
                contender.measure(seconds)
            print(f"{mode}: round {i + 1} of {rounds}", file=sys.stderr)
        _, threads, one, many = contenders
        for c in contenders:
            c.close()
            ratio = f"{against(c, threads):.2f}"
            speeds = [f"{c.best:.0f}", f"{min(c.rates):.0f}"]
            rows.append([c.name, str(c.num_envs), c.threads, *speeds, ratio, f"{c.build_s:.2f}"])
        whole, part = (measure_split(task, mode, n, seconds) for n in (num_envs, num_envs // FEWER))
        least, more = statistics.median(one.own_cpu), statistics.median(many.own_cpu)
        orders = Orders(least, max(0.0, more - least) / (count - 1))
        held = against(many, threads) >= SLOWER_AT_MOST
        notes.append(
            f"{mode}: {count} workers at {against(many, threads):.2f} x {count} threads (goal ≥ {SLOWER_AT_MOST:g}): "
            f"{'yes' if held else 'NO'}\n{outlook(mode, whole, part, orders)}"
        )
    print(f"\n{task}: threads of one process and worker processes, one for each core; best of {rounds} rounds.")
    print(f"{cores()} cores ({processor()}); {versions()}.\n")
    print_table(rows)
    for note in notes:
        print("\n" + note)
    return rows


def against(contender: Contender, other: Contender) -> float:
    """How many times as fast, in the median round."""
    return statistics.median(a / b for a, b in zip(contender.rates, other.rates, strict=True))


def print_table(rows: list[list[str]]) -> None:
    """Header and rows in Markdown."""
    print("| " + " | ".join(rows[0]) + " |")
    print("|---|" + "---:|" * (len(rows[0]) - 1))
    for row in rows[1:]:
        print("| " + " | ".join(row) + " |")


def save(rows: list[list[str]], path: Path | None) -> None:
    """As comma-separated values, where a path is given."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(rows)


def memory_of_a_batch(task: str, control_mode: str, num_envs: int, answer: Any) -> None:
    """In a process of its own: MB of resident memory that a batch adds, per env, after one env paid for the libraries."""
    quiet()
    import gc

    import psutil

    process = psutil.Process()
    first = build_ours(task, control_mode, 1, GOAL_THREADS)
    first.episode()
    first.close()
    gc.collect()
    before = process.memory_info().rss
    batch = build_ours(task, control_mode, num_envs, GOAL_THREADS)
    batch.episode()
    answer.put((process.memory_info().rss - before) / 2**20 / num_envs)
    batch.close()


def memory_per_env(task: str, control_mode: str, num_envs: int) -> float:
    """MB an env, asked of a fresh process."""
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    child = context.Process(target=memory_of_a_batch, args=(task, control_mode, num_envs, answer))
    child.start()
    result = float(answer.get(timeout=300))
    child.join()
    return result


def versions() -> str:
    """What this was measured with."""
    names = ("mani-skill", "sapien", "torch", "gymnasium", "numpy")
    return ", ".join(
        [f"Python {platform.python_version()}", *(f"{name} {importlib.metadata.version(name)}" for name in names)]
    )


def processor() -> str:
    """The processor's name, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def table(contenders: list[Contender], megabytes: float) -> list[list[str]]:
    """Header and rows, in the order given."""
    single = contenders[0].best
    best_async = max(c.best for c in contenders if c.name.startswith("Async"))
    rows = [
        [
            "simulator",
            "envs",
            "threads",
            "env-steps/s",
            "slowest round",
            "x num_envs=1",
            "x best async",
            "MB an env",
            "build s",
        ]
    ]
    for c in contenders:
        ours = c.name.startswith("mikasa") and c.num_envs == max(SIZES)
        rows.append(
            [
                c.name,
                str(c.num_envs),
                c.threads,
                f"{c.best:.0f}",
                f"{min(c.rates):.0f}",
                f"{c.best / single:.2f}",
                f"{c.best / best_async:.2f}",
                f"{megabytes:.2f}" if ours else "",
                f"{c.build_s:.2f}",
            ]
        )
    return rows


def verdict(contenders: list[Contender], megabytes: float) -> str:
    """Whether the goals hold on 2 threads."""
    ours = {c.num_envs: c.best for c in contenders if c.name.startswith("mikasa") and c.threads == str(GOAL_THREADS)}
    parts = []
    for num_envs, goal in GOAL_SINGLE.items():
        ratio = ours[num_envs] / contenders[0].best
        parts.append((f"{num_envs} envs {ratio:.2f} x num_envs=1 (goal ≥ {goal:g})", ratio >= goal))
    best_async = ours[GOAL_ENVS] / max(c.best for c in contenders if c.name.startswith("Async"))
    parts += [
        (f"{GOAL_ENVS} envs {best_async:.2f} x best async (goal ≥ {GOAL_ASYNC:g})", best_async >= GOAL_ASYNC),
        (f"{megabytes:.2f} MB an env (goal < {GOAL_MB:g})", megabytes < GOAL_MB),
    ]
    said = "; ".join(f"{text}: {'yes' if held else 'NO'}" for text, held in parts)
    overall = "hold" if all(held for _, held in parts) else "DO NOT all hold"
    return f"The goals on {GOAL_THREADS} threads {overall}: {said}"


def main(arguments: list[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--task", default="PickCube-v1", help="a task of ManiSkill's (%(default)s)")
    parser.add_argument("--control-mode", default="pd_joint_delta_pos", help="the robot's controller (%(default)s)")
    parser.add_argument("--rounds", type=int, default=4, help="number of rounds; the best one counts (%(default)s)")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one measurement (%(default)s)")
    parser.add_argument("--csv", type=Path, help="also write the table to this CSV file")
    parser.add_argument(
        "--only", choices=("simulators", "workers"), help="one of the two tables; by default both are measured"
    )
    parser.add_argument("--vec-task", default="RememberColor3-v0", help="the second table's task (%(default)s)")
    parser.add_argument("--vec-csv", type=Path, help="also write the second table to this CSV file")
    asked = parser.parse_args(arguments)
    quiet()
    if asked.only != "workers":
        compare_simulators(asked.task, asked.control_mode, asked.rounds, asked.seconds, asked.csv)
    if asked.only != "simulators":
        save(compare_workers(asked.vec_task, asked.rounds, asked.seconds), asked.vec_csv)


def compare_simulators(task: str, mode: str, rounds: int, seconds: float, path: Path | None) -> None:
    """Measures and prints the first table."""
    print(f"memory of {max(SIZES)} envs …", file=sys.stderr)
    megabytes = memory_per_env(task, mode, max(SIZES))

    threads = sorted({1, 2, max(2, cores())})
    builders: list[Callable[[], Contender]] = [functools.partial(build_single, task, mode)]
    builders += [functools.partial(build_async, task, mode, n) for n in PROCESSES]
    builders += [functools.partial(build_ours, task, mode, n, t) for n in SIZES for t in threads if t <= n]
    # the libraries are loaded and warm before anybody's build is timed
    warm = build_ours(task, mode, 2, 1)
    warm.episode()
    warm.close()
    contenders = []
    for build in builders:
        contenders.append(build())
        contenders[-1].episode()
        print(f"built {contenders[-1].name}, {contenders[-1].num_envs} envs", file=sys.stderr)
    for i in range(rounds):
        for contender in contenders:
            contender.measure(seconds)
        print(f"round {i + 1} of {rounds}", file=sys.stderr)
    for contender in contenders:
        contender.close()

    rows = table(contenders, megabytes)
    print(f"\n{task}, {mode}, obs_mode=state, a reset every {EPISODE} steps; best of {rounds} rounds.")
    print(f"{cores()} cores ({processor()}); {versions()}.\n")
    print_table(rows)
    save(rows, path)
    print("\n" + verdict(contenders, megabytes))


if __name__ == "__main__":
    main()
