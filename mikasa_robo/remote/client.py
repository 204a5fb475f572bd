"""A policy that asks a server for its actions."""

from __future__ import annotations

import contextlib
import socket
import struct
import textwrap
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mikasa_robo.baselines.spaces import ActionLayout, Obs
from mikasa_robo.terminal import printable

from .messages import PROTOCOL, MessageError, pack, read_actions, require_map, unpack

__all__ = ["RemotePolicy", "RemotePolicyError", "printable", "read_address"]

SCHEME = "remote:"
MOST_ANSWER_BYTES = 16 * 2**20
"""Longest answer that is read: actions are short."""


class RemotePolicyError(RuntimeError):
    """The server cannot be reached, did not answer in time, or its answer cannot be used; the text says what to do."""


def read_address(policy: str) -> tuple[str, int]:
    """Host and port of ``remote:HOST:PORT``. Raises ValueError for other words.

    >>> read_address("remote:[::1]:8000")
    ('::1', 8000)
    """
    host, _, port = policy.removeprefix(SCHEME).rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    known = policy.startswith(SCHEME) and port.isascii() and port.isdigit() and 0 < int(port) < 2**16
    if not known or not host or any(letter in "/@?#" or letter.isspace() for letter in host):
        raise ValueError(f"--policy {policy} cannot be used; write remote:HOST:PORT, such as remote:127.0.0.1:8000")
    return host, int(port)


class RemotePolicy:
    """A `baselines.protocol.Policy` that sends observations to a server and receives actions; close it after use.

    Args:
        host, port: where the server listens.
        timeout: s, for the connection and for each answer.

    Raises:
        RemotePolicyError: nothing listens there, or it is not such a server.

    Attributes:
        metadata: what the server says about itself, a map of plain values.
    """

    def __init__(self, host: str, port: int, timeout: float = 60.0) -> None:
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect

        self.name = f"remote:{f'[{host}]' if ':' in host else host}:{port}"
        self._timeout = timeout
        self._open = contextlib.ExitStack()
        self._starts = True
        self._action, self._low, self._high = ActionLayout(0), torch.zeros(0), torch.zeros(0)
        try:
            # No ping: a server that computes in the thread that reads cannot answer one. No proxy: what is named is asked.
            self._connection = self._open.enter_context(
                connect(
                    f"ws://{self.name.removeprefix(SCHEME)}",
                    compression=None,
                    proxy=None,
                    open_timeout=timeout,
                    close_timeout=1,
                    ping_interval=None,
                    max_size=MOST_ANSWER_BYTES,
                    address=(host, port),  # so that a redirect to another server is refused
                )
            )
        except TimeoutError as error:
            raise RemotePolicyError(
                f"{self.name} did not accept the connection within {timeout:g} s; look whether the server runs"
            ) from error
        except OSError as error:
            raise RemotePolicyError(
                f"{self.name} cannot be reached ({error.strerror or error}); start the server, or name its host and port"
            ) from error
        except (WebSocketException, ValueError) as error:
            raise RemotePolicyError(
                f"{self.name} is not a policy server: it does not speak websocket ({error}); name the server's port"
            ) from error
        try:
            self._limit_sending(timeout)
            self.metadata = self._read_metadata()
        except BaseException:
            self.close()
            raise

    def _limit_sending(self, timeout: float) -> None:
        """A server that no longer reads must not hold up a frame for ever."""
        whole, part = divmod(timeout, 1)
        try:
            self._connection.socket.setsockopt(
                socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(whole), int(part * 1e6))
            )
        except OSError as error:  # the thread that receives has closed the socket already
            raise RemotePolicyError(f"{self.name} closed the connection at once; look what the server says") from error

    def _read_metadata(self) -> dict[str, Any]:
        try:
            metadata = require_map(self._receive("metadata"), "the metadata")
            found = metadata.get("protocol", PROTOCOL)
            if not isinstance(found, str) or found != PROTOCOL:
                raise MessageError(
                    f'the entry "protocol" of its metadata is {found!r:.80}; the server has to speak {PROTOCOL}'
                )
        except MessageError as error:
            raise RemotePolicyError(f"{self.name}: {error}") from error
        return metadata

    def bind(self, action: ActionLayout, low: Tensor | float = -1.0, high: Tensor | float = 1.0) -> None:
        """Say what actions look like; before the first call of `act`.

        Args:
            action: the layout of an action of A components.
            low, high: (A,) or one number: continuous actions are clamped to these bounds.
        """
        self._action = action
        self._low, self._high = torch.as_tensor(low), torch.as_tensor(high)

    def on_episode_start(self) -> None:
        """New episodes begin in all environments."""
        self._starts = True

    def act(self, obs: Obs) -> Tensor:
        """Actions (N, A) on the CPU, as the environment takes them, for raw observations (N, …).

        Raises:
            RemotePolicyError: there was no answer, or one that cannot be used. The connection is closed.
        """
        parts = obs if isinstance(obs, dict) else {"": obs}
        arrays = {name: part.cpu().numpy() for name, part in parts.items()}
        n = len(next(iter(arrays.values())))
        request = {
            "observation": arrays if isinstance(obs, dict) else arrays[""],
            "episode_start": np.full(n, self._starts),
        }
        try:
            self._refuse_unasked()
            self._send(pack(request))
            answer = read_actions(self._receive("answer"), (n, self._action.dim), self._action.sizes)
        except MessageError as error:
            self.close()
            raise RemotePolicyError(f"{self.name}: {error}") from error
        except BaseException:
            self.close()
            raise
        self._starts = False
        actions = torch.from_numpy(answer)
        return actions if self._action.sizes else actions.clamp(self._low, self._high)

    def close(self) -> None:
        """Close the connection."""
        self._open.close()

    def _refuse_unasked(self) -> None:
        """What came without a request would be taken for the next answer, and all later actions would be a step late."""
        from websockets.exceptions import ConnectionClosed

        with contextlib.suppress(TimeoutError, ConnectionClosed):  # a closed connection is told by what comes next
            frame = self._connection.recv(timeout=0)
            if isinstance(frame, bytes):
                raise MessageError(f"a message of {len(frame)} bytes came without a request; answer each request once")
            raise self._reported(frame)

    def _send(self, frame: bytes) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            self._connection.send(frame)
        except ConnectionClosed as error:
            raise self._lost(error) from error

    def _receive(self, what: str) -> Any:
        """The next message. What the server sends as text is an error of its own, as with openpi."""
        from websockets.exceptions import ConnectionClosed

        begin = time.monotonic()
        try:
            frame = self._connection.recv(timeout=self._timeout)
        except TimeoutError as error:
            raise RemotePolicyError(
                f"{self.name} sent no {what} within {time.monotonic() - begin:.1f} s; look at the server, or allow more "
                "with --timeout"
            ) from error
        except ConnectionClosed as error:
            raise self._lost(error) from error
        if isinstance(frame, str):
            raise self._reported(frame)
        return unpack(frame)

    def _reported(self, text: str) -> RemotePolicyError:
        """The error for what a server says in a text frame."""
        told = printable(textwrap.shorten(text.strip().splitlines()[-1] if text.strip() else "nothing", 400))
        return RemotePolicyError(f"{self.name} reports an error: {told}; mend the server, or what is sent to it")

    def _lost(self, error: Any) -> RemotePolicyError:
        """The error for a connection that is closed, with the reason that either side gave."""
        if error.sent is not None and error.sent.code == 1009 and not error.rcvd_then_sent:
            return RemotePolicyError(
                f"{self.name} answered with more than {MOST_ANSWER_BYTES} bytes; send actions alone"
            )
        if error.rcvd is None:
            why = "it ended or no longer reads, or the network is down"
        else:
            why = f"code {error.rcvd.code}{error.rcvd.reason and ', ' + printable(error.rcvd.reason)}"
            if error.rcvd.code == 1009:
                why += ": the frame is too long for the server; use fewer --num-envs"
        return RemotePolicyError(f"{self.name} closed the connection ({why}); start the server again")
