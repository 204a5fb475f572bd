"""The one table of all robot tasks: what each ID is, how long it lasts, what has to be remembered.

Registration, the command line, tests and documentation all read it. It needs nothing but the standard library.
Source: "Memory, Benchmark & Robots" (MIKASA, arXiv 2502.10550), Table 1 and appendix E.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

__all__ = ["CATALOG", "MemoryType", "TaskSpec", "index_by_id"]

MemoryType = Literal["object", "spatial", "capacity", "sequential"]


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """One row: one ID that ``gymnasium.make`` knows once the task exists. Durations are in control steps (20 Hz).

    An episode is cue, then delay, then response. Where the information is never taken away (Intercept and
    InterceptGrab, whose robot must act while it watches), the cue is the whole episode: ``delay`` and ``response`` are
    0.
    """

    id: str
    family: str
    mode: str = ""
    """What the ID adds to the family, such as ``"3x2"``; empty where a family has one member."""
    memory: MemoryType
    """What kind of memory the task is about."""
    cue: int
    """Steps in which the information is on view."""
    delay: int = 0
    """Steps in which nothing is on view and nothing may be done yet."""
    response: int
    """Steps that are left to act in."""
    oracle: str
    """What a perfect memory would hold."""
    oracle_shape: tuple[int, ...]
    """Its shape for one env."""
    prompt: str | None = None
    """What the agent is told at every step beside its observation, or None."""
    instruction: str
    """The task in one English sentence, for agents that read."""
    entry_point: str | None
    """``"module:Class"``, or None as long as the task is not written."""
    kwargs: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What makes the class into this mode: constructor arguments, kept as a read-only copy."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kwargs", MappingProxyType(dict(self.kwargs)))

    @property
    def horizon(self) -> int:
        """Length of an episode, the T of the paper."""
        return self.cue + self.delay + self.response

    @property
    def exists(self) -> bool:
        """Whether the task is written and can be made."""
        return self.entry_point is not None


def index_by_id(rows: Iterable[TaskSpec]) -> Mapping[str, TaskSpec]:
    """Return ``rows`` by ID, in their order, read-only.

    Raises:
        ValueError: two rows have the same ID.
    """
    table: dict[str, TaskSpec] = {}
    for row in rows:
        if row.id in table:
            raise ValueError(f"Two catalog rows have the ID {row.id!r}; rename the mode {row.mode!r} of one of them.")
        table[row.id] = row
    return MappingProxyType(table)


def _family(
    family: str,
    modes: Mapping[str, Mapping[str, Any]],
    *,
    horizon: int | Callable[..., int],
    memory: MemoryType,
    cue: int | Callable[..., int],
    delay: int,
    oracle: str,
    oracle_shape: tuple[int, ...] | Callable[..., tuple[int, ...]],
    instruction: str,
    words: Mapping[str, str] | None = None,
    prompt: str | None = None,
    entry_point: str | None = None,
) -> Iterator[TaskSpec]:
    """Yield a row per mode.

    ``horizon``, ``cue`` and ``oracle_shape`` may be computed from the mode's constructor arguments; ``instruction`` may
    name these and, as ``{words}``, the mode's own words.
    """
    for mode, kwargs in modes.items():
        steps = cue(**kwargs) if callable(cue) else cue
        yield TaskSpec(
            id=f"{family}{mode}-v0",
            family=family,
            mode=mode,
            memory=memory,
            cue=steps,
            delay=delay,
            response=(horizon(**kwargs) if callable(horizon) else horizon) - steps - delay,
            oracle=oracle,
            oracle_shape=oracle_shape(**kwargs) if callable(oracle_shape) else oracle_shape,
            prompt=prompt,
            instruction=instruction.format(**kwargs, words=(words or {}).get(mode, "")),
            entry_point=entry_point,
            kwargs=kwargs,
        )


_SPEEDS = {"Slow": {"speed": "slow"}, "Medium": {"speed": "medium"}, "Fast": {"speed": "fast"}}
_SIGNS = {"Pos": {"both_ways": False}, "PosNeg": {"both_ways": True}}
_TURN = {"Pos": "counter-clockwise by the given angle", "PosNeg": "by the given angle, in the direction of its sign"}


def _counts(*counts: int) -> dict[str, dict[str, int]]:
    return {str(n): {"n": n} for n in counts}


def _recall_horizon(n: int) -> int:
    """The paper's 120, or with 7 cubes 160: the robot cannot touch 7 in what 35 steps of cue and 5 of delay leave."""
    return 120 if n <= 5 else 160


def _ordered_recall_horizon(n: int) -> int:
    """The paper's 120 with 3 cubes; in a given order the ways are longer: see `core.choice.paced_response`."""
    return {3: 120, 5: 140, 7: 180}[n]


def _rows() -> Iterator[TaskSpec]:
    yield from _family(
        "ShellGame",
        {"Touch": {"mode": "touch"}, "Push": {"mode": "push"}, "Pick": {"mode": "pick"}},
        horizon=90,
        memory="object",
        cue=5,
        delay=0,
        oracle="mug with the ball: 0 left, 1 centre, 2 right",
        oracle_shape=(1,),
        instruction="Remember where the red ball lies before the mugs cover it, then {words}.",
        words={
            "Touch": "touch the mug it is under",
            "Push": "push the mug it is under straight ahead into the zone",
            "Pick": "lift the mug it is under off the table",
        },
        entry_point="mikasa_robo.tasks.shell_game:ShellGame",
    )
    yield from _family(
        "Intercept",
        _SPEEDS,
        horizon=90,
        memory="spatial",
        cue=90,
        delay=0,
        oracle="initial velocity of the ball",
        oracle_shape=(3,),
        instruction="Watch how the ball rolls and guide it so that it comes to rest in the goal disc.",
        entry_point="mikasa_robo.tasks.intercept:Intercept",
    )
    yield from _family(
        "InterceptGrab",
        _SPEEDS,
        horizon=90,
        memory="spatial",
        cue=90,
        delay=0,
        oracle="initial velocity of the ball",
        oracle_shape=(3,),
        instruction="Watch how the ball rolls, catch it with the gripper and lift it off the table.",
        entry_point="mikasa_robo.tasks.intercept_grab:InterceptGrab",
    )
    yield from _family(
        "RotateLenient",
        _SIGNS,
        horizon=90,
        memory="spatial",
        cue=1,
        delay=0,
        oracle="signed angle still to turn",
        oracle_shape=(1,),
        prompt="target angle",
        instruction="Remember how the peg lies at the start and turn it {words}.",
        words=_TURN,
        entry_point="mikasa_robo.tasks.rotate:RotateLenient",
    )
    yield from _family(
        "RotateStrict",
        _SIGNS,
        horizon=90,
        memory="object",
        cue=1,
        delay=0,
        oracle="signed angle still to turn",
        oracle_shape=(1,),
        prompt="target angle",
        instruction="Remember how the peg lies at the start and turn it {words}, without moving its centre away.",
        words=_TURN,
        entry_point="mikasa_robo.tasks.rotate:RotateStrict",
    )
    yield from _family(
        "TakeItBack",
        {"": {}},
        horizon=180,
        memory="spatial",
        cue=1,
        delay=0,
        oracle="initial position of the cube",
        oracle_shape=(3,),
        instruction="Push the green cube onto the red disc and, as soon as the disc changes colour, back to its start.",
        entry_point="mikasa_robo.tasks.take_it_back:TakeItBack",
    )
    yield from _family(
        "RememberColor",
        _counts(3, 5, 9),
        horizon=60,
        memory="object",
        cue=5,
        delay=5,
        oracle="index of the true colour",
        oracle_shape=(1,),
        instruction="Remember the colour of the cube on the table, then touch the one of that colour among {n} cubes.",
        entry_point="mikasa_robo.tasks.remember_color:RememberColor",
    )
    yield from _family(
        "RememberShape",
        _counts(3, 5, 9),
        horizon=60,
        memory="object",
        cue=5,
        delay=5,
        oracle="index of the true shape",
        oracle_shape=(1,),
        instruction="Remember the shape of the object on the table, then touch the one with that shape among {n}.",
        entry_point="mikasa_robo.tasks.remember_shape:RememberShape",
    )
    yield from _family(
        "RememberShapeAndColor",
        {f"{shapes}x{colors}": {"shapes": shapes, "colors": colors} for shapes, colors in ((3, 2), (3, 3), (5, 3))},
        horizon=60,
        memory="object",
        cue=5,
        delay=5,
        oracle="index of the true shape, index of the true colour",
        oracle_shape=(2,),
        instruction="Remember the shape and the colour of the object on the table, then touch the one that has"
        " both among objects of {shapes} shapes and {colors} colours.",
        entry_point="mikasa_robo.tasks.remember_shape_and_color:RememberShapeAndColor",
    )
    yield from _family(
        "BunchOfColors",
        _counts(3, 5, 7),
        horizon=120,
        memory="capacity",
        cue=5,
        delay=5,
        oracle="the true colour indices",
        oracle_shape=lambda n: (n,),
        instruction="Remember the colours of the {n} cubes shown together, then touch the cubes of these colours, in"
        " any order.",
        entry_point="mikasa_robo.tasks.bunch_of_colors:BunchOfColors",
    )
    yield from _family(
        "SeqOfColors",
        _counts(3, 5, 7),
        horizon=_recall_horizon,
        memory="capacity",
        cue=lambda n: 5 * n,
        delay=5,
        oracle="the true colour indices, in the order shown",
        oracle_shape=lambda n: (n,),
        instruction="Remember the colours of the {n} cubes shown one after another, then touch the cubes of these"
        " colours, in any order.",
        entry_point="mikasa_robo.tasks.seq_of_colors:SeqOfColors",
    )
    yield from _family(
        "ChainOfColors",
        _counts(3, 5, 7),
        horizon=_ordered_recall_horizon,
        memory="sequential",
        cue=lambda n: 5 * n,
        delay=5,
        oracle="the true colour indices, in order",
        oracle_shape=lambda n: (n,),
        instruction="Remember the colours of the {n} cubes shown one after another, then touch the cubes of these"
        " colours in the same order.",
        entry_point="mikasa_robo.tasks.chain_of_colors:ChainOfColors",
    )


_TABLE: dict[str, TaskSpec] = dict(index_by_id(_rows()))
CATALOG: Mapping[str, TaskSpec] = MappingProxyType(_TABLE)
"""Every task by ID, in the order of the paper's table, then those that `add_row` brought."""


def add_row(row: TaskSpec) -> None:
    """Adds a task of the user's own. Raises ValueError where its ID is taken by another row."""
    if _TABLE.setdefault(row.id, row) != row:
        raise ValueError(f"the ID {row.id!r} is taken by {_TABLE[row.id].entry_point}: choose another")
