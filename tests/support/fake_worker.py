"""Names for the code that `faults.interpreter` runs in the place of a worker.

They stand here, not in its text, so that a message that moves breaks the tests at their import.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import zmq

from protocol.answers import Delta, Guesses, Output, Rendered, Text, Usage
from protocol.channel import KEY_BYTES, connect_worker_side
from protocol.life import (
    CacheProven,
    CacheQuarantined,
    ClearPromptCache,
    Device,
    Heartbeat,
    Hello,
    MlxMemory,
    PromptCacheCleared,
    Ready,
    Stop,
)
from protocol.messages import PROTOCOL_VERSION, decode_from_gateway, encode
from protocol.requests import Generate

__all__ = [
    "CacheProven",
    "CacheQuarantined",
    "ClearPromptCache",
    "Delta",
    "Generate",
    "Guesses",
    "Heartbeat",
    "MlxMemory",
    "Output",
    "PromptCacheCleared",
    "Rendered",
    "Stop",
    "Text",
    "Usage",
    "connect",
    "decode_from_gateway",
    "encode",
    "heartbeat",
    "hello",
    "ready",
    "serve",
    "sys",
    "time",
    "wait",
]


def _argument(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


def connect() -> Any:
    """A PAIR socket to the gateway."""
    key = sys.stdin.buffer.read(KEY_BYTES)
    return connect_worker_side(zmq.Context(), _argument("--endpoint"), key)


def wait() -> None:
    """Say nothing more, as one that hangs."""
    time.sleep(120)


def serve(socket: Any) -> None:
    """Say nothing more but heartbeats, as one that is idle, until it is told to stop."""
    while True:
        if not socket.poll(500):
            socket.send(encode(heartbeat()))
        elif isinstance(decode_from_gateway(socket.recv()), Stop):
            sys.exit(0)


def heartbeat(**fields: Any) -> Heartbeat:
    usual = {"step": 1, "step_age_s": 0.0, "active": 0, "waiting": 0, "memory": MlxMemory()}
    return Heartbeat(**{**usual, **fields})


def hello(**fields: Any) -> Hello:
    usual = {
        "protocol_version": PROTOCOL_VERSION,
        "pid": os.getpid(),
        "incarnation": int(_argument("--incarnation")),
        "python_version": "3",
        "mlx_version": "0",
        "mlx_lm_version": "0",
        "device": Device(name="none", architecture="none"),
    }
    return Hello(**{**usual, **fields})


def ready() -> Ready:
    return Ready(
        load_s=0.0,
        weight_bytes=0,
        context_tokens=100,
        fingerprint="0",
        memory=MlxMemory(),
    )
