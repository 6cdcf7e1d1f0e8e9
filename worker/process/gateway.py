"""A worker's process and its gateway: signals, the channel, the move to the next gateway, and the
death of the gateway.

A worker notices the death of its gateway by a kernel event and by a poll, on Linux as on macOS.
PDEATHSIG would do this only on Linux, and tests on Linux must test the code that runs on macOS.
PDEATHSIG also watches only the process that started the worker. After a move the worker belongs to
another gateway.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import math
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

import zmq

from protocol.channel import connect_worker_side
from protocol.life import (
    Move,
    Moved,
    Settle,
    Stay,
)
from protocol.message_base import Message
from protocol.messages import GatewayMessage, decode_from_gateway, encode
from protocol.process import DUMP_STACKS, ProcessExit

_POLL_S = 1.0


def set_up_process(stop: Callable[[], None]) -> None:
    """Set up the signals, stack dumps and log of a worker's process. SIGTERM calls `stop`."""

    def on_sigterm(_signal: int, _frame: FrameType | None) -> None:
        stop()

    # Ctrl-C reaches the whole process group. The gateway decides when its workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, on_sigterm)
    faulthandler.enable()
    # The dump is written in C, so it works even if a thread holds the interpreter's lock.
    faulthandler.register(DUMP_STACKS, all_threads=True, chain=False)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")


def end_process(status: int) -> NoReturn:
    """End the process at once. The memory has been released before. The interpreter's own end would
    wait for other threads.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class GatewayLink:
    """The channel to the gateway. Messages are sent in their order, as soon as the gateway takes
    them. After an order to move, new messages wait until the next gateway has settled or the order
    is taken back.
    """

    def __init__(self, address: str, key: bytes) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = connect_worker_side(self._context, address, key)
        # The channel to the next gateway and the pid of that gateway, from an order to move until
        # that gateway settles.
        self._next: tuple[zmq.Socket[bytes], int] | None = None
        self._final_messages: deque[bytes] = deque()
        self._unsent: deque[bytes] = deque()
        self._poller = zmq.Poller()
        self._watched: object = None
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)

    @property
    def unsent(self) -> int:
        """How many messages the gateway hasn't taken yet."""
        return len(self._unsent)

    def close(self) -> None:
        self._socket.close()
        if self._next is not None:
            self._next[0].close(linger=0)
        self._context.term()

    def wake(self) -> None:
        """End a `wait`. Signal handlers and other threads may call this."""
        try:
            os.write(self._wake_write, b"\0")
        except BlockingIOError:
            # The pipe is full, so the main thread wakes in any case.
            return

    def wait(self, seconds: float) -> None:
        """Wait until a message may be read or sent, or until `wake` is called: at most so many
        seconds.
        """
        unsent = self._sendable
        watched = (self._socket, self._next and self._next[0], bool(unsent))
        if watched != self._watched:
            self._watched = watched
            self._poller = zmq.Poller()
            self._poller.register(self._wake_read, zmq.POLLIN)
            self._poller.register(self._socket, zmq.POLLIN | (zmq.POLLOUT if unsent else 0))
            if self._next is not None:
                self._poller.register(self._next[0], zmq.POLLIN)
        self._poller.poll(math.ceil(seconds * 1000))
        self._clear_wake()

    def send(self, message: Message) -> None:
        self._unsent.append(encode(message))
        self.send_unsent()

    def send_unsent(self) -> None:
        """Send as many messages as the gateway takes."""
        unsent = self._sendable
        while unsent:
            try:
                self._socket.send(unsent[0], zmq.NOBLOCK)
            except zmq.Again:
                return
            unsent.popleft()

    def receive(self) -> GatewayMessage | None:
        """The next order of the gateway; None: no order has come yet. An order to move or to stay
        is carried out here.
        """
        while True:
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return None
            match decode_from_gateway(frame):
                case Move() as move:
                    self._move(move)
                case Stay():
                    self._stay()
                case order:
                    return order

    def switch_gateway(self) -> int | None:
        """Change to the next gateway once its first message has come. Returns the pid of that
        gateway, to which this worker then belongs; None: there is no such message yet.
        """
        if self._next is None:
            return None
        socket, pid = self._next
        try:
            frame = socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        if not isinstance(decode_from_gateway(frame), Settle):
            raise RuntimeError("The next gateway gave an order before it had settled.")
        self._socket.close(linger=0)
        self._socket, self._next = socket, None
        self._final_messages.clear()
        self.send_unsent()
        return pid

    @property
    def _sendable(self) -> deque[bytes]:
        return self._final_messages if self._next is not None else self._unsent

    def _move(self, move: Move) -> None:
        self._stay()
        socket = connect_worker_side(self._context, move.address, move.key)
        self._next = (socket, move.parent)
        self._unsent.append(encode(Moved()))
        self._final_messages, self._unsent = self._unsent, deque()
        self.send_unsent()

    def _stay(self) -> None:
        if self._next is None:
            return
        self._next[0].close(linger=0)
        self._next = None
        self._unsent.extendleft(reversed(self._final_messages))
        self._final_messages.clear()
        self.send_unsent()

    def _clear_wake(self) -> None:
        try:
            os.read(self._wake_read, 65536)
        except BlockingIOError:
            return


class ParentWatch:
    """Calls `on_death` from a thread once the gateway is gone, and ends the process `grace_s()`
    later.

    The end is unconditional: a worker without a gateway must not keep its memory because its
    orderly stop hangs.
    """

    def __init__(
        self, parent_pid: int, on_death: Callable[[], None], grace_s: Callable[[], float]
    ) -> None:
        self._pid = parent_pid
        self._on_death = on_death
        self._grace_s = grace_s
        self._start(parent_pid, lambda: os.getppid() != parent_pid)

    def follow(self, pid: int) -> None:
        """Watch the process `pid` from now on, even if that isn't the parent of this process."""
        self._pid = pid
        self._start(pid, lambda: not _exists(pid))

    def _start(self, pid: int, gone: Callable[[], bool]) -> None:
        threading.Thread(
            target=self._watch, args=(pid, gone), name="parent-watch", daemon=True
        ).start()

    def _watch(self, pid: int, gone: Callable[[], bool]) -> None:
        with contextlib.closing(ProcessExit(pid)) as exit_:
            while self._pid == pid and not (exit_.comes_within(_POLL_S) or gone()):
                pass
        if self._pid != pid:
            return
        self._on_death()
        time.sleep(self._grace_s())
        os._exit(1)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
