"""What a successor gets at its start, before it has read anything. Blocks, for a moment."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import MutableMapping

import msgspec

from gateway.server.upgrade.messages import Failure
from gateway.server.upgrade.successor import SUCCEEDS

_DESCRIPTORS = 5


class Inheritance:
    """The listener, the lock's descriptor, and the channels to the gateway before this one and to
    who stands in for it.
    """

    def __init__(self, control: socket.socket) -> None:
        """Raises: OSError: there is no gateway at the other end."""
        _, descriptors, _, _ = socket.recv_fds(control, 1, _DESCRIPTORS)
        if len(descriptors) != _DESCRIPTORS:
            raise OSError("the gateway that is to be replaced has gone")
        for each in descriptors:
            os.set_inheritable(each, False)
        passage, listener, lock, stderr, keeper = descriptors
        self.control = control
        self.passage = socket.socket(fileno=passage)
        self.listener = socket.socket(fileno=listener)
        self.lock = lock
        self.keeper = socket.socket(fileno=keeper)
        self._stderr = stderr

    @classmethod
    def of(cls, environment: MutableMapping[str, str]) -> Inheritance | None:
        """None: there is no gateway to be replaced. Raises: OSError, as above."""
        descriptor = environment.pop(SUCCEEDS, None)
        if descriptor is None:
            return None
        control = socket.socket(fileno=int(descriptor))
        control.set_inheritable(False)
        return cls(control)

    def fail(self, reason: str) -> None:
        """Say why nothing comes of it."""
        frame = msgspec.msgpack.encode(Failure(reason))
        self.control.setblocking(True)
        self.control.sendall(struct.pack(">I", len(frame)) + frame)

    def take_stderr(self) -> None:
        """What is printed from now on goes where it went before: until then it was read as reasons
        for a failure.
        """
        sys.stderr.flush()
        os.dup2(self._stderr, 2)
        os.close(self._stderr)
