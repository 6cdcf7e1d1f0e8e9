"""Where the gateway's log lines go: a rotated file, and stderr unless a service manager keeps that.

Lines are written by a thread of their own, so that a slow disk doesn't hold up the event loop.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import logging
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from logging.handlers import QueueHandler, QueueListener
from typing import Any, Final

from gateway import VERSION
from gateway.system.log_files import RotatedFile, remove_leftovers, shorten_crashes
from gateway.system.log_lines import about, as_json, human, structured
from gateway.system.state_dir import StateDir

# These have a place of their own in a sentence, or none.


logger = logging.getLogger(__name__)

_LINES_BEHIND: Final = 10_000
_FLUSH_S: Final = 5.0


@contextlib.contextmanager
def gateway_logs(
    state_dir: StateDir, model_ids: Iterable[str], level: str, *, to_stderr: bool
) -> Iterator[None]:
    """Log to the state folder, and to stderr: in sentences if that is a terminal, else in JSON.

    An exception that ends the gateway is logged on its way.
    """
    file = RotatedFile(state_dir.gateway_log_path, _complain)
    file.setFormatter(_Form(as_json))
    handlers: list[logging.Handler] = [file]
    # None: it was closed before the start.
    if to_stderr and sys.stderr is not None:
        stderr = logging.StreamHandler(sys.stderr)
        stderr.setFormatter(_Form(_for_stderr))
        handlers.append(stderr)
    entrance = _Entrance(_LINES_BEHIND)
    writer = _Writer(entrance, *handlers)
    root = logging.getLogger()
    root.setLevel(level.upper())
    root.addHandler(entrance)
    if not root.isEnabledFor(logging.DEBUG):
        # It says each request at INFO; those to other hosts' agents come twice a second.
        logging.getLogger("httpx").setLevel(logging.WARNING)
    writer.start()
    if sys.stderr is not None:
        faulthandler.enable()
    threading.excepthook = _log_thread_death
    remove_leftovers(state_dir.logs, (*map(state_dir.log_path, model_ids), *state_dir.own_logs))
    shorten_crashes(state_dir.crash_log_path)
    pid = os.getpid()
    logger.info("Bulkhead %s starts, pid %d", VERSION, pid, extra=about(version=VERSION, pid=pid))
    try:
        yield
    except Exception:
        logger.critical("The gateway ends by an error", exc_info=True)
        raise
    finally:
        threading.excepthook = threading.__excepthook__
        root.removeHandler(entrance)
        writer.stop()
        # It would wait for the locks of all handlers: those of workers' logs are among them, and
        # may hang. Every line was flushed when it was written.
        atexit.unregister(logging.shutdown)
        if not writer.hangs:
            file.close()


class _Entrance(QueueHandler):
    """Takes records on any thread without waiting, and drops them when too many wait."""

    queue: queue.Queue[logging.LogRecord | None]

    def __init__(self, bound: int) -> None:
        super().__init__(queue.Queue(bound))
        self.dropped = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        # Arguments may change until the line is written, and tracebacks hold frames.
        return logging.makeLogRecord({"levelno": record.levelno, "line": structured(record)})

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            # Handlers are called under their lock, and so is this.
            self.dropped += 1


class _Writer(QueueListener):
    """Writes what has come in, and says how much was dropped as soon as there is room again."""

    def __init__(self, entrance: _Entrance, *handlers: logging.Handler) -> None:
        super().__init__(entrance.queue, *handlers)
        self._entrance = entrance
        self._told = 0
        self.hangs = False

    def handle(self, record: logging.LogRecord) -> None:
        super().handle(record)
        if (dropped := self._entrance.dropped - self._told) > 0:
            self._told += dropped
            text = f"{dropped} log lines were dropped: they came faster than they could be written"
            notice = logger.makeRecord(logger.name, logging.WARNING, "", 0, text, (), None)
            super().handle(self._entrance.prepare(notice))

    def enqueue_sentinel(self) -> None:
        with contextlib.suppress(queue.Full):
            self._entrance.queue.put(None, timeout=_FLUSH_S)

    def stop(self) -> None:
        """Write what is left, but don't wait for a disk that hangs."""
        if (thread := self._thread) is not None:
            self.enqueue_sentinel()
            thread.join(_FLUSH_S)
            self.hangs = thread.is_alive()
            self._thread = None


class _Form(logging.Formatter):
    def __init__(self, form: Callable[[Mapping[str, Any]], str]) -> None:
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        return self._form(record.line)  # type: ignore[attr-defined]


def _for_stderr(line: Mapping[str, Any]) -> str:
    """Asked for each line: a successor gets the terminal of the gateway before it."""
    return human(line) if sys.stderr.isatty() else as_json(line)


def _complain(sentence: str) -> None:
    """Of the log itself: there is no other place."""
    if sys.stderr is None:
        return
    with contextlib.suppress(OSError):
        print(f"bulkhead: {sentence}", file=sys.stderr, flush=True)


def _log_thread_death(death: threading.ExceptHookArgs) -> None:
    if death.exc_value is not None:
        name = death.thread.name if death.thread else "unknown"
        logger.error("The thread %r failed", name, exc_info=death.exc_value)
