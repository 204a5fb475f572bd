"""Whether SAPIEN can draw here: asked of a child process, since a broken Vulkan driver can end the process that asks."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

_PROBE = """
import warnings
warnings.filterwarnings("ignore")
import sys, numpy as np, sapien, sapien.render
sapien.render.set_log_level("off")
scene = sapien.Scene([sapien.physx.PhysxCpuSystem(), sapien.render.RenderSystem(sapien.Device(sys.argv[1]))])
scene.set_ambient_light([1, 1, 1])
builder = scene.create_actor_builder()
builder.add_box_visual(half_size=[1, 1, 1], material=sapien.render.RenderMaterial(base_color=[1, 0, 0, 1]))
builder.set_initial_pose(sapien.Pose([3, 0, 0]))
builder.build_kinematic(name="box")
camera = scene.add_camera("camera", 16, 16, 1.0, 0.01, 10)
scene.update_render()
camera.take_picture()
assert np.asarray(camera.get_picture("Color"))[..., 0].max() > 0, "the picture is black"
"""

MEND = (
    "install a Vulkan driver that SAPIEN can draw with (Debian 12: mesa-vulkan-drivers 25 from bookworm-backports, which "
    "`bash scripts/setup.sh` installs as root; other systems: mesa-vulkan-drivers >= 24 or the GPU vendor's driver), or do "
    "without pictures: obs_mode='state' and render_mode=None need no Vulkan"
)


class RenderingUnavailableError(RuntimeError):
    """Pictures were asked for where SAPIEN cannot draw."""


@functools.cache
def rendering_problem(device: str = "cpu") -> str | None:
    """Why SAPIEN cannot draw on ``device`` ("cpu" or "cuda[:n]"); None where it can. Asked once per process (~2 s)."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE, device],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            env=os.environ | {"PYTHONWARNINGS": "ignore"},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the check of the renderer did not finish: {error}"
    if done.returncode == 0:
        return None
    lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
    return lines[-1] if lines else f"the check of the renderer ended with code {done.returncode}"


def require_rendering(what: str, device: str = "cpu") -> None:
    """Raises `RenderingUnavailableError` that names ``what`` asked for pictures, the problem and the way to mend it."""
    problem = rendering_problem(device)
    if problem is not None:
        raise RenderingUnavailableError(f"{what} needs pictures, but SAPIEN cannot draw here ({problem}): {MEND}")
