"""The algorithms, networks and memories by name. A new one is a file and a row, here or in a module of your own.

    from mikasa_robo.baselines.registry import register_algorithm

    register_algorithm("my-algo", "my_module:MyAlgorithm", "One line for `mikasa train --help`.")

After that, ``mikasa train my_module:my-algo`` imports ``my_module`` and trains. What a class has to offer is described in
`protocol`. Checkpoints hold names only, and nothing is ever imported because a checkpoint says so.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mikasa_robo.env_ids import import_named_module

if TYPE_CHECKING:
    from .memory.base import Memory
    from .protocol import Algorithm, Network

__all__ = [
    "ALGORITHMS",
    "MEMORIES",
    "NETWORKS",
    "AlgorithmSpec",
    "MemorySpec",
    "NetworkSpec",
    "RegistryError",
    "get_algorithm",
    "get_memory",
    "get_network",
    "register_algorithm",
    "register_network",
    "use_algorithm",
    "use_memory",
    "use_network",
]


class RegistryError(ValueError):
    """A name is not registered, or is taken by something else; the message names the fix."""


@dataclass(frozen=True)
class _Spec:
    name: str
    target: str
    help: str

    @property
    def module(self) -> str | None:
        """The module that has to be imported for the name to be known; None for those of this package."""
        module = self.target.partition(":")[0]
        return None if module.startswith("mikasa_robo.") else module

    @staticmethod
    def _load(target: str) -> type:
        module, _, attribute = target.partition(":")
        found: type = getattr(importlib.import_module(module), attribute)
        return found


@dataclass(frozen=True)
class AlgorithmSpec(_Spec):
    """An algorithm.

    Args:
        name: as in ``mikasa train NAME``.
        target: ``"module:Class"``, imported when the algorithm is used. The class implements `protocol.Algorithm`.
        help: one line for the help.
        args_target: ``"module:Class"`` of its arguments, if that module can be imported without torch; then ``--help`` is
            quick. By default the class's ``args_type``.
    """

    args_target: str | None = None

    def load(self) -> type[Algorithm]:
        """The class."""
        return self._load(self.target)

    def load_args_type(self) -> type[Any]:
        """The class of its arguments."""
        return self.load().args_type if self.args_target is None else self._load(self.args_target)


class NetworkSpec(_Spec):
    """A network.

    Args:
        name: as in ``--network NAME``.
        target: ``"module:Class"``, imported when the network is used. The class implements `protocol.Network`.
        help: one line for the help.
    """

    def load(self) -> type[Network]:
        """The class."""
        return self._load(self.target)


class MemorySpec(_Spec):
    """A memory model.

    Args:
        name: as in ``--memory NAME``.
        target: ``"module:Class"``, imported when the memory is used. The class derives from `memory.Memory`.
        help: one line for the help.
    """

    def load(self) -> type[Memory]:
        """The class."""
        return self._load(self.target)


_HOME = "mikasa_robo.baselines"

ALGORITHMS: dict[str, AlgorithmSpec] = {
    row.name: row
    for row in (
        AlgorithmSpec(
            "ppo-mlp",
            f"{_HOME}.ppo_mlp:PPOMLP",
            "PPO with a network without memory.",
            f"{_HOME}.ppo_arguments:PPOMLPArgs",
        ),
        AlgorithmSpec(
            "ppo-lstm",
            f"{_HOME}.ppo_lstm:PPOLSTM",
            "PPO with a recurrent network.",
            f"{_HOME}.ppo_arguments:PPOLSTMArgs",
        ),
        AlgorithmSpec(
            "ppo",
            f"{_HOME}.ppo_lstm:PPOMemory",
            "PPO with any memory; see --memory.",
            f"{_HOME}.ppo_arguments:PPOMemoryArgs",
        ),
        AlgorithmSpec(
            "dagger",
            f"{_HOME}.dagger:DAgger",
            "The expert labels what the student does (DAgger).",
            f"{_HOME}.dagger_arguments:DAggerArgs",
        ),
        AlgorithmSpec(
            "bc",
            f"{_HOME}.dataset:DatasetBC",
            "Imitate episodes of the expert, or of a dataset.",
            f"{_HOME}.dagger_arguments:BCArgs",
        ),
        AlgorithmSpec(
            "sac",
            f"{_HOME}.sac:SAC",
            "Off-policy learning, with episodes of the expert if asked for (RLPD).",
            f"{_HOME}.sac_arguments:SACArgs",
        ),
        AlgorithmSpec(
            "dt",
            f"{_HOME}.offline:DT",
            "A decision transformer, from a dataset.",
            f"{_HOME}.offline_arguments:DTArgs",
        ),
        AlgorithmSpec(
            "rate",
            f"{_HOME}.offline:RATE",
            "A recurrent action transformer with memory, from a dataset.",
            f"{_HOME}.offline_arguments:RATEArgs",
        ),
        AlgorithmSpec(
            "iql",
            f"{_HOME}.iql:IQL",
            "Implicit Q-learning with a memory, from a dataset.",
            f"{_HOME}.offline_arguments:IQLArgs",
        ),
    )
}
"""Algorithms by name."""

NETWORKS: dict[str, NetworkSpec] = {
    row.name: row
    for row in (
        NetworkSpec("mlp", f"{_HOME}.networks:ActorCritic", "Separate tanh MLPs for actor and critic."),
        NetworkSpec("lstm", f"{_HOME}.networks:RecurrentActorCritic", "An LSTM that actor and critic share."),
        NetworkSpec("tokens", f"{_HOME}.token_policy:TokenPolicy", "Any memory, with objects as tokens."),
        NetworkSpec("sac", f"{_HOME}.sac_network:SACNetwork", "A squashed Gaussian policy and an ensemble of critics."),
        NetworkSpec("sequence", f"{_HOME}.sequence_policy:SequencePolicy", "Returns, observations and actions."),
        NetworkSpec("recurrent", f"{_HOME}.networks:RecurrentActorCritic", "A memory that they share; see --memory."),
    )
}
"""Networks by name."""

MEMORIES: dict[str, MemorySpec] = {
    name: MemorySpec(name, f"{_HOME}.memory.{target}", help)
    for name, target, help in (
        ("none", "none:NoMemory", "No memory: an MLP of what is seen now."),
        ("frame-stack", "frame_stack:FrameStack", "The last frames."),
        ("lstm", "lstm:LSTM", "Hochreiter and Schmidhuber, 1997."),
        ("gru", "gru:GRU", "Cho et al., 2014."),
        ("mingru", "mingru:MinGRU", "Feng et al., 2024: gates that do not see the state, a parallel scan."),
        ("lru", "lru:LRU", "Orvieto et al., 2023: a diagonal state-space model."),
        ("ffm", "ffm:FFM", "Morad et al., 2023: fast and forgetful memory."),
        ("shm", "shm:SHM", "Le et al., 2024: stable Hadamard memory."),
        ("gtrxl", "gtrxl:GTrXL", "Parisotto et al., 2019: gated Transformer-XL."),
        ("transformer", "transformer:Transformer", "Vaswani et al., 2017: causal, over the whole episode."),
    )
}
"""Memory models by name. `use_memory` adds those that a user names as ``"module:Class"``, under that name."""


def register_algorithm(name: str, target: str, help: str = "") -> None:
    """Register an algorithm; see `AlgorithmSpec`. Registering the same again changes nothing.

    Raises:
        RegistryError: the name is taken, or ``target`` is not ``"module:Class"``.
    """
    spec = AlgorithmSpec(name, target, help)
    _check(spec, ALGORITHMS.get(name))
    ALGORITHMS[name] = spec


def register_network(name: str, target: str, help: str = "") -> None:
    """Register a network; see `NetworkSpec`. Registering the same again changes nothing.

    Raises:
        RegistryError: the name is taken, or ``target`` is not ``"module:Class"``.
    """
    spec = NetworkSpec(name, target, help)
    _check(spec, NETWORKS.get(name))
    NETWORKS[name] = spec


def _check(spec: _Spec, known: _Spec | None) -> None:
    if ":" in spec.name or not spec.name:
        raise RegistryError(f"{spec.name!r} is not a name; use letters, digits and hyphens")
    if spec.target.count(":") != 1:
        raise RegistryError(f"{spec.name!r}: target {spec.target!r} is not 'module:Class'")
    if known is not None and known.target != spec.target:
        raise RegistryError(f"{spec.name!r} is taken by {known.target}; choose another name")


def get_algorithm(name: str) -> AlgorithmSpec:
    """The algorithm of that name. Raises RegistryError where none is registered."""
    if name not in ALGORITHMS:
        raise RegistryError(_unknown("algorithm", name, ALGORITHMS))
    return ALGORITHMS[name]


def get_network(name: str) -> NetworkSpec:
    """The network of that name. Raises RegistryError where none is registered."""
    if name not in NETWORKS:
        raise RegistryError(_unknown("network", name, NETWORKS))
    return NETWORKS[name]


def get_memory(name: str) -> MemorySpec:
    """The memory of that name. Imports nothing, so that a name may come from a file.

    Raises:
        RegistryError: none is registered; one of a user's own is not before `use_memory` got its name.
    """
    if name in MEMORIES:
        return MEMORIES[name]
    if ":" in name:
        if others := [known for known in MEMORIES if ":" in known]:
            raise RegistryError(
                f"the memory is {name!r}, and only {', '.join(others)} was named; use --memory {name} "
                f"(in Python: load_policy(..., memory={name!r}))"
            )
        module = name.rpartition(":")[0]
        raise RegistryError(
            f"the memory {name!r} is in the module {module}, which is imported only if you name it; add --memory {name} "
            f"(in Python: load_policy(..., memory={name!r}))"
        )
    raise RegistryError(
        f"there is no memory {name!r}; use one of {', '.join(MEMORIES)}, or module:Class for a class of your own"
    )


def _unknown(kind: str, name: str, known: dict[str, AlgorithmSpec] | dict[str, NetworkSpec]) -> str:
    return f"there is no {kind} {name!r}; use one of {', '.join(known)}, or module:NAME, which imports the module"


def use_algorithm(name: str) -> AlgorithmSpec:
    """`get_algorithm` of a name that the user gave, ``"NAME"`` or ``"module:NAME"``; imports the module.

    Raises:
        RegistryError: none is registered, even after the import.
        EnvIdError: the module does not exist, or ``name`` is malformed.
    """
    return get_algorithm(import_named_module(name, "an algorithm"))


def use_network(name: str) -> NetworkSpec:
    """`get_network` of a name that the user gave, ``"NAME"`` or ``"module:NAME"``; imports the module.

    Raises:
        RegistryError: none is registered, even after the import.
        EnvIdError: the module does not exist, or ``name`` is malformed.
    """
    return get_network(import_named_module(name, "a network"))


def use_memory(name: str) -> MemorySpec:
    """`get_memory` of a name that the user gave, ``"NAME"`` or ``"module:Class"``; imports the module.

    Raises:
        RegistryError: there is none of that name, or the class does not derive from `memory.Memory`.
        EnvIdError: the module does not exist, or ``name`` is malformed.
    """
    if ":" in name and name not in MEMORIES:
        from mikasa_robo.baselines.memory.base import Memory

        attribute = import_named_module(name, "a memory")
        module = importlib.import_module(name.rpartition(":")[0])
        found = getattr(module, attribute, None)
        if not (isinstance(found, type) and issubclass(found, Memory)):
            what = (
                "there is no such class"
                if found is None
                else "it does not derive from mikasa_robo.baselines.memory.Memory"
            )
            raise RegistryError(f"{name!r} is not a memory: {what}; see docs/baselines.md for an example")
        MEMORIES[name] = MemorySpec(name, name, "")
    return get_memory(name)
