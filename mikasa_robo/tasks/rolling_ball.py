"""The ball that rolls over the table in Intercept and InterceptGrab."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import torch
from mani_skill.utils.structs import Actor
from torch import Tensor

from mikasa_robo.assets.bodies import BALL_RADIUS, build_ball, build_ball_image
from mikasa_robo.assets.palette import rgba
from mikasa_robo.catalog import BLANK_START
from mikasa_robo.checks import number_range, one_of, one_or_two_numbers, warn_hard, whole_number
from mikasa_robo.core import rewards
from mikasa_robo.core.env import MemoryEnv, StepData
from mikasa_robo.core.phases import MOST_STEPS
from mikasa_robo.core.sampling import Uniforms, between, upright
from mikasa_robo.core.visibility import ObjectLayout
from mikasa_robo.tensors import length, total

SPEEDS: dict[str, tuple[float, float]] = {"slow": (0.25, 0.5), "medium": (0.5, 0.75), "fast": (0.75, 1.0)}
"""m/s along y."""
SPEED_LIMITS = (0.15, 2.0)
"""m/s. A slower ball may come to rest in the disc by itself; a faster one would spin faster than the 100 rad/s that PhysX
allows."""
HARD_SPEED = 1.0
"""m/s. The scripted expert stops 95 % of the balls up to here, 19 of 32 with speeds in (1, 1.2), and 0 of 24 at 2 m/s."""
DRIFT = (0.0, 0.05)  # m/s along x
DRIFT_LIMITS = (-0.3, 0.3)  # m/s
SLOWED = 0.5
"""A hidden ball comes into view once it is slower than this share of its speed at t = 0. By itself it keeps 0.8 of it."""
START_X = (-0.35, -0.05)  # m
START_X_LIMITS = (-0.45, 0.1)  # m
START_Y = (-0.9, -0.65)  # m
START_Y_LIMITS = (-0.9, -0.3)  # m: a ball that starts at the last of them is beside the nearest disc
NEAR_Y = 0.0
"""m, where a ball with the largest head start rests: straight ahead of the robot, at least 0.2 m from the disc's centre."""
DAMPING = 0.05
"""1/s, linear and angular alike, so that the ball keeps rolling without slipping. Over the 1.2 m to the far edge of the
farthest disc it costs the ball 0.06 m/s: the slowest ball of the modes still has 0.19 m/s there. A stopped ball stays
where it is."""

OPEN = 0.03  # m, joint position of a finger that has room for the ball
CLOSED = BALL_RADIUS + 0.005  # m, joint position of a finger that is at most 5 mm from a ball in the middle


def speed_range_of(speed: str, speed_range: Sequence[float] | None) -> tuple[float, float]:
    """Return the range (low, high), m/s, that the constructor arguments ask for. Raises ValueError if one is invalid."""
    named = SPEEDS[one_of("speed", speed, SPEEDS)]
    if speed_range is None:
        return named
    low, high = number_range("speed_range", speed_range, *SPEED_LIMITS, unit="m/s")
    if high > HARD_SPEED:
        warn_hard(
            "speed_range", speed_range, f"beyond {HARD_SPEED:g} m/s our scripted expert succeeds in less than 90 %"
        )
    return low, high


def drift_range_of(drift_range: Sequence[float] | None) -> tuple[float, float]:
    """Return the range (low, high), m/s, that the constructor argument asks for. Raises ValueError if it is invalid."""
    return DRIFT if drift_range is None else number_range("drift_range", drift_range, *DRIFT_LIMITS, unit="m/s")


def start_x_range_of(start_x_range: Sequence[float] | None) -> tuple[float, float]:
    """Return the range (low, high), m, that the constructor argument asks for. Raises ValueError if it is invalid."""
    return START_X if start_x_range is None else number_range("start_x_range", start_x_range, *START_X_LIMITS, unit="m")


def start_y_range_of(start_y_range: Sequence[float] | None) -> tuple[float, float]:
    """Return the range (low, high), m, that the constructor argument asks for. Raises ValueError if it is invalid."""
    return START_Y if start_y_range is None else number_range("start_y_range", start_y_range, *START_Y_LIMITS, unit="m")


class RollRanges(NamedTuple):
    """From which ranges (low, high) an episode's ball is drawn. The defaults are the paper's, with a slow ball."""

    drift: tuple[float, float] = DRIFT  # m/s along x
    speed: tuple[float, float] = SPEEDS["slow"]  # m/s along y
    start_x: tuple[float, float] = START_X  # m
    start_y: tuple[float, float] = START_Y  # m
    head_start: tuple[float, float] = (0.0, 0.0)  # share of the way to `NEAR_Y`, and of the speed

    @property
    def more_draws(self) -> int:
        """Number of uniforms that `sample_roll` takes after its first 4."""
        return int(self.head_start[0] < self.head_start[1])


def sample_roll(u: Uniforms, ranges: RollRanges) -> tuple[Tensor, Tensor]:
    """Draw the ball's start (b, 3), m, and velocity (b, 3), m/s, in float64. Takes 4 uniforms, and `more_draws`."""
    return sample_head_start(u, ranges)[:2]


def sample_head_start(u: Uniforms, ranges: RollRanges) -> tuple[Tensor, Tensor, float | Tensor]:
    """`sample_roll`, and the head start, a share (b,) or one for all."""
    values = u.take(4)
    x, y = between(values[:, 0], *ranges.start_x), between(values[:, 1], *ranges.start_y)
    vx, vy = between(values[:, 2], *ranges.drift), between(values[:, 3], *ranges.speed)
    share: float | Tensor = ranges.head_start[0]
    if ranges.more_draws:
        share = between(u.take(1)[:, 0], *ranges.head_start)
    y, vx, vy = y + share * (NEAR_Y - y), vx * (1 - share), vy * (1 - share)
    return (
        torch.stack([x, y, torch.full_like(x, BALL_RADIUS)], dim=1),
        torch.stack([vx, vy, torch.zeros_like(vx)], dim=1),
        share,
    )


def rolling(velocity: Tensor) -> Tensor:
    """Append to the velocity (…, 3) of a ball, m/s, the angular velocity, rad/s, with which it rolls without slipping."""
    vx, vy, vz = velocity.unbind(-1)
    return torch.stack([vx, vy, vz, -vy / BALL_RADIUS, vx / BALL_RADIUS, torch.zeros_like(vz)], dim=-1)


@dataclass
class RollingState:
    """One row per environment."""

    start: Tensor  # (N, 3) m, where the ball's centre was at t = 0
    velocity: Tensor  # (N, 3) m/s, velocity of the ball at t = 0
    slowed: Tensor  # (N,) bool, something has slowed the ball, so that it is not hidden any more


S = TypeVar("S", bound=RollingState)


class RollingBallTask(MemoryEnv[S]):
    """A red ball, object 0, rolls past the robot, mostly along +y. Acting counts from t = 0.

    In the paper's form the ball is always on view. With ``blank_steps`` it cannot be seen for 4 ≤ t < 4 + blank_steps, or
    until something has slowed it to half of its speed at t = 0: ``objects`` observations flag it as not visible, and it is
    in no image, depth or segmentation of either camera. It rolls on meanwhile, and it can be touched. To get in its way,
    the agent has to remember where it rolled and how fast. But a ball that comes into view while it rolls can be caught
    without a memory, by a hand that waits far along its path. The physical ball has no visual shape; what the cameras see is
    a second, purely visual ball that is moved to it after every control step and parked 1 km above the table while the ball
    is hidden. ``state`` observations, ``oracle`` and the reward hold the ball throughout, as they hold whatever else is
    hidden.

    Args:
        speed: "slow" (0.25…0.5 m/s), "medium" (0.5…0.75 m/s) or "fast" (0.75…1 m/s), along y.
        speed_range: (low, high) of the speed along y, 0.15…2 m/s, in place of the named one.
        drift_range: (low, high) of the speed along x, -0.3…0.3 m/s; None: the paper's, 0…0.05 m/s.
        start_x_range: (low, high) of x at t = 0, -0.45…0.1 m; None: the paper's, -0.35…-0.05 m. With much drift a narrower
            one keeps the ball's way where the arm reaches.
        start_y_range: (low, high) of the ball's y at the start, -0.9…-0.3 m; None: the paper's, -0.9…-0.65 m. For a
            curriculum: ``start_y_range=(-0.5, -0.4)`` with ``speed_range=(0.15, 0.25)`` is a ball that is near and slow.
        head_start: for a curriculum, the share, 0…1, of the ball's way to y = 0 that lies behind it when an episode begins,
            and of its speed that it has lost; 0 is the task itself, and with 1 the ball rests at y = 0, in no disc. Two
            numbers (low, high): each episode draws its own share between them. Do not combine it with more drift than the
            paper's in Intercept: a ball that hardly rolls can then creep into the disc by itself.
        blank_steps: control steps for which the ball is hidden on its way, unless it is slowed before; 0 is the paper's
            form.
        cue_steps: length of the episode in control steps: the cue, the rolling ball, goes on to the end.
        delay_steps, response_steps: 0.
        **kwargs: see `MemoryEnv`; ``on_mistake`` has no effect. ``arm="held"`` needs a blank: it holds the arm for t < 4,
            until the ball is hidden, so that the arm cannot store what the views showed.
    """

    instructed: ClassVar[Mapping[str, Any]] = {"blank_steps": 0}

    def __init__(
        self,
        *args: Any,
        cue_steps: int,
        speed: Literal["slow", "medium", "fast"] = "slow",
        speed_range: Sequence[float] | None = None,
        drift_range: Sequence[float] | None = None,
        start_x_range: Sequence[float] | None = None,
        start_y_range: Sequence[float] | None = None,
        head_start: float | Sequence[float] = 0.0,
        blank_steps: int = 0,
        delay_steps: int = 0,
        response_steps: int = 0,
        **kwargs: Any,
    ) -> None:
        self.speed_range = speed_range_of(speed, speed_range)
        self.drift_range = drift_range_of(drift_range)
        self.start_x_range = start_x_range_of(start_x_range)
        self.start_y_range = start_y_range_of(start_y_range)
        self.head_start = one_or_two_numbers("head_start", head_start, 0, 1)
        self.blank_steps = whole_number("blank_steps", blank_steps, 0, MOST_STEPS, "control steps")
        self.draws = type(self).draws + self.more_draws  # type: ignore[misc]
        for name, value in (("delay_steps", delay_steps), ("response_steps", response_steps)):
            if value != 0:
                raise ValueError(
                    f"{name}={value!r} must be 0: the ball rolls to the end; use cue_steps, and blank_steps to hide it"
                )
        if self.blank_steps:
            self.views_held = BLANK_START  # type: ignore[misc]
            cue_steps = whole_number("cue_steps", cue_steps, 1, MOST_STEPS, "control steps")
            if cue_steps <= BLANK_START:
                raise ValueError(
                    f"blank_steps={blank_steps!r} never hides the ball: an episode of cue_steps={cue_steps} ends before "
                    f"step {BLANK_START}, at which it would be hidden; use more cue_steps, or blank_steps=0"
                )
        self._image_layout: ObjectLayout | None = None
        super().__init__(*args, cue_steps=cue_steps, delay_steps=0, response_steps=0, **kwargs)

    @property
    def roll_ranges(self) -> RollRanges:
        """What `sample_roll` draws from."""
        return RollRanges(self.drift_range, self.speed_range, self.start_x_range, self.start_y_range, self.head_start)

    @property
    def more_draws(self) -> int:
        """Number of uniforms that an episode takes beyond those of the paper's form."""
        return self.roll_ranges.more_draws

    # ------------------------------------------------------------------ the ball and its image
    def build_rolling_ball(self) -> Actor:
        """The ball, object 0; without a visual shape where it can be hidden, see `build_ball_image`."""
        return build_ball(
            self.scene,
            "ball",
            None if self.blank_steps else rgba("red"),
            BALL_RADIUS,
            parked=0,
            linear_damping=DAMPING,
            angular_damping=DAMPING,
        )

    def _load_scene(self, options: dict[str, Any]) -> None:
        super()._load_scene(options)
        if self.blank_steps:
            image = build_ball_image(self.scene, "ball_image", rgba("red"), BALL_RADIUS, parked=len(self.objects))
            self._image_layout = ObjectLayout(self.scene, [image])

    def _initialize_episode(self, env_idx: Tensor, options: dict[str, Any]) -> None:
        super()._initialize_episode(env_idx, options)
        if self._image_layout is not None:
            start = upright(self.task_state.start[env_idx])[:, None]
            on_view = torch.ones(len(env_idx), 1, dtype=torch.bool, device=start.device)
            self._image_layout.reset(on_view, start, None, env_idx)

    def _step_action(self, action: Any) -> Any:
        action = super()._step_action(action)
        if self._image_layout is not None:
            # BaseEnv counts the step only afterwards
            visible = self.on_view(self.task_state, self._elapsed_steps + 1)[:, None]
            ball = upright(self.object_layout.read()[:, 0, :3])[:, None]
            self._image_layout.apply(torch.ones_like(visible), visible, ball)
        return action

    def on_view(self, s: S, elapsed: Tensor) -> Tensor:
        """(N,) bool: the ball can be seen at t = ``elapsed`` (N,)."""
        return (elapsed < BLANK_START) | (elapsed >= BLANK_START + self.blank_steps) | s.slowed

    def update_state(self, s: S, data: StepData, touching: Tensor) -> None:
        """Once something has slowed a hidden ball, it stays on view."""
        if self.blank_steps:
            s.slowed = s.slowed | (length(data.objects[:, 0, 7:10]) <= SLOWED * length(s.velocity))

    def touchable(self, objects: list[Actor]) -> list[Actor]:
        return objects[:1]

    def initial_velocities(self, s: S) -> Tensor:
        start = torch.zeros(len(s.start), len(self.objects), 6, device=s.start.device)
        start[:, 0] = rolling(s.velocity)
        return start

    def layout(self, s: S, elapsed: Tensor) -> tuple[Tensor, Tensor]:
        on_view = torch.ones(len(s.start), 1, dtype=torch.bool, device=s.start.device)
        return on_view, upright(s.start)[:, None]

    def visible_poses(self, s: S, data: StepData) -> tuple[Tensor, Tensor]:
        """The ball without its rotation: it looks the same from all sides, and its spin would reveal its speed."""
        poses = data.objects[..., :7].clone()
        poses[:, 0, 3], poses[:, 0, 4:] = 1.0, 0.0
        visible = self.layout(s, data.elapsed)[0].clone()
        visible[:, 0] = visible[:, 0] & self.on_view(s, data.elapsed)
        return visible, poses

    def oracle(self, s: S) -> Tensor:
        return s.velocity.clone()

    def overlay_facts(self, s: S) -> dict[str, list[str]]:
        speeds = torch.linalg.norm(self.object_layout.read()[:, 0, 7:10], dim=-1)
        return {
            "ball began with": [f"({x:.2f}, {y:.2f}) m/s" for x, y, _ in s.velocity.tolist()],
            "ball now": [f"{speed:.2f} m/s" for speed in speeds.tolist()],
        }

    def state_features(self, s: S, data: StepData) -> dict[str, Tensor]:
        ball = data.objects[:, 0]
        return {
            "start_velocity": s.velocity,
            "ball_velocity": ball[:, 7:10],
            "tcp_to_ball": ball[:, :3] - data.tcp[:, :3],
            "fingers": data.fingers,
        }


def ball_speed(data: StepData) -> Tensor:
    """(N,) speed of the ball's centre over the last control step, m/s."""
    return data.speeds[:, 0]


def at_hand(data: StepData) -> Tensor:
    """(N,) in [0, 1]: `rewards.reach` of the ball by the TCP."""
    return rewards.reach(data.tcp[:, :3], data.objects[:, 0, :3])


def between_fingers(data: StepData) -> Tensor:
    """(N,) bool: the TCP is inside the ball, which then is between the fingers, not against closed ones."""
    return length(data.tcp[:, :3] - data.objects[:, 0, :3]) < BALL_RADIUS


def ready_to_grasp(data: StepData) -> Tensor:
    """(N,) in [0, 1]: 1 for a ball at rest, where a hand with open fingers is about to grasp it.

    Closed fingers stop a ball as well, but cannot grasp it, nor can open ones beside it: PPO stayed with either. From there
    the way to a grasp leads up and over the ball.
    """
    above = rewards.reach_from_above(data.objects[:, 0, :3] - data.tcp[:, :3])
    return rewards.closeness(ball_speed(data)) * above * (data.fingers / OPEN).clamp(max=1)


def distance_to_way(data: StepData) -> Tensor:
    """(N,) distance of the TCP from the straight way that the ball has still before it, m; the way starts at the ball.

    It is that from a ball at rest, or from one that has rolled past. The present distance from a rolling ball would reward
    an arm that runs after it; from its way an arm that waits where it will pass.
    """
    ball, velocity = data.objects[:, 0, :3], data.objects[:, 0, 7:10]
    to_hand = data.tcp[:, :3] - ball
    speed_squared = total((velocity * velocity).unbind(-1))
    # how long the ball takes to pass the hand: never, if it rests
    seconds = total((to_hand * velocity).unbind(-1)) / speed_squared.clamp(min=1e-6)
    return length(to_hand - velocity * seconds.clamp(min=0)[:, None])
