"""A server that answers with the actions of a policy; see docs/remote-policies.md for one of your own."""

from __future__ import annotations

import http
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .messages import PROTOCOL, Array, MessageError, Observation, pack, read_request, unpack

__all__ = ["BatchPolicy", "PolicyServer"]

log = logging.getLogger(__name__)

MOST_REQUEST_BYTES = 256 * 2**20
"""Longest request that is read: the images of some thousand environments."""


class BatchPolicy(Protocol):
    """Acts in the environments of one connection, and may remember what it saw in them."""

    def act(self, observation: Observation, episode_start: NDArray[np.bool_]) -> Array:
        """Actions (N, A) for observations (N, …); environments where ``episode_start`` (N,) is True begin an episode.

        Raises:
            MessageError: the observations are not those that the policy acts on. The client is told so.
        """


class PolicyServer:
    """Listens once it is made, and answers while `serve_forever` runs.

    Args:
        make_policy: called for each connection, so that recurrent state is never shared.
        metadata: plain values that a client gets when it connects; "protocol" is added.
        host: the address to listen at. Whoever reaches it may use the policy, there is no password; but no web page.
        port: 0 for any that is free.
        max_bytes: longest request that is read.

    Raises:
        OSError: it cannot listen there.
    """

    def __init__(
        self,
        make_policy: Callable[[], BatchPolicy],
        metadata: Mapping[str, Any],
        host: str = "127.0.0.1",
        port: int = 0,
        max_bytes: int = MOST_REQUEST_BYTES,
    ) -> None:
        from websockets.sync.server import serve

        self._make_policy = make_policy
        self._metadata = pack({"protocol": PROTOCOL, **metadata})
        self._server = serve(
            self._answer_all,
            host,
            port,
            compression=None,
            max_size=max_bytes,
            process_request=_answer_health_check,
            # A browser names the page that connects, other clients name none: no web page gets to use the policy.
            origins=[None],
            family=socket.AF_INET6 if ":" in host else socket.AF_INET,
        )
        self.port: int = self._server.socket.getsockname()[1]
        self._lock = threading.Lock()  # of what follows
        self._connections: set[Any] = set()
        self._serving = self._closed = False

    def serve_forever(self) -> None:
        """Answer until `close` is called from another thread, or until Ctrl-C."""
        with self._lock:
            if self._closed:
                return
            self._serving = True
        try:
            self._server.serve_forever()
        finally:  # a thread that waits for the next request of a client would keep the process alive
            self.close()

    def close(self) -> None:
        """Stop listening and close the connections. Closing again does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._serving:
            self._server.shutdown()
        else:  # `shutdown` would wait for `serve_forever` to end
            self._server.socket.close()
        with self._lock:  # older versions of websockets leave them open
            connections = list(self._connections)
        for connection in connections:
            connection.close(1001)

    def _answer_all(self, connection: Any) -> None:
        from websockets.exceptions import ConnectionClosed

        client = connection.remote_address
        with self._lock:
            self._connections.add(connection)
        try:
            policy = self._make_policy()
            connection.send(self._metadata)
            for frame in connection:
                begin = time.perf_counter()
                actions = policy.act(*read_request(unpack(frame)))
                took = (time.perf_counter() - begin) * 1e3
                connection.send(pack({"actions": actions, "server_timing": {"infer_ms": took}}))
        except ConnectionClosed:
            log.info("%s: the connection was lost", client)
        except MessageError as error:
            log.warning("%s: %s", client, error)
            _refuse(connection, 1003, str(error))
        except Exception as error:  # the policy's own; other connections go on
            log.exception("%s: the policy failed", client)
            _refuse(connection, 1011, f"the policy failed: {type(error).__name__}: {error}")
        finally:
            with self._lock:
                self._connections.discard(connection)


def _refuse(connection: Any, code: int, text: str) -> None:
    """Tell the client why in a text frame, as openpi's server does, and close."""
    from websockets.exceptions import ConnectionClosed

    try:
        connection.send(text)
        connection.close(code, "the last frame says why")
    except ConnectionClosed:
        log.info("a client left before it was told: %s", text)


def _answer_health_check(connection: Any, request: Any) -> Any:
    """``GET /healthz`` is answered with 200, as openpi's server does."""
    return connection.respond(http.HTTPStatus.OK, "OK\n") if request.path == "/healthz" else None
