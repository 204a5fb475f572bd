"""The tensors that stand for the GPU system's buffers, and what was applied of them last."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import sapien
import torch
from torch import Tensor

from .rows import RowLayout
from .strictness import (
    FORCES,
    LINK_POSE,
    LINK_VELOCITY,
    QACC,
    QF,
    QPOS,
    QVEL,
    RIGID,
    TARGET_QPOS,
    TARGET_QVEL,
    GpuApiMisuse,
    Strictness,
)

_POSE_STARTS = (None, *range(7))
_WITHOUT_MEMORY = (
    *(type(None), float, complex, str, list, tuple),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)


class CpuArray:
    """Stands for SAPIEN's ``CudaArray``: a named buffer whose ``torch()`` is the tensor itself, not a copy.

    Args:
        strictness: told of every access.
        name: the buffer's name, for messages.
        tensor: the buffer.
        groups: the groups of data in it that a step makes stale.
        on_access: called before the tensor is handed out.
    """

    def __init__(
        self,
        strictness: Strictness,
        name: str,
        tensor: Tensor,
        groups: tuple[str, ...] = (),
        on_access: Callable[[], None] | None = None,
    ) -> None:
        self._strictness, self._name, self._tensor, self._groups = strictness, name, tensor, groups
        self._on_access = on_access

    def torch(self) -> Tensor:
        """The buffer. Writing to it has no effect on the simulation before the matching ``gpu_apply_*``."""
        self._strictness.before_access(self._name, self._groups)
        if self._on_access is not None:
            self._on_access()
        return self._tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the buffer."""
        return tuple(self._tensor.shape)


class BodyData(Tensor):
    """``cuda_rigid_body_data``, which reads velocities from the simulation only when they are looked at.

    Reading all of them costs a tenth of a step (two calls for each body, nothing in bulk), and most steps need poses only.
    A use that may look at velocities first carries out a pending fetch, for the rows that it names or for all, so the
    values are always right. Views such as ``data[:, 7:10]`` are of this class too and show later fetches, as views of a GPU
    buffer do. Memory that leaves torch, as in ``data.numpy()``, cannot be followed: from then on every fetch is carried out
    at once.
    """

    owner: Buffers
    is_buffer = False
    """Whether it is a whole buffer (its rows start at row 0 and have 13 columns), not any other view of one."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _INDEXING and type(args[0]) is cls and args[0].is_buffer:
            index, poses_only = args[1], _is_poses_only(args[1])
            if not poses_only:
                args[0].owner.read_velocities(_rows_named(index), args[0])
            if poses_only or func is Tensor.__setitem__ or _names_rows(index):
                # nothing to follow: a view without velocities, an assignment, or a copy
                with torch._C.DisableTorchFunctionSubclass():
                    return func(args[0].as_subclass(Tensor), *map(_current, args[1:]))
        # a copy of the buffer has no owner while copy.deepcopy makes it
        owners = [data.owner for data in _body_data_among((args, kwargs)) if "owner" in data.__dict__]
        for owner in owners:
            owner.read_velocities()
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
            return _follow(result, owners[0]) if owners else result


_INDEXING = (Tensor.__getitem__, Tensor.__setitem__)


def _names_rows(index: Any) -> bool:
    """Whether an index takes rows by number, as in ``data[rows]`` or ``data[rows, 7:10]``: then the result is a copy."""
    rows = index[0] if isinstance(index, tuple) and len(index) == 2 and isinstance(index[1], slice) else index
    return isinstance(rows, Tensor) and rows.dim() > 0 and rows.dtype in (torch.int64, torch.int32)


def _rows_named(index: Any) -> Tensor | None:
    """The rows that an index takes by number; None: it may take any."""
    if not _names_rows(index):
        return None
    rows: Tensor = index[0] if isinstance(index, tuple) else index
    return rows


def _is_poses_only(index: Any) -> bool:
    if not (isinstance(index, tuple) and len(index) == 2):
        return False
    rows, columns = index
    return (
        # rows, not None or a boolean: those add a dimension, and the slice would then be one of rows
        (isinstance(rows, slice) or (isinstance(rows, Tensor) and rows.dim() > 0))
        and isinstance(columns, slice)
        and columns.start in _POSE_STARTS
        and columns.stop is not None
        and 0 <= columns.stop <= 7
    )


def _current(value: Any) -> Any:
    """``value`` as a plain tensor with current velocities, if it is body data itself."""
    if isinstance(value, BodyData):
        value.owner.read_velocities()
        return value.as_subclass(Tensor)
    return value


def _body_data_among(value: Any) -> Iterator[BodyData]:
    """The body data in the arguments of a torch function, also inside lists, as in ``torch.cat([data, data])``."""
    if isinstance(value, BodyData):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _body_data_among(item)
    elif isinstance(value, dict):
        yield from _body_data_among(list(value.values()))


def _follow(result: Any, owner: Buffers) -> Any:
    """What a torch function returned, with views of the buffer as `BodyData` and everything else as it is."""
    if isinstance(result, Tensor):
        if result.untyped_storage().data_ptr() != owner.body_data.untyped_storage().data_ptr():
            return result.as_subclass(Tensor)
        view = result.as_subclass(BodyData)
        view.owner = owner
        return view
    if isinstance(result, list | tuple) and any(isinstance(item, Tensor) for item in result):
        return type(result)(_follow(item, owner) for item in result)
    if isinstance(result, int):
        leaves_torch = result == owner.body_data.data_ptr()
    else:
        # numbers, strings and types hold no memory; arrays, storages, iterators and capsules may
        leaves_torch = not isinstance(result, _WITHOUT_MEMORY)
    if leaves_torch:
        owner.read_velocities_at_once()
    return result


class Buffers:
    """All buffers of a batch, with a copy of what was last applied or fetched.

    A row that differs from its copy was written and not yet applied.

    Args:
        layout: which rows there are.
        debug: see `Strictness`.
        read_velocities: returns linear and angular velocities (b, 6) of the bodies in the given rows, for a fetch that was
            delayed.
        read_joint_accelerations: writes joint accelerations into the array (A, dofs) that it is given.
    """

    def __init__(
        self,
        layout: RowLayout,
        debug: bool,
        read_velocities: Callable[[np.ndarray], np.ndarray],
        read_joint_accelerations: Callable[[np.ndarray], None],
    ) -> None:
        bodies, links, articulations = layout.num_bodies, layout.num_links, layout.num_articulations
        self._layout = layout
        self._read_velocities, self._read_accelerations = read_velocities, read_joint_accelerations
        self.strictness = Strictness(debug, self._written)
        self.body_data = torch.zeros(bodies + links, 13)
        self.force = torch.zeros(bodies + links, 3)
        self.torque = torch.zeros(bodies + links, 3)
        self.q = {
            name: torch.zeros(articulations, layout.max_dof)
            for name in (QPOS, QVEL, QACC, QF, TARGET_QPOS, TARGET_QVEL)
        }
        self.joint_forces = torch.zeros(articulations, layout.max_links, 6)
        self.applied_bodies = self.body_data.clone()
        self.applied_q = {name: tensor.clone() for name, tensor in self.q.items()}
        # rows of which velocities were fetched, but not read from the simulation yet
        self.velocities_pending = np.zeros(bodies + links, dtype=bool)
        self._velocities_at_once = False
        self._joint_accelerations_pending = False
        self._joint_accelerations_at_once = False

    def arrays(self) -> dict[str, CpuArray]:
        """Every buffer under the name that it has as an attribute of the GPU system."""
        rules, bodies, links = self.strictness, self._layout.num_bodies, self._layout.num_links
        data, dynamic = self.body_data.as_subclass(BodyData), self.body_data[:bodies].as_subclass(BodyData)
        for buffer in (data, dynamic):
            buffer.owner, buffer.is_buffer = self, True
        present = ((RIGID, bodies), (LINK_POSE, links), (LINK_VELOCITY, links))
        parts: dict[str, tuple[Tensor, tuple[str, ...]]] = {
            "cuda_rigid_body_data": (data, tuple(group for group, count in present if count)),
            "cuda_rigid_dynamic_data": (dynamic, (RIGID,) if bodies else ()),
            "cuda_rigid_body_force": (self.force, ()),
            "cuda_rigid_body_torque": (self.torque, ()),
            "cuda_rigid_dynamic_force": (self.force[:bodies], ()),
            "cuda_rigid_dynamic_torque": (self.torque[:bodies], ()),
            "cuda_articulation_qpos": (self.q[QPOS], (QPOS,)),
            "cuda_articulation_qvel": (self.q[QVEL], (QVEL,)),
            "cuda_articulation_qf": (self.q[QF], ()),
            "cuda_articulation_target_qpos": (self.q[TARGET_QPOS], ()),
            "cuda_articulation_target_qvel": (self.q[TARGET_QVEL], ()),
            "cuda_articulation_link_incoming_joint_forces": (self.joint_forces, (FORCES,)),
        }
        arrays = {name: CpuArray(rules, name, tensor, groups) for name, (tensor, groups) in parts.items()}
        arrays["cuda_articulation_qacc"] = CpuArray(
            rules, "cuda_articulation_qacc", self.q[QACC], (QACC,), self._share_joint_accelerations
        )
        return arrays

    def _written(self) -> dict[str, tuple[Tensor, Tensor]]:
        n = self._layout.num_bodies
        roots = torch.from_numpy(self._layout.link_start)
        pairs = {RIGID: (self.body_data[:n], self.applied_bodies[:n])}
        pairs[LINK_POSE] = (self.body_data[roots], self.applied_bodies[roots])
        for name in (QPOS, QVEL, QF, TARGET_QPOS, TARGET_QVEL):
            pairs[name] = (self.q[name], self.applied_q[name])
        return pairs

    # ------------------------------------------------------------------ fetches that are delayed
    def fetch_velocities(self, rows: slice) -> None:
        """Fetches velocities, or notes that they are to be fetched when they are looked at (see `BodyData`)."""
        self.velocities_pending[rows] = True
        # a fetch overwrites what was written and not applied
        self.body_data[rows, 7:] = self.applied_bodies[rows, 7:]
        if self._velocities_at_once:
            self.read_velocities()

    def read_velocities(self, rows: Tensor | np.ndarray | None = None, of: Tensor | None = None) -> None:
        """Carries out a delayed fetch of velocities.

        Args:
            rows: row numbers; None: all rows. A negative number counts from the end of ``of``.
            of: the buffer that was indexed, if it may be shorter than ``body_data``.
        """
        pending = self.velocities_pending
        named = None if rows is None else (rows.numpy() if isinstance(rows, Tensor) else rows).reshape(-1)
        if named is not None and (named < 0).any():
            with torch._C.DisableTorchFunctionSubclass():
                length = len(pending) if of is None else of.shape[0]
            named = np.where(named < 0, named + length, named)
        wanted = np.flatnonzero(pending) if named is None else named[pending[named]]
        if len(wanted):
            pending[wanted] = False
            velocities = self._read_velocities(wanted)
            self.body_data.numpy()[wanted, 7:] = velocities
            self.applied_bodies.numpy()[wanted, 7:] = velocities

    def stop(self, rows: np.ndarray, articulations: np.ndarray) -> None:
        """Writes zero to the velocities of bodies and links (``rows``, bool) and of joints (``articulations``, bool)."""
        self.velocities_pending[rows] = False
        self.body_data.numpy()[rows, 7:] = 0
        self.q[QVEL].numpy()[articulations] = 0

    def read_velocities_at_once(self) -> None:
        """Ends the delay: from now on every fetch of velocities is carried out when it is asked for."""
        self._velocities_at_once = True
        self.read_velocities()

    def fetch_joint_accelerations(self) -> None:
        """Fetches joint accelerations; the first fetches wait until the buffer is asked for, which ManiSkill never does."""
        self._joint_accelerations_pending = True
        if self._joint_accelerations_at_once:
            self.read_joint_accelerations()

    def read_joint_accelerations(self) -> None:
        """Carries out a delayed fetch of joint accelerations."""
        if self._joint_accelerations_pending:
            self._joint_accelerations_pending = False
            self._read_accelerations(self.q[QACC].numpy())

    def _share_joint_accelerations(self) -> None:
        self._joint_accelerations_at_once = True
        self.read_joint_accelerations()

    def forget_delayed_fetches(self) -> None:
        """Called by a step: what nobody has looked at is not needed any more."""
        self.velocities_pending[:] = False
        self._joint_accelerations_pending = False


def as_index_buffer(rows: Tensor) -> Any:
    """``rows`` (b,) int32 as what ``gpu_apply_*(index_buffer)`` takes: the tensor on CPU, SAPIEN's array on a GPU.

    SAPIEN's array is an address only. Keep ``rows`` for as long as the result is used: torch reuses the memory of a tensor
    that nobody holds.
    """
    return sapien.CudaArray(rows) if rows.is_cuda else rows


def rows_in(index: Any, count: int, what: str, first_only: bool) -> np.ndarray:
    """The rows that an index buffer names, (b,) int64.

    Args:
        index: a tensor, array or `CpuArray`, (b,) int32 and contiguous.
        count: how many rows there are.
        what: the call, for messages.
        first_only: raise `GpuApiMisuse` unless the rows are the first b, in any order.

    Raises:
        TypeError: what SAPIEN would refuse: another dtype or kind of object.
        ValueError: another shape, or strides.
        IndexError: a row that is not there.
    """
    if isinstance(index, CpuArray):
        index = index.torch()
    array = index.numpy() if isinstance(index, Tensor) else index
    if not isinstance(array, np.ndarray) or array.dtype != np.int32:
        kind = getattr(array, "dtype", type(array).__name__)
        raise TypeError(f"{what} takes an index buffer of int32, not {kind}: use index.to(torch.int32)")
    if array.ndim != 1 or not array.flags.c_contiguous:
        raise ValueError(
            f"{what} takes a contiguous index buffer of shape (b,), not {array.shape} with strides {array.strides}: "
            "use index.reshape(-1).contiguous()"
        )
    if len(array) and not (array.min() >= 0 and array.max() < count):
        raise IndexError(f"{what} got an index buffer with rows outside 0…{count - 1}: {array.tolist()}")
    rows = np.unique(array).astype(np.int64)
    if first_only and not np.array_equal(rows, np.arange(len(rows))):
        raise GpuApiMisuse(
            f"{what} with rows {rows.tolist()}: SAPIEN 3.0 takes only the number of rows from this index buffer and "
            f"applies the first {len(array)} articulations. Apply all rows, or the first ones"
        )
    return rows
