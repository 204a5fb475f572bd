"""Draws a red box with SAPIEN and checks the picture. A program of its own, because a broken driver can crash the process.

    python - cuda cpu <mikasa_robo/sim/draw_box.py

tries the devices in turn and exits with code 0 as soon as one of them draws. It needs no package but sapien.
"""

import sys
import warnings

warnings.filterwarnings("ignore")

import sapien  # noqa: E402  (its own imports warn)
import sapien.render  # noqa: E402


def draw(device: str) -> None:
    """Raises RuntimeError where ``device`` ("cpu", "cuda" or "cuda:<number>") cannot draw."""
    sapien.render.set_log_level("off")
    scene = sapien.Scene([sapien.physx.PhysxCpuSystem(), sapien.render.RenderSystem(sapien.Device(device))])
    scene.set_ambient_light([1, 1, 1])
    builder = scene.create_actor_builder()
    builder.add_box_visual(half_size=[0.1, 0.1, 0.1], material=sapien.render.RenderMaterial(base_color=[1, 0, 0, 1]))
    builder.build_static()
    camera = scene.add_camera("camera", width=32, height=32, fovy=1.0, near=0.01, far=10.0)
    camera.entity.set_pose(sapien.Pose([-0.6, 0, 0]))
    scene.update_render()
    camera.take_picture()
    red, green, blue = (float(value) for value in camera.get_picture("Color")[16, 16][:3])
    if not red > 0.2 > max(green, blue):
        raise RuntimeError(f"a red box came out as ({red:.2f}, {green:.2f}, {blue:.2f})")


def main(devices: list[str]) -> None:
    """Tries the devices in turn. Raises the error of the last one."""
    try:
        draw(devices[0])
    except RuntimeError:  # no such device, or none that can draw
        if len(devices) == 1:
            raise
        main(devices[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
