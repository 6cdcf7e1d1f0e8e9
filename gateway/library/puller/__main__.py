"""Takes an order from its input, says what becomes of it on its output, and ends with either."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Final

import msgspec
from huggingface_hub import constants

from gateway.library.hub.messages import Failed, Order, PullError, Said
from gateway.library.puller.pull import Pull

# Whoever answers requests goes first.
_NICE: Final = 5


def main() -> int:
    # A Ctrl-C is its owner's, which has asked for the pull.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICE)
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    agreed = threading.Event()
    threading.Thread(target=_watch_input, args=(agreed,), name="input", daemon=True).start()
    try:
        if order.folder is None and constants.is_offline_mode():
            raise PullError(
                "offline", "HF_HUB_OFFLINE is set: unset it, or name a folder with hub.folder."
            )
        _say(Pull(order, Path(constants.HF_HUB_CACHE), _say, lambda: _ignore(agreed.wait())).run())
    except PullError as error:
        _say(Failed(error.code, error.message))
        return 1
    return 0


def _watch_input(agreed: threading.Event) -> None:
    """The end of the input is the end of whoever wanted the model."""
    while sys.stdin.buffer.readline():
        agreed.set()
    os._exit(1)


def _say(said: Said) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(said) + b"\n")
    sys.stdout.buffer.flush()


def _ignore(_: object) -> None:
    """It is only waited for."""


if __name__ == "__main__":
    status = main()
    # Threads that still read would be waited for.
    sys.stdout.flush()
    os._exit(status)
