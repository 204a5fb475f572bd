"""ViZDoomTwoColors, a new scenario for the ViZDoom engine (extra ``vizdoom``)."""

from __future__ import annotations

import math
import os
import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from vizdoom import Button, DoomGame, GameVariable, Mode, ScreenFormat, ScreenResolution

from mikasa_base import checks
from mikasa_base.envs.drawing import DrawnEnv, Image

__all__ = ["ViZDoomTwoColors"]

LAYOUTS = 64
"""Number of rooms. Each is used with either colour as the good one."""
_ITEMS_OF_A_COLOR = 25
_HALF_ROOM, _CLEARANCE, _APART = 512, 96, 56  # map units
_GREEN, _RED = 0, 1
# the engine's numbers and names of things
_ITEM, _ITEM_NAME = (2018, 2019), ("GreenArmor", "BlueArmor")
_COLUMN, _COLUMN_NAME = (30, 32), ("TallGreenColumn", "TallRedColumn")
_PLAYER, _HEAL, _HURT, _HEALTH = 1, 248, 73, 25
_ARMED_HURT = (37, 50)
"""Damage that takes 25 points of health from a player with this armour, which absorbs a third or a half of it."""
_ACID = 83  # 8 points of health every 32 tics
_TICS, _MOST_TICS = 4, 2100
_HEIGHT, _WIDTH = 64, 112


class ViZDoomTwoColors(DrawnEnv[npt.NDArray[np.uint8], Any]):
    """Survive in acid by picking up the things of one colour and avoiding those of the other.

    Task: remember the colour of a column, which is the colour that heals. The acid takes 8 of 100 points of health every
        32 tics. The room holds 25 green and 25 red things. One of the good colour gives 25 points of health, and one of
        the other colour takes 25. The agent starts facing the column. Each episode takes place in one of 64 rooms, which
        differ in the places of the things.
    Observation: uint8 (64, 112, 3), the view of the agent. Its health is not visible.
    Actions: Discrete(8), the sum of 1 turn left, 2 turn right, 4 forward; each lasts 4 tics.
    Reward: 1 for a thing of the good colour, -1 for one of the other.
    End: terminates when no health is left, truncates after 525 steps (2100 tics).
    Source: Sorokin et al. 2022, Explain My Surprise: Learning Efficient Long-Term Memory by Predicting Uncertain
        Outcomes (NeurIPS 2022), whose scenario has things that come back; on ViZDoom 1.3.2.

    Args:
        column_steps: The number of steps after which the column disappears, 0 to 525; 0: never.
        render_mode: None or "rgb_array".
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 9}  # noqa: RUF012

    def __init__(self, column_steps: int = 0, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.column_steps = checks.integer("column_steps", column_steps, 0, _MOST_TICS // _TICS)
        self.observation_space = spaces.Box(0, 255, (_HEIGHT, _WIDTH, 3), np.uint8)
        self.action_space = spaces.Discrete(8)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._game: DoomGame | None = None
        self._screen: npt.NDArray[np.uint8] = np.zeros((2 * _HEIGHT, 2 * _WIDTH, 3), np.uint8)
        self._good, self._steps, self._over = _GREEN, 0, True
        self._left: tuple[int, int] = (0, 0)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.uint8], dict[str, Any]]:
        """Starts an episode; ``options`` are not used. The first one starts the engine, which takes a second."""
        super().reset(seed=seed)
        if self._game is None:
            self._folder = tempfile.TemporaryDirectory(prefix="mikasa-vizdoom-")
            self._game = _engine(Path(self._folder.name))
        self._good = int(self.np_random.integers(2))
        self._game.set_seed(int(self.np_random.integers(2**31)))
        self._game.set_doom_map(_map_name(int(self.np_random.integers(LAYOUTS)), self._good))
        self._game.new_episode()
        self._steps, self._over = 0, False
        self._left = (_ITEMS_OF_A_COLOR, _ITEMS_OF_A_COLOR)
        self._look(self._game.get_state())
        return self._seen(), {}

    def step(self, action: Any) -> tuple[npt.NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Plays one step.

        Raises:
            gymnasium.error.ResetNeeded: no episode is going on.
            ValueError: ``action`` is not in the action space.
        """
        if self._over or self._game is None:
            raise ResetNeeded("ViZDoomTwoColors.step(): no episode is going on; call reset() first")
        keys = checks.integer("action", action, 0, 7)
        # to the engine the things are armour, which would protect from the acid
        self._game.send_game_command("take armor")
        self._steps += 1
        if self._steps == self.column_steps:  # a command takes effect with the next action
            self._game.send_game_command(f"remove {_COLUMN_NAME[self._good]}")
        self._game.make_action([keys & 1, keys >> 1 & 1, keys >> 2 & 1], _TICS)
        dead = self._game.is_player_dead()
        truncated = not dead and self._steps == _MOST_TICS // _TICS
        self._over = dead or truncated
        state = self._game.get_state()
        if state is None:
            # after death the engine reports no objects, but a thing that was picked up in this step still counts
            armor = self._game.get_game_variable(GameVariable.ARMOR)
            left = (self._left[_GREEN] - int(0 < armor <= 100), self._left[_RED] - int(armor > 100))
        else:
            names = [thing.name for thing in state.objects]
            left = (names.count(_ITEM_NAME[_GREEN]), names.count(_ITEM_NAME[_RED]))
            self._look(state)
        bad = 1 - self._good
        reward = (self._left[self._good] - left[self._good]) - (self._left[bad] - left[bad])
        self._left = left
        return self._seen(), float(reward), dead, truncated, {}

    def frame(self) -> Image:
        """The view of the agent, enlarged twice."""
        return self._screen.copy()

    def close(self) -> None:
        """Ends the engine's process and removes its folder."""
        if self._game is not None:
            self._game.close()
            self._game = None
        self._over = True
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _look(self, state: Any) -> None:
        screen = state.screen_buffer
        y, x = (screen.shape[0] - 2 * _HEIGHT) // 2, (screen.shape[1] - 2 * _WIDTH) // 2
        self._screen = np.array(screen[y : y + 2 * _HEIGHT, x : x + 2 * _WIDTH])

    def _seen(self) -> npt.NDArray[np.uint8]:
        blocks = self._screen.reshape(_HEIGHT, 2, _WIDTH, 2, 3).astype(np.uint16)
        return (blocks.sum((1, 3)) // 4).astype(np.uint8)


def _engine(folder: Path) -> DoomGame:
    wad = folder / "two_colors.wad"
    wad.write_bytes(_wad())
    game = DoomGame()
    game.set_doom_scenario_path(str(wad))
    game.set_doom_config_path(str(folder / "vizdoom.ini"))
    game.set_doom_map(_map_name(0, _GREEN))
    game.set_mode(Mode.PLAYER)
    game.set_window_visible(False)
    game.set_sound_enabled(False)
    game.set_screen_format(ScreenFormat.RGB24)
    game.set_screen_resolution(ScreenResolution.RES_256X144)
    for hidden in (
        game.set_render_hud,
        game.set_render_weapon,
        game.set_render_crosshair,
        game.set_render_messages,
        game.set_render_screen_flashes,
        game.set_render_particles,
    ):
        hidden(False)
    game.set_objects_info_enabled(True)
    game.set_available_buttons([Button.TURN_LEFT, Button.TURN_RIGHT, Button.MOVE_FORWARD])
    game.set_available_game_variables([GameVariable.HEALTH, GameVariable.ARMOR])
    game.set_episode_timeout(0)  # the environment counts itself
    game.add_game_args("+sv_cheats 1")
    # the engine creates a folder in the working directory
    came_from = Path.cwd()
    os.chdir(folder)
    try:
        game.init()
    finally:
        os.chdir(came_from)
    return game


def _map_name(layout: int, good: int) -> str:
    return f"TC{layout:03d}{'GR'[good]}"


def _wad() -> bytes:
    """A WAD file with all rooms, each once for either colour: the header, the contents and the directory."""
    lumps: list[tuple[str, bytes]] = []
    for layout in range(LAYOUTS):
        rng = np.random.default_rng(layout)
        places, towards = _places(rng)
        for good in (_GREEN, _RED):
            text = _room(places, towards, good).encode()
            lumps += [(_map_name(layout, good), b""), ("TEXTMAP", text), ("ENDMAP", b"")]
    directory, start = [], 12
    for name, content in lumps:
        directory.append(struct.pack("<ii8s", start, len(content), name.encode()))
        start += len(content)
    header = struct.pack("<4sii", b"PWAD", len(lumps), start)
    return b"".join([header, *(content for _, content in lumps), *directory])


def _places(rng: np.random.Generator) -> tuple[list[tuple[int, int]], int]:
    """Positions (x, y) of the player and the things relative to the column, and the direction of the player in degrees."""
    around = rng.uniform(0, 2 * math.pi)
    player = (round(240 * math.cos(around)), round(240 * math.sin(around)))
    places = [player]
    reach = _HALF_ROOM - 40
    while len(places) < 1 + 2 * _ITEMS_OF_A_COLOR:
        x, y = rng.integers(-reach, reach + 1, 2).tolist()
        # neither hidden by the column nor next to the start
        if math.hypot(x, y) < _CLEARANCE or math.dist((x, y), player) < _CLEARANCE:
            continue
        if all(math.dist((x, y), other) >= _APART for other in places[1:]):
            places.append((x, y))
    return places, round(math.degrees(around) + 180) % 360


def _room(places: list[tuple[int, int]], towards: int, good: int) -> str:
    """A square room with its things, in the engine's text format (UDMF)."""

    def block(kind: str, **fields: Any) -> str:
        told = (f'{key}="{value}";' if isinstance(value, str) else f"{key}={value};" for key, value in fields.items())
        return f"{kind}{{{''.join(told)}}}"

    def thing(kind: int, x: int, y: int, **fields: Any) -> str:
        flags = "".join(f"{flag}=true;" for flag in ("skill1", "skill2", "skill3", "skill4", "skill5", "single"))
        return block("thing", x=float(x), y=float(y), type=kind, **fields)[:-1] + flags + "}"

    corners = [(-1, -1), (-1, 1), (1, 1), (1, -1)]
    parts = ['namespace="zdoom";']
    parts += [block("vertex", x=float(x * _HALF_ROOM), y=float(y * _HALF_ROOM)) for x, y in corners]
    for i in range(4):
        parts.append(block("sidedef", sector=0, texturemiddle="STONE2"))
        parts.append(block("linedef", v1=i, v2=(i + 1) % 4, sidefront=i)[:-1] + "blocking=true;}")
    parts.append(
        block(
            "sector",
            heightfloor=0,
            heightceiling=160,
            texturefloor="FLOOR4_8",
            textureceiling="CEIL3_5",
            lightlevel=192,
            special=_ACID,
        )
    )
    parts.append(thing(_PLAYER, *places[0], angle=towards))
    parts.append(thing(_COLUMN[good], 0, 0))
    for i, (x, y) in enumerate(places[1:]):
        color = i % 2
        special, points = (_HEAL, _HEALTH) if color == good else (_HURT, _ARMED_HURT[color])
        parts.append(thing(_ITEM[color], x, y, special=special, arg0=points))
    return "\n".join(parts)
