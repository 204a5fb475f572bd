"""The table of all robot tasks: one row for each ID.

A family of tasks is declared here and in the file that its rows name: the row says how long each phase of an episode
lasts, what has to be remembered, and which class, expert and cameras belong to the task. Registration, the command line,
tests and documentation all read it. This module needs only the standard library.
Source: "Memory, Benchmark & Robots" (MIKASA, arXiv 2502.10550), Table 1 and appendix E.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

__all__ = [
    "BLANK_START",
    "CATALOG",
    "CERTIFICATIONS",
    "DEFAULT_VIEW",
    "CameraView",
    "Certification",
    "MemoryType",
    "TaskSpec",
    "index_by_id",
    "recall_response_steps",
]

MemoryType = Literal["object", "spatial", "capacity", "sequential"]
Certification = Literal["certified", "report held", "body", "weak"]
CERTIFICATIONS: Mapping[Certification, str] = MappingProxyType(
    {
        "certified": "scene and body ruled out",
        "report held": 'body can hold it (report arm="held")',
        "body": "body can hold it even then",
        "weak": "weak",
    }
)
"""What the policies without memory that we tried show about a task: what else than memory can hold the cue."""
Point = tuple[float, float, float]


@dataclass(frozen=True)
class CameraView:
    """A camera: where it is and what it looks at, in m, and its field of view, in rad."""

    eye: Point
    target: Point
    fov: float


DEFAULT_VIEW = CameraView((0.75, 0.0, 0.75), (-0.12, 0.0, 0.08), 0.9)
"""Shows the robot and the table in front of it."""
WHOLE_TABLE = CameraView((0.85, -0.15, 0.75), (-0.1, -0.17, 0.06), 1.05)
"""Shows the path of a ball that rolls across the table."""
NEAR = CameraView((0.7, 0.0, 0.72), (-0.02, 0.0, 0.12), 0.6)
"""Shows the middle of the table."""
ARC = CameraView((0.7, 0.0, 0.65), (-0.05, 0.0, 0.1), 0.78)
"""Shows objects that stand in an arc around the robot."""
AHEAD = CameraView((0.85, 0.0, 0.75), (0.07, 0.0, 0.1), 0.6)
"""Shows the middle of the table and what lies ahead of it."""


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """One row: an ID that ``gymnasium.make`` knows. Durations are in control steps (20 Hz).

    An episode is cue, then delay, then response. In Intercept and InterceptGrab the information stays on view and the
    robot acts while it watches: there the cue is the whole episode, and ``delay`` and ``response`` are 0.

    Raises:
        ValueError: ``cue`` is not a multiple of ``cues``.
    """

    id: str
    family: str
    mode: str = ""
    """What the ID adds to the family, such as ``"3x2"``; empty if the family has one member."""
    memory: MemoryType
    """The kind of memory that the task tests."""
    certification: Certification | None = None
    """What else than memory can hold the cue, see `CERTIFICATIONS`; None if nobody has measured it."""
    paper: bool = True
    """Whether the paper has this task; the others are forms of its tasks that are ours."""
    cue: int
    """Steps in which the information is on view."""
    delay: int = 0
    """Steps between cue and response, in which the information is hidden and acting does not count."""
    response: int
    """Steps in which acting counts."""
    cues: int = 1
    """How many cues are shown one after another; each is on view for ``cue / cues`` steps."""
    oracle: str
    """What a perfect memory would hold."""
    oracle_shape: tuple[int, ...]
    """Its shape for one env."""
    prompt: str | None = None
    """What the agent is told at every step besides its observation, or None."""
    instruction: str
    """The task in one English sentence, for language-conditioned agents."""
    entry_point: str
    """The class, ``"module:Class"``."""
    kwargs: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The constructor arguments that make the class into this mode, kept as a read-only copy."""
    skill: str | None = None
    """The class of the scripted expert's skill, ``"module:Class"``; None if the task has no expert."""
    view: CameraView = DEFAULT_VIEW
    """The camera for videos."""
    gallery: CameraView | None = None
    """The camera for the pictures of the family in the documentation; None if they show another ID, or none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kwargs", MappingProxyType(dict(self.kwargs)))
        if self.cues < 1 or self.cue % self.cues:
            raise ValueError(f"{self.id!r} has cue={self.cue} and cues={self.cues}: cue has to be a multiple of cues")

    @property
    def horizon(self) -> int:
        """Length of an episode, the T of the paper."""
        return self.cue + self.delay + self.response

    @property
    def held_horizon(self) -> int:
        """Length of an episode with ``arm="held"``.

        Where several cues are shown one after another the response is longer by cue and delay, the steps in which a free
        arm can get ready: without them the expert is late. All other tasks have the same length with either arm.
        """
        return self.horizon + (self.cue + self.delay if self.cues > 1 else 0)

    @property
    def can_hold_arm(self) -> bool:
        """Whether ``arm="held"`` has steps to hold the arm in: before the response, or before a ball is hidden."""
        return self.response > 0 or "blank_steps" in self.kwargs

    @property
    def make_kwargs(self) -> dict[str, Any]:
        """All that the constructor is given: the lengths of the phases and ``kwargs``, which win."""
        phases = {"cue_steps": self.cue // self.cues, "delay_steps": self.delay, "response_steps": self.response}
        return phases | dict(self.kwargs)


def index_by_id(rows: Iterable[TaskSpec]) -> Mapping[str, TaskSpec]:
    """Return ``rows`` by ID, in their order, as a read-only mapping.

    Raises:
        ValueError: two rows have the same ID.
    """
    table: dict[str, TaskSpec] = {}
    for row in rows:
        if row.id in table:
            raise ValueError(f"Two catalog rows have the ID {row.id!r}; rename the mode {row.mode!r} of one of them.")
        table[row.id] = row
    return MappingProxyType(table)


def recall_response_steps(n: int, ordered: bool) -> int:
    """Response of SeqOfColors (any order) and ChainOfColors (``ordered``) with ``n`` cubes, each shown for 5 steps.

    The paper's T = 120 leaves 115 - 5n steps. That is enough for the scripted expert up to seven cubes in any order, and up
    to five in a given one (47 of 48 episodes each with seven and with five cubes). It is not for eight cubes in any order:
    the expert touches them in time in 31 of 64 episodes, and with 88 steps in all. Six cubes and more in a given order get
    15 n + 35 steps: with T = 120 the expert touches seven in time in 29 % of 48 episodes.
    """
    return max(115 - 5 * n, 15 * n + 35) if ordered and n > 5 else 115 - 5 * n


def _family(
    family: str,
    modes: Mapping[str, Mapping[str, Any]],
    *,
    memory: MemoryType,
    certification: Certification | None = None,
    paper: bool = True,
    cue: int,
    cues: int | Callable[..., int] = 1,
    delay: int = 0,
    response: int | Callable[..., int] = 0,
    oracle: str,
    oracle_shape: tuple[int, ...] | Callable[..., tuple[int, ...]],
    instruction: str,
    words: Mapping[str, str] | None = None,
    prompt: str | None = None,
    entry_point: str,
    skill: str | Mapping[str, str],
    view: CameraView = DEFAULT_VIEW,
    gallery: tuple[str, CameraView] | None = None,
) -> Iterator[TaskSpec]:
    """Yield a row for each mode.

    ``cue`` is the length of each of the ``cues``. ``cues``, ``response`` and ``oracle_shape`` may be computed from the
    mode's constructor arguments; ``instruction`` may name these and, as ``{words}``, the mode's own words. ``skill`` may
    differ by mode. ``gallery`` is the mode that the documentation shows and the camera for it, None if it shows none.
    """
    for mode, kwargs in modes.items():
        count = cues(**kwargs) if callable(cues) else cues
        yield TaskSpec(
            id=f"{family}{mode}-v0",
            family=family,
            mode=mode,
            memory=memory,
            certification=certification,
            paper=paper,
            cue=cue * count,
            delay=delay,
            response=response(**kwargs) if callable(response) else response,
            cues=count,
            oracle=oracle,
            oracle_shape=oracle_shape(**kwargs) if callable(oracle_shape) else oracle_shape,
            prompt=prompt,
            instruction=instruction.format(**kwargs, words=(words or {}).get(mode, "")),
            entry_point=entry_point,
            kwargs=kwargs,
            skill=skill if isinstance(skill, str) else skill[mode],
            view=view,
            gallery=gallery[1] if gallery is not None and mode == gallery[0] else None,
        )


_SPEEDS = {"Slow": {"speed": "slow"}, "Medium": {"speed": "medium"}, "Fast": {"speed": "fast"}}
_BALL_STEPS = 90  # the ball rolls to the end, so this is T
BLANK_START = 4
"""The first t at which a ball with ``blank_steps`` is hidden: four views before it show how fast it rolls."""
# Hidden from the fifth view to the end, unless the ball is stopped. The drift has to be remembered too, so there is more of
# it than in the paper's form. The paths stay within reach, and are spread so wide that a hand at rest covers few of them.
_HIDDEN = {
    "MediumHidden": {
        "speed": "medium",
        "blank_steps": _BALL_STEPS - BLANK_START,
        "drift_range": (-0.1, 0.15),
        "start_x_range": (-0.3, -0.05),
    },
    "FastHidden": {
        "speed": "fast",
        "blank_steps": _BALL_STEPS - BLANK_START,
        "drift_range": (-0.12, 0.12),
        "start_x_range": (-0.26, -0.12),
    },
}
_SIGNS = {"Pos": {"both_ways": False}, "PosNeg": {"both_ways": True}}
_TURN = {"Pos": "counter-clockwise by the given angle", "PosNeg": "by the given angle, in the direction of its sign"}
_SIGNS_REPLACED = {f"{mode}Replaced": {**kwargs, "recall": "replaced"} for mode, kwargs in _SIGNS.items()}
_POINT = {
    "PosReplaced": "the given angle counter-clockwise of the remembered direction",
    "PosNegReplaced": "the given angle, in the direction of its sign, from the remembered direction",
}
_TOUCH_SKILL = "mikasa_robo.experts.touching:TouchSkill"
_ROTATE_SKILL = "mikasa_robo.experts.rotating:RotateSkill"
_INTERCEPT_SKILL = "mikasa_robo.experts.intercepting:InterceptSkill"


def _counts(*counts: int) -> dict[str, dict[str, int]]:
    return {str(n): {"n": n} for n in counts}


def _rows() -> Iterator[TaskSpec]:
    yield from _family(
        "ShellGame",
        {"Touch": {"mode": "touch"}, "Push": {"mode": "push"}, "Pick": {"mode": "pick"}},
        memory="object",
        certification="report held",
        cue=5,
        response=85,
        oracle="mug with the ball: 0 left, 1 centre, 2 right",
        oracle_shape=(1,),
        instruction="Remember where the red ball lies before the mugs cover it, then {words}.",
        words={
            "Touch": "touch the mug it is under",
            "Push": "push the mug it is under straight ahead into the zone",
            "Pick": "lift the mug it is under off the table",
        },
        entry_point="mikasa_robo.tasks.shell_game:ShellGame",
        skill={
            "Touch": "mikasa_robo.experts.shells:ShellTouchSkill",
            "Push": "mikasa_robo.experts.shells:ShellPushSkill",
            "Pick": "mikasa_robo.experts.shells:ShellPickSkill",
        },
        gallery=("Pick", NEAR),
    )
    yield from _family(
        "Intercept",
        _SPEEDS,
        memory="spatial",
        certification="weak",
        cue=_BALL_STEPS,
        oracle="initial velocity of the ball",
        oracle_shape=(3,),
        instruction="Watch how the ball rolls and guide it so that it comes to rest in the goal disc.",
        entry_point="mikasa_robo.tasks.intercept:Intercept",
        skill=_INTERCEPT_SKILL,
        view=WHOLE_TABLE,
        gallery=("Medium", WHOLE_TABLE),
    )
    yield from _family(
        "InterceptGrab",
        _SPEEDS,
        memory="spatial",
        certification="weak",
        cue=_BALL_STEPS,
        oracle="initial velocity of the ball",
        oracle_shape=(3,),
        instruction="Watch how the ball rolls, catch it with the gripper and lift it off the table.",
        entry_point="mikasa_robo.tasks.intercept_grab:InterceptGrab",
        skill=_INTERCEPT_SKILL,
        view=WHOLE_TABLE,
        gallery=("Medium", WHOLE_TABLE),
    )
    rotate = functools.partial(
        _family,
        oracle="signed angle still to turn",
        oracle_shape=(1,),
        prompt="target angle",
        skill=_ROTATE_SKILL,
    )
    strict = ", without moving its centre away"
    memory: MemoryType
    for family, memory, also, pictured in (
        ("RotateLenient", "spatial", "", "Pos"),
        ("RotateStrict", "object", strict, "PosNeg"),
    ):
        yield from rotate(
            family,
            _SIGNS,
            memory=memory,
            certification="body",
            cue=1,
            response=89,
            instruction="Remember how the peg lies at the start and turn it {words}" + also + ".",
            words=_TURN,
            entry_point=f"mikasa_robo.tasks.rotate:{family}",
            gallery=(pictured, NEAR),
        )
        yield from rotate(
            family,
            _SIGNS_REPLACED,
            memory=memory,
            certification="certified",
            paper=False,
            cue=5,
            delay=5,
            response=110,
            instruction="Remember which way the peg points before it is hidden; where it comes back, turn it until it points"
            " {words}" + also + ".",
            words=_POINT,
            entry_point=f"mikasa_robo.tasks.rotate:{family}",
        )
    yield from _family(
        "TakeItBack",
        {"": {}},
        memory="spatial",
        certification="body",
        cue=1,
        response=179,
        oracle="initial position of the cube",
        oracle_shape=(3,),
        instruction="Push the green cube onto the red disc and, as soon as the disc changes colour, back to its start.",
        entry_point="mikasa_robo.tasks.take_it_back:TakeItBack",
        skill="mikasa_robo.experts.taking_back:TakeItBackSkill",
        gallery=("", AHEAD),
    )
    yield from _family(
        "TakeItBack",
        {"Replaced": {"recall": "replaced"}},
        memory="spatial",
        certification="certified",
        paper=False,
        cue=5,
        delay=5,
        response=170,
        oracle="initial position of the cube",
        oracle_shape=(3,),
        instruction="Remember where the green cube lies before it is hidden; where it comes back, push it onto the red disc"
        " and, as soon as the disc changes colour, to where it lay at first.",
        entry_point="mikasa_robo.tasks.take_it_back:TakeItBack",
        skill="mikasa_robo.experts.taking_back:TakeItBackSkill",
    )
    yield from _family(
        "RememberColor",
        _counts(3, 5, 9),
        memory="object",
        certification="report held",
        cue=5,
        delay=5,
        response=50,
        oracle="index of the true colour",
        oracle_shape=(1,),
        instruction="Remember the colour of the cube on the table, then touch the one of that colour among {n} cubes.",
        entry_point="mikasa_robo.tasks.remember_color:RememberColor",
        skill=_TOUCH_SKILL,
        gallery=("5", ARC),
    )
    yield from _family(
        "RememberShape",
        _counts(3, 5, 9),
        memory="object",
        certification="report held",
        cue=5,
        delay=5,
        response=50,
        oracle="index of the true shape",
        oracle_shape=(1,),
        instruction="Remember the shape of the object on the table, then touch the one with that shape among {n}.",
        entry_point="mikasa_robo.tasks.remember_shape:RememberShape",
        skill=_TOUCH_SKILL,
        gallery=("9", ARC),
    )
    yield from _family(
        "RememberShapeAndColor",
        {f"{shapes}x{colors}": {"shapes": shapes, "colors": colors} for shapes, colors in ((3, 2), (3, 3), (5, 3))},
        memory="object",
        certification="report held",
        cue=5,
        delay=5,
        response=50,
        oracle="index of the true shape, index of the true colour",
        oracle_shape=(2,),
        instruction="Remember the shape and the colour of the object on the table, then touch the one that has"
        " both among objects of {shapes} shapes and {colors} colours.",
        entry_point="mikasa_robo.tasks.remember_shape_and_color:RememberShapeAndColor",
        skill=_TOUCH_SKILL,
        gallery=("3x3", ARC),
    )
    yield from _family(
        "BunchOfColors",
        _counts(3, 5, 7),
        memory="capacity",
        certification="report held",
        cue=5,
        delay=5,
        response=110,
        oracle="the true colour indices",
        oracle_shape=lambda n: (n,),
        instruction="Remember the colours of the {n} cubes shown together, then touch the cubes of these colours, in"
        " any order.",
        entry_point="mikasa_robo.tasks.bunch_of_colors:BunchOfColors",
        skill=_TOUCH_SKILL,
        gallery=("3", NEAR),
    )
    yield from _family(
        "SeqOfColors",
        _counts(3, 5, 7),
        memory="capacity",
        certification="report held",
        cue=5,
        cues=lambda n: n,
        delay=5,
        response=lambda n: recall_response_steps(n, ordered=False),
        oracle="the true colour indices, in the order shown",
        oracle_shape=lambda n: (n,),
        instruction="Remember the colours of the {n} cubes shown one after another, then touch the cubes of these"
        " colours, in any order.",
        entry_point="mikasa_robo.tasks.seq_of_colors:SeqOfColors",
        skill=_TOUCH_SKILL,
        gallery=("3", NEAR),
    )
    yield from _family(
        "ChainOfColors",
        _counts(3, 5, 7),
        memory="sequential",
        certification="report held",
        cue=5,
        cues=lambda n: n,
        delay=5,
        response=lambda n: recall_response_steps(n, ordered=True),
        oracle="the true colour indices, in order",
        oracle_shape=lambda n: (n,),
        instruction="Remember the colours of the {n} cubes shown one after another, then touch the cubes of these"
        " colours in the same order.",
        entry_point="mikasa_robo.tasks.chain_of_colors:ChainOfColors",
        skill=_TOUCH_SKILL,
        gallery=("3", NEAR),
    )
    for family, module, instruction in (
        (
            "Intercept",
            "intercept",
            "Watch how the ball rolls before it is hidden and guide it so that it comes to rest in the goal disc.",
        ),
        (
            "InterceptGrab",
            "intercept_grab",
            "Watch how the ball rolls before it is hidden, catch it with the gripper and lift it up.",
        ),
    ):
        yield from _family(
            family,
            _HIDDEN,
            memory="spatial",
            certification="report held",
            paper=False,
            cue=_BALL_STEPS,
            oracle="initial velocity of the ball",
            oracle_shape=(3,),
            instruction=instruction,
            entry_point=f"mikasa_robo.tasks.{module}:{family}",
            skill=_INTERCEPT_SKILL,
            view=WHOLE_TABLE,
        )


_TABLE: dict[str, TaskSpec] = dict(index_by_id(_rows()))
CATALOG: Mapping[str, TaskSpec] = MappingProxyType(_TABLE)
"""Every task by ID, in the order of the paper's table, followed by those added with `add_row`."""


def add_row(row: TaskSpec) -> None:
    """Add a user's task. Raises ValueError if another row has its ID."""
    if _TABLE.setdefault(row.id, row) != row:
        raise ValueError(f"the ID {row.id!r} is taken by {_TABLE[row.id].entry_point}: choose another")
