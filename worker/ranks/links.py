"""The channels between rank 0 and its followers, and the news that one of them is broken.

Orders go over ZeroMQ and not over the collective operations that carry the computation: a rank that
waits in one of those spins, on the ring at least, and would keep a core busy all day.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Final

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from protocol.channel import Keys, bind_leader_side, connect_follower_side
from protocol.ranks import Ranks
from worker.ranks.orders import (
    Answer,
    Finish,
    HasFailed,
    Here,
    Order,
    decode_answer,
    decode_order,
    encode,
)
from worker.system.errors import LoadAbandonedError, ModelError

# Between two looks at whether a wait is to be given up.
_LOOK_MS: Final = 50


class LeaderLink:
    """Rank 0's channels. Used by one thread; `on_lost` is called from another."""

    def __init__(self, ranks: Ranks, on_lost: Callable[[int], None]) -> None:
        """`on_lost` is told the rank that is lost.

        Raises:
            ModelError: the endpoint can't be bound.
        """
        self._followers = [str(rank).encode() for rank in range(1, ranks.size)]
        self._on_lost = on_lost
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self._socket = bind_leader_side(
                self._context, ranks.endpoint, Keys(*ranks.keys), ranks.silence_s
            )
        except zmq.ZMQError as error:
            raise ModelError(f"{ranks.endpoint}: {error.strerror}", permanent=False) from error
        self._monitor = self._socket.get_monitor_socket(zmq.Event.ACCEPTED | zmq.Event.DISCONNECTED)
        # Whose connections these descriptors are: strangers have some, too, which prove nothing.
        self._ranks: dict[int, int] = {}
        self._gone: list[int] = []
        self._closing = False
        self._watched = False

    def gather(self, versions: dict[str, str], should_stop: Callable[[], bool]) -> None:
        """Wait until all followers are there; from then on one that goes is lost.

        Raises:
            ModelError: one of them is of another version.
            LoadAbandonedError: `should_stop` said so.
        """
        for rank, answer in self._all(should_stop).items():
            if isinstance(answer, Here) and answer.versions != versions:
                raise ModelError(
                    f"Rank {rank} has other versions than rank 0: {_listed(answer.versions)}, not "
                    f"{_listed(versions)}. Install the same on all hosts."
                )
        self._watched = True
        threading.Thread(target=self._watch, name="followers", daemon=True).start()

    def until_loaded(self, should_stop: Callable[[], bool]) -> None:
        """Raises: ModelError: one of them can't load its part. LoadAbandonedError."""
        self._all(should_stop)

    def tell(self, order: Order) -> None:
        """Raises: zmq.ZMQError: a follower is gone, or has read nothing for long."""
        frame = encode(order)
        for each in self._followers:
            self._socket.send_multipart((each, frame))

    def finish(self) -> None:
        """Tell those that are there that it is over."""
        frame = encode(Finish())
        for each in self._followers:
            with contextlib.suppress(zmq.ZMQError):
                self._socket.send_multipart((each, frame), zmq.NOBLOCK)

    def close(self) -> None:
        """What was told is delivered first."""
        self._closing = True
        if not self._watched:
            self._monitor.close(linger=0)
        self._socket.close()
        # Not for ever: a second, by the socket's linger.
        self._context.term()

    def _all(self, should_stop: Callable[[], bool]) -> dict[int, Answer]:
        """One answer of each follower."""
        answers: dict[int, Answer] = {}
        while len(answers) < len(self._followers):
            if should_stop():
                raise LoadAbandonedError
            if not self._socket.poll(_LOOK_MS):
                continue
            identity, frame = self._socket.recv_multipart(copy=False)
            rank = int(identity.bytes)
            if not self._watched:
                self._meet(rank, int(frame.get(zmq.SRCFD)))
            try:
                answers[rank] = answer = decode_answer(frame.bytes)
            except msgspec.DecodeError as error:
                raise ModelError(
                    f"Rank {rank} is of another version of Bulkhead. Install the same on all hosts."
                ) from error
            if isinstance(answer, HasFailed):
                raise ModelError(f"Rank {rank}: {answer.reason}", permanent=answer.permanent)
        return answers

    def _meet(self, rank: int, descriptor: int) -> None:
        """A follower is heard on this connection. The ends of earlier ones with its descriptor have
        been told before, and are told no more.
        """
        gone = False
        with contextlib.suppress(zmq.Again):
            while True:
                told = recv_monitor_message(self._monitor, zmq.NOBLOCK)
                if told["value"] == descriptor:
                    gone = told["event"] == zmq.Event.DISCONNECTED
                elif told["event"] == zmq.Event.DISCONNECTED and told["value"] in self._ranks:
                    self._gone.append(self._ranks.pop(told["value"]))
        if gone:
            self._gone.append(rank)
        else:
            self._ranks[descriptor] = rank

    def _watch(self) -> None:
        for rank in self._gone:
            self._on_lost(rank)
        for descriptor in _ends(self._monitor):
            if descriptor in self._ranks and not self._closing:
                self._on_lost(self._ranks.pop(descriptor))


class FollowerLink:
    """A follower's channel. Used by one thread; `on_lost` is called from another."""

    def __init__(
        self, address: str, key: bytes, rank: int, silence_s: float, on_lost: Callable[[str], None]
    ) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = connect_follower_side(self._context, address, key, rank, silence_s)
        self._monitor = self._socket.get_monitor_socket(zmq.Event.DISCONNECTED)
        self._on_lost = on_lost
        self._closing = False
        threading.Thread(target=self._watch, name="leader", daemon=True).start()

    def say(self, answer: Answer) -> None:
        self._socket.send(encode(answer))

    def next(self, should_stop: Callable[[], bool]) -> Order | None:
        """The next order; None if `should_stop` said so meanwhile.

        Raises:
            msgspec.DecodeError: rank 0 is of another version.
        """
        while not should_stop():
            if self._socket.poll(_LOOK_MS):
                return decode_order(self._socket.recv())
        return None

    def close(self) -> None:
        self._closing = True
        self._socket.close()
        # Not for ever: a second, by the socket's linger.
        self._context.term()

    def _watch(self) -> None:
        for _ in _ends(self._monitor):
            if not self._closing:
                self._on_lost("Rank 0 is gone")


def _ends(monitor: zmq.Socket[bytes]) -> Iterator[int]:
    """Descriptors whose connections have ended, until the context ends, which waits for this socket
    too.
    """
    while True:
        try:
            told = recv_monitor_message(monitor)
        except zmq.ContextTerminated:
            monitor.close(linger=0)
            return
        if told["event"] == zmq.Event.DISCONNECTED:
            yield told["value"]


def _listed(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
