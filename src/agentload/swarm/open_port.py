"""The master's port is open to whoever reaches it: what is no message of a worker ends nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import zmq
from locust.exception import RPCError, RPCReceiveError
from locust.rpc import zmqrpc

logger = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 64_000_000  # four files of a backlog are 16 MB; see `relay.BATCH_BYTES`
MAX_ID_CHARS = 200
MAX_USERS = 10**7


class OpenPort(zmqrpc.Server):
    """Locust's server, which one malformed frame would end and one large enough would fill."""

    def __init__(self, host: str, port: int) -> None:
        # As in Locust, with the limit: ZeroMQ takes it only before the port is bound.
        zmqrpc.BaseSocket.__init__(  # type: ignore[no-untyped-call]
            self, zmq.ROUTER, self.ipv4_only(host, port)
        )
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        try:
            if port == 0:
                self.port = self.socket.bind_to_random_port(f"tcp://{host}")
            else:
                self.socket.bind(f"tcp://{host}:{port}")
                self.port = port
        except zmq.ZMQError as error:
            raise RPCError(f"Socket bind failure: {error}") from None

    def recv_from_client(self) -> Any:
        """Identity and message; RPCReceiveError for what is none, after which Locust goes on."""
        try:
            peer, message = super().recv_from_client()  # type: ignore[no-untyped-call]
        except RPCError:
            raise
        except Exception as error:
            raise RPCReceiveError(f"not a message: {type(error).__name__}") from None
        if not _is_name(message.type) or not _is_name(message.node_id) or message.node_id != peer:
            raise RPCReceiveError("not a message of a worker: its type or its id is none")
        if not _SOUND.get(message.type, _anything)(message.data):
            raise RPCReceiveError(f"not a message of a worker: {message.type} says nonsense")
        return peer, message


def _anything(_: Any) -> bool:
    return True


def _says_users(data: Any) -> bool:
    """Locust adds these numbers up wherever it looks at its users."""
    users = data.get("user_classes_count") if isinstance(data, dict) else None
    return isinstance(users, dict) and all(
        isinstance(name, str) and isinstance(count, int) and 0 <= count < MAX_USERS
        for name, count in users.items()
    )


def _says_how_it_is(data: Any) -> bool:
    return (
        isinstance(data, dict)
        and isinstance(data.get("state"), str)
        and isinstance(data.get("current_cpu_usage"), int | float)
    )


_SOUND: dict[str, Callable[[Any], bool]] = {
    "stats": _says_users,
    "spawning_complete": _says_users,
    "heartbeat": _says_how_it_is,
}


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_ID_CHARS and value.isprintable()


def open_port_carefully() -> None:
    """Let masters that are made from now on use it."""
    zmqrpc.Server = OpenPort  # type: ignore[misc]


def outlive_messages(runner: Any) -> None:
    """A fault in handling one message must not end the greenlet that handles all."""
    handle = runner.handle_message

    def handle_message(client_id: str, message: Any) -> None:
        try:
            handle(client_id, message)
        except Exception as error:
            logger.warning(
                "agentload: a message %r of %r cannot be used: %s",
                message.type[:40], client_id[:80], type(error).__name__,
            )  # fmt: skip

    runner.handle_message = handle_message
