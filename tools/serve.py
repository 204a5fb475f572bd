"""``mikasa serve``: answers for a checkpoint over the protocol of docs/remote-policies.md.

mikasa serve --checkpoint runs/A/checkpoint.pt --port 8000
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from mikasa_robo.terminal import print_error

from .env_ids import OptionError
from .extras import require_modules
from .progress import say
from .runs import agent_name

if TYPE_CHECKING:
    from mikasa_robo.remote.server import PolicyServer

__all__ = ["Args", "main", "make_server"]


@dataclass
class Args:
    """Serve the policy of a checkpoint to `mikasa eval --policy remote:HOST:PORT`, or to any client of the protocol."""

    checkpoint: Path
    """A policy that `mikasa train` saved, or the folder of a run."""
    port: int = 8000
    """The port to listen at; 0 for any that is free, which is printed."""
    host: str = "127.0.0.1"
    """The address to listen at. There is no password: whoever reaches another address than 127.0.0.1 may use the policy."""
    device: str = "cpu"
    """Where the network computes, such as cuda."""
    env_id: str | None = None
    """Only needed for a task of your own, as module:ID: a module is imported only where you name it."""
    algorithm: str | None = None
    """Likewise for an algorithm of your own, as module:NAME."""
    network: str | None = None
    """Likewise for a network of your own."""
    memory: str | None = None
    """Likewise for a memory of your own, as module:Class."""


def make_server(args: Args) -> PolicyServer:
    """The server, which listens already.

    Raises:
        OptionError: an option cannot be used.
        CheckpointError, FileNotFoundError: see `read_checkpoint`.
        ModuleNotFoundError: a package of the extra ``remote`` is missing.
    """
    require_modules("remote", "msgpack", "websockets")
    from mikasa_robo.baselines.arguments import device_works
    from mikasa_robo.remote.server import PolicyServer

    from .checkpoint import import_foreign, read_checkpoint, resolve_checkpoint_env_id
    from .evaluate_remote import served_settings
    from .serving import CheckpointPolicy

    if not 0 <= args.port < 2**16:
        raise OptionError(f"--port {args.port} cannot be used; give one from 0 to 65535")
    if not args.host.strip():  # which would listen at every address
        raise OptionError(
            f"--host {args.host!r} is empty; give 127.0.0.1, or 0.0.0.0 for every address of this machine"
        )
    if not device_works(args.device):
        raise OptionError(f"--device {args.device} cannot be used here; give cpu, or cuda where there is a GPU")
    import_foreign(args.algorithm, args.network, args.memory)
    checkpoint = read_checkpoint(args.checkpoint, args.memory)
    resolve_checkpoint_env_id(checkpoint, args.env_id)
    network = checkpoint.load_network(args.device)
    metadata = {
        "name": checkpoint.algorithm,
        "agent": agent_name(checkpoint.algorithm, checkpoint.args.to_dict()),
        "sha256": checkpoint.sha256,
        "seed": checkpoint.args.seed,
        "training_steps": checkpoint.step,
        "deterministic": True,
        **served_settings(checkpoint.args),
    }
    try:
        return PolicyServer(lambda: CheckpointPolicy(checkpoint, network), metadata, args.host, args.port)
    except OSError as error:
        taken = error.errno in (errno.EADDRINUSE, errno.EACCES)
        fix = "choose another port, or stop what uses it" if taken else "give --host an address of this machine"
        raise OptionError(
            f"--host {args.host} --port {args.port}: cannot listen there ({error.strerror or error}); {fix}"
        ) from error


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with ``argv`` and return its exit code."""
    args = tyro.cli(Args, args=argv, prog="mikasa serve")
    say("loading the checkpoint")
    from mikasa_robo.baselines.checkpoints import CheckpointError
    from mikasa_robo.baselines.loggers import configure_logging

    configure_logging()
    try:
        server = make_server(args)
    except (OptionError, CheckpointError, FileNotFoundError, ModuleNotFoundError) as error:
        print_error(error)
        return 2
    if args.host not in ("127.0.0.1", "::1", "localhost"):
        print(f"{args.host} may be reached from other machines, and there is no password", file=sys.stderr)
    host = f"[{args.host}]" if ":" in args.host else args.host
    print(f"serving {args.checkpoint} at remote:{host}:{server.port}; Ctrl-C ends it", flush=True)
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
