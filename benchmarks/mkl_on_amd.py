"""How much faster gradient steps are on an AMD processor if MKL takes the kernels that it keeps for Intel's processors.

    python benchmarks/mkl_on_amd.py --markdown docs/results/mkl_on_amd.md

torch's wheels for Linux compute matrix products with Intel's MKL, which chooses its kernels by the maker of the processor.
On an AMD processor with AVX-512 it does not use these instructions. A library with one function, loaded before torch, makes
MKL choose by what the processor can do (Daniel de Kok, https://danieldk.eu/Posts/2020-08-31-MKL-Zen.html). It is compiled
here, which needs a C compiler.

The sequence form of `memory_speed.py` is measured, T = 60, in processes with and without that library in turn. CPU time
counts, and the median of the ratios of pairs.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro
from memory_speed import INPUT_SIZE, learn, shortest
from tables import in_markdown, plain, write_text

from mikasa_robo.baselines.loggers import provenance
from mikasa_robo.baselines.memory import make_memory

SOURCE = "int mkl_serv_intel_cpu_true(void) { return 1; }\n"
LENGTH = 60


@dataclass
class Args:
    """Compares gradient steps with MKL's own choice of kernels and with those for Intel's processors."""

    memories: tuple[str, ...] = ("none", "lstm", "gru", "mingru", "gtrxl", "transformer")
    """Which models; see `memory_speed.py`."""
    num_envs: int = 64
    """Environments of a sequence."""
    pairs: int = 5
    """Pairs of processes, one with and one without the library."""
    markdown: Path | None = None
    """The Markdown file of the table; an existing file is replaced."""

    def check(self) -> None:
        """Raises ValueError where a value cannot work."""
        if min(self.num_envs, self.pairs) < 1:
            raise ValueError("--num-envs and --pairs must be at least 1")


def build(folder: Path) -> Path:
    """The library, compiled into ``folder``."""
    source, library = folder / "mkl_kernels.c", folder / "mkl_kernels.so"
    source.write_text(SOURCE)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library


def milliseconds(memory: str, n: int, library: Path | None) -> float:
    """CPU time of one step of a sequence, forward and backward, in a process of its own."""
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    if library is not None:
        env["LD_PRELOAD"] = str(library)
    done = subprocess.run(
        [sys.executable, __file__, "--measure", memory, str(n)], env=env, check=True, capture_output=True, text=True
    )
    return float(done.stdout)


def measure(memory: str, n: int) -> float:
    """CPU time in ms of one step of a sequence in this process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = make_memory(memory, INPUT_SIZE)
    return 1000 * shortest(5, lambda steps: learn(model, n, steps), LENGTH)


def main(args: Args) -> None:
    """Measure, print and write."""
    args.check()
    rows = [["memory", "MKL's choice, ms", "with the library, ms", "times as fast"]]
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        for memory in args.memories:
            pairs = [
                (milliseconds(memory, args.num_envs, None), milliseconds(memory, args.num_envs, library))
                for _ in range(args.pairs)
            ]
            ratio = statistics.median(own / changed for own, changed in pairs)
            own, changed = (statistics.median(column) for column in zip(*pairs, strict=True))
            rows.append([memory, f"{own:.3f}", f"{changed:.3f}", f"{ratio:.2f}"])
            print(plain([rows[0], rows[-1]]), flush=True)
    print(f"\n{plain(rows)}")
    if args.markdown is not None:
        write_text(args.markdown, page(rows, args))


def page(rows: list[list[str]], args: Args) -> str:
    """The Markdown page of the table."""
    processor, capability = provenance([])["hardware"]["cpu"], torch.backends.cpu.get_cpu_capability()
    return (
        "# MKL's kernels on AMD processors\n\nCPU time for one of 60 steps of "
        f"{args.num_envs} environments, forward and backward, one torch thread of {processor} ({capability}, torch "
        f"{torch.__version__}). Medians of {args.pairs} pairs of processes, and of the ratios of pairs. "
        "[How to use the library](../training.md#speed). "
        "torch computes LSTMs with oneDNN instead, which chooses by what the processor can do."
        f"\n\n{in_markdown(rows)}\n\n```bash\npython benchmarks/mkl_on_amd.py --pairs {args.pairs} "
        "--markdown docs/results/mkl_on_amd.md\n```\n"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(measure(sys.argv[2], int(sys.argv[3])))
    else:
        main(tyro.cli(Args))
