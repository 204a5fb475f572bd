"""The choice of the simulation backend, and the check of environment indices."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from mikasa_robo import tensors

from .gpu_library import library_file
from .render import drawing_device

BATCHED = "physx_cpu_batched"
"""Name of the backend that simulates many environments on CPU; "physx_cpu" chooses it for ``num_envs > 1``."""
CPU_NAMES = ("cpu", "physx_cpu")
CUDA_NAMES = ("cuda", "gpu", "physx_cuda")


def choose_sim_backend(sim_backend: str, num_envs: int, cuda_available: bool | None = None, draws: bool = False) -> str:
    """The backend that ``sim_backend`` stands for.

    Args:
        sim_backend: "auto", "physx_cpu", "physx_cpu_batched", "physx_cuda" or "physx_cuda:<device number>". "auto" is
            "physx_cuda" if a GPU can simulate and ``num_envs > 1``, else "physx_cpu". It warns if only PhysX's library is
            missing, which SAPIEN would download: "auto" downloads nothing.
        num_envs: number of environments.
        cuda_available: whether a GPU can simulate; None: ask torch for a CUDA device, and for "auto" look for the library.
        draws: whether images are drawn where `drawing_device` says. Only a GPU can draw what a GPU simulates, so "auto" is
            "physx_cpu", with a warning, where the CPU draws.

    Raises:
        ValueError: the name is not known.
        RuntimeError: a CUDA backend without a CUDA device.
    """
    name, _, number = str(sim_backend).partition(":")
    if (number or ":" in str(sim_backend)) and not (number.isdecimal() and name in CUDA_NAMES):
        name = ""  # only CUDA devices have numbers
    if not isinstance(sim_backend, str) or name not in ("auto", BATCHED, *CPU_NAMES, *CUDA_NAMES):
        raise ValueError(
            f"sim_backend={sim_backend!r} is not known: use 'auto', 'physx_cpu' (any num_envs, no GPU needed) or "
            "'physx_cuda' (optionally 'physx_cuda:<device number>')"
        )
    if cuda_available is None:
        cuda_available = torch.cuda.is_available() and (not number or int(number) < torch.cuda.device_count())
        if name == "auto" and cuda_available and num_envs > 1 and not (library := library_file()).is_file():
            warnings.warn(
                f"physics runs on the CPU because {library} is missing; SAPIEN downloads it once with "
                "sim_backend='physx_cuda'. sim_backend='physx_cpu' chooses the CPU without this warning",
                stacklevel=2,
            )
            cuda_available = False
    if name == "auto":
        if not cuda_available or num_envs == 1:
            return "physx_cpu"
        if draws and drawing_device() == "cpu":
            warnings.warn("physics runs on the CPU too: only a GPU can draw what a GPU simulates", stacklevel=2)
            return "physx_cpu"
        return "physx_cuda"
    if name in CUDA_NAMES and not cuda_available:
        raise RuntimeError(
            f"sim_backend={sim_backend!r} needs a CUDA device that torch does not see: use sim_backend='auto' or 'physx_cpu'"
        )
    return sim_backend


def is_batched_cpu(sim_backend: str, num_envs: int) -> bool:
    """Whether a backend that `choose_sim_backend` returned means the batched CPU simulator."""
    return sim_backend == BATCHED or (sim_backend.split(":")[0] in CPU_NAMES and num_envs > 1)


def checked_env_idx(env_idx: Any, num_envs: int, device: torch.device) -> Tensor:
    """The environments that ``env_idx`` names.

    What is on a GPU and stays there is not checked, since that would wait for the GPU.

    Args:
        env_idx: (b,) whole numbers or (N,) bools. Bools on a GPU make Python wait for it, to learn b.
        num_envs: N.
        device: where the result is wanted.

    Returns:
        (b,) int64.

    Raises:
        TypeError: neither whole numbers nor bools.
        ValueError: an environment is named twice, or the number of bools is not N, or none of one is named.
        IndexError: an environment that is not there.
    """
    try:
        index = torch.as_tensor(env_idx).reshape(-1)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"env_idx={env_idx!r}: name environments by whole numbers, or by one bool for each") from None
    if len(index) and (index.is_floating_point() or index.is_complex()):
        raise TypeError(
            f"env_idx={env_idx!r} is {index.dtype}: name environments by whole numbers, or by one bool for each"
        )
    if index.dtype == torch.bool:
        if len(index) != num_envs:
            raise ValueError(f"env_idx has {len(index)} bools for {num_envs} environments: give one for each")
        index = torch.nonzero(index).reshape(-1)
    index = index.to(torch.int64)
    if not tensors.reads_wait(device):
        # waits for the copy from a GPU: the numbers are read below
        index = index.to(device)
    if num_envs == 1 and not len(index):  # ManiSkill's simulation of a single environment cannot reset none
        raise ValueError("env_idx=[] names no environment: name 0, or leave it out")
    if not tensors.reads_wait(index.device):
        if len(index.unique()) != len(index):
            raise ValueError(f"env_idx={index.tolist()} names an env twice")
        if len(index) and (int(index.min()) < 0 or int(index.max()) >= num_envs):
            raise IndexError(f"env_idx={index.tolist()} names an env outside 0…{num_envs - 1}")
    return index.to(device, non_blocking=True)
