"""The orders of rank 0 to the followers, the followers' answers, and the channels between them.

Rank 0 alone decides which rows join and leave, how long a chunk is, which tokens come and which
blocks the prompt cache keeps. Rank 0 sends each operation as an order before it begins the
operation. A follower does the same with its part of the model. So all ranks compute the same steps
on caches of the same shapes, and their collective operations meet in the same order. Otherwise the
ranks would wait for ever.

Orders go over ZeroMQ, and not over collective operations. A rank that waits in a collective
operation spins, at least with the ring back end, and would keep a core busy all day.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Final, Literal, TypeAlias, TypeVar

import msgspec
import zmq
from msgspec import Struct
from zmq.utils.monitor import recv_monitor_message

from protocol.channel import Keys, bind_leader_side, connect_follower_side
from protocol.life import Load, Ranks
from worker.system.errors import LoadAbandonedError, ModelError

# Where a batch of mlx-lm's has the caches of a row: among those of prompts, among those of answers,
# or at the row itself if the row has just ended.
Stage: TypeAlias = Literal["prompt", "answer", "ended"]


class _RankOrder(Struct, frozen=True, tag_field="type"):
    pass


class OpenBatch(_RankOrder, frozen=True, tag="open"):
    """Open a batch with the number `batch`, of at most `rows` rows. At most `prompts` of them are
    in prefill.
    """

    batch: int
    rows: int
    prompts: int


class CloseBatch(_RankOrder, frozen=True, tag="close"):
    batch: int


class InsertRow(_RankOrder, frozen=True, tag="insert"):
    """Add a row to a batch. `segments` are the parts of its prompt to compute. `joined` is the
    number of caches that were joined from cached blocks; None: the row gets new caches.
    """

    batch: int
    segments: list[list[int]]
    max_tokens: int
    stop_token_ids: list[int]
    joined: int | None


class RemoveRows(_RankOrder, frozen=True, tag="remove"):
    batch: int
    rows: list[int]


class StepBatch(_RankOrder, frozen=True, tag="step"):
    """Compute a step, with `chunk` tokens of each prompt. With `watched` the prompts' logits are
    wanted.
    """

    batch: int
    chunk: int
    watched: bool


class RowPlace(Struct, frozen=True):
    """Where the caches of a row are. `row` is the index of the row in the caches, or the number of
    a row that has ended.
    """

    batch: int
    stage: Stage
    row: int


class CutBlocks(_RankOrder, frozen=True, tag="cut"):
    """Cut and cache blocks `first` to `last` - 1 of a row. Their numbers begin with `number`."""

    place: RowPlace
    first: int
    last: int
    number: int


class TakeSnapshot(_RankOrder, frozen=True, tag="snapshot"):
    """Keep a snapshot of a row, with the number `number`: the state of caches that can't be cut."""

    place: RowPlace
    number: int


class JoinBlocks(_RankOrder, frozen=True, tag="join"):
    """Join caches from cached blocks, for a row that is inserted later. The caches get the number
    `number`.
    """

    blocks: list[int]
    snapshot: int | None
    number: int


class ForgetBlocks(_RankOrder, frozen=True, tag="forget"):
    """Drop blocks and snapshots that rank 0 doesn't keep any more."""

    numbers: list[int]


class SetLimit(_RankOrder, frozen=True, tag="take"):
    """Set the memory limit of each rank. Its process holds `beside_bytes` beside MLX's account."""

    limit_bytes: int
    beside_bytes: int


class TrimMemory(_RankOrder, frozen=True, tag="trim"):
    """Give back the buffers that MLX keeps for reuse."""


class EndRank(_RankOrder, frozen=True, tag="finish"):
    """Release the model and end."""


class LoadPart(_RankOrder, frozen=True, tag="begin"):
    """Load this rank's part of a model. This is the first order."""

    load: Load


RankOrder: TypeAlias = (
    LoadPart
    | OpenBatch
    | CloseBatch
    | InsertRow
    | RemoveRows
    | StepBatch
    | CutBlocks
    | TakeSnapshot
    | JoinBlocks
    | ForgetBlocks
    | SetLimit
    | TrimMemory
    | EndRank
)


class FollowerReady(_RankOrder, frozen=True, tag="here"):
    """A follower is ready. Its `versions` must be those of rank 0."""

    versions: dict[str, str]


class PartLoaded(_RankOrder, frozen=True, tag="has-loaded"):
    pass


class PartFailed(_RankOrder, frozen=True, tag="has-failed"):
    reason: str
    permanent: bool


FollowerAnswer: TypeAlias = FollowerReady | PartLoaded | PartFailed

_T = TypeVar("_T")
_encoder = msgspec.msgpack.Encoder()
_orders: msgspec.msgpack.Decoder[RankOrder] = msgspec.msgpack.Decoder(RankOrder)
_answers: msgspec.msgpack.Decoder[FollowerAnswer] = msgspec.msgpack.Decoder(FollowerAnswer)


def encode(message: RankOrder | FollowerAnswer) -> bytes:
    return _encoder.encode(message)


def decode_order(frame: bytes) -> RankOrder:
    """Raises: msgspec.DecodeError: it is of another version."""
    return _orders.decode(frame)


def decode_answer(frame: bytes) -> FollowerAnswer:
    """Raises: msgspec.DecodeError: it is of another version."""
    return _answers.decode(frame)


# The time between two checks whether to give up a wait.
_LOOK_MS: Final = 50


class LeaderLink:
    """Rank 0's channels to the followers. One thread uses them. Another thread calls `on_lost`."""

    def __init__(self, ranks: Ranks, on_lost: Callable[[int], None]) -> None:
        """`on_lost` is called with the number of a rank that is lost.

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
        # The ranks by the descriptors of their connections. Strangers without the key may also
        # connect, but are not in here.
        self._ranks: dict[int, int] = {}
        self._gone: list[int] = []
        self._closing = False
        self._watched = False

    def gather(self, versions: dict[str, str], should_stop: Callable[[], bool]) -> None:
        """Wait until all followers are ready. From then on, a follower whose connection ends is
        lost.

        Raises:
            ModelError: a follower is of another version.
            LoadAbandonedError: `should_stop` has become true.
        """
        for rank, answer in self._all(should_stop).items():
            if isinstance(answer, FollowerReady) and answer.versions != versions:
                raise ModelError(
                    f"Rank {rank} has other versions than rank 0: {_listed(answer.versions)}, not "
                    f"{_listed(versions)}. Install the same on all hosts."
                )
        self._watched = True
        threading.Thread(target=self._watch, name="followers", daemon=True).start()

    def until_loaded(self, should_stop: Callable[[], bool]) -> None:
        """Wait until all followers have loaded their parts.

        Raises:
            ModelError: a follower can't load its part.
            LoadAbandonedError: `should_stop` has become true.
        """
        self._all(should_stop)

    def send(self, order: RankOrder) -> None:
        """Send an order to all followers.

        Raises:
            zmq.ZMQError: a follower is gone, or has read nothing for long.
        """
        frame = encode(order)
        for follower in self._followers:
            self._socket.send_multipart((follower, frame))

    def finish(self) -> None:
        """Tell the followers that still listen to end."""
        frame = encode(EndRank())
        for follower in self._followers:
            with contextlib.suppress(zmq.ZMQError):
                self._socket.send_multipart((follower, frame), zmq.NOBLOCK)

    def close(self) -> None:
        """Close the channels. Waits until all orders are delivered, a second at most."""
        self._closing = True
        if not self._watched:
            self._monitor.close(linger=0)
        self._socket.close()
        # This waits a second at most, by the socket's linger.
        self._context.term()

    def _all(self, should_stop: Callable[[], bool]) -> dict[int, FollowerAnswer]:
        """Wait for one answer of each follower. Returns the answers by rank."""
        answers: dict[int, FollowerAnswer] = {}
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
            if isinstance(answer, PartFailed):
                raise ModelError(f"Rank {rank}: {answer.reason}", permanent=answer.permanent)
        return answers

    def _meet(self, rank: int, descriptor: int) -> None:
        """Note the descriptor of the connection on which a follower is heard, unless this
        connection has ended already. Earlier connections may have had the same descriptor, so only
        the last event with it counts.
        """
        gone = False
        with contextlib.suppress(zmq.Again):
            while True:
                event = recv_monitor_message(self._monitor, zmq.NOBLOCK)
                if event["value"] == descriptor:
                    gone = event["event"] == zmq.Event.DISCONNECTED
                elif event["event"] == zmq.Event.DISCONNECTED and event["value"] in self._ranks:
                    self._gone.append(self._ranks.pop(event["value"]))
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
    """A follower's channel to rank 0. One thread uses it. Another thread calls `on_lost`."""

    def __init__(
        self, address: str, key: bytes, rank: int, silence_s: float, on_lost: Callable[[str], None]
    ) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = connect_follower_side(self._context, address, key, rank, silence_s)
        self._monitor = self._socket.get_monitor_socket(zmq.Event.DISCONNECTED)
        self._on_lost = on_lost
        self._closing = False
        threading.Thread(target=self._watch, name="leader", daemon=True).start()

    def send(self, answer: FollowerAnswer) -> None:
        self._socket.send(encode(answer))

    def receive(self, should_stop: Callable[[], bool]) -> RankOrder | None:
        """The next order; None if `should_stop` becomes true before that.

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
        # This waits a second at most, by the socket's linger.
        self._context.term()

    def _watch(self) -> None:
        for _ in _ends(self._monitor):
            if not self._closing:
                self._on_lost("Rank 0 is gone")


def _ends(monitor: zmq.Socket[bytes]) -> Iterator[int]:
    """Yields the descriptor of each connection that ends. When the context ends, closes the monitor
    socket, for which the context waits.
    """
    while True:
        try:
            event = recv_monitor_message(monitor)
        except zmq.ContextTerminated:
            monitor.close(linger=0)
            return
        if event["event"] == zmq.Event.DISCONNECTED:
            yield event["value"]


def _listed(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
