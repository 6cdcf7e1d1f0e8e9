"""The gateway's log: its lines, their times, and the threads and files that they go through.

A line is a flat JSON object for tools, and a sentence for people. Lines go to a rotated file, and
to stderr unless a service manager keeps that. A thread of its own writes them, so that a slow disk
doesn't hold up the event loop.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import json
import logging
import math
import os
import queue
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from typing import Any, Final

import msgspec

from gateway import VERSION
from gateway.system.log_files import RotatedFile, remove_leftovers, shorten_crashes
from gateway.system.state_dir import StateDir

# Keys that a sentence shows in a place of their own, or not at all.
_PLACED: Final = ("time", "level", "logger", "id")


def stamp(at: float) -> str:
    """A Unix time in seconds as ISO 8601, in UTC and of one width, so that it sorts as text."""
    text = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def about(**values: Any) -> dict[str, Any]:
    """The `extra` of a log call, so that its line has these keys beside the message."""
    return {"fields": values}


def structured(record: logging.LogRecord) -> dict[str, Any]:
    """The keys of a record's line. The line of an event has its fields, and no message."""
    given: dict[str, Any] = getattr(record, "fields", {})
    line: dict[str, Any] = {
        "time": stamp(record.created),
        "level": record.levelname.lower(),
        "logger": record.name,
    }
    if "event" not in given:
        line["message"] = record.getMessage()
    for key, value in given.items():
        if isinstance(value, float) and not math.isfinite(value):
            # JSON has no such numbers.
            line.setdefault(key, str(value))
        elif value is not None:
            line.setdefault(key, value)
    if record.exc_info:
        line["exception"] = logging.Formatter().formatException(record.exc_info)
    return line


def as_json(line: Mapping[str, Any]) -> str:
    """One line of ASCII without control characters, whatever the values hold."""
    return json.dumps(line, default=str).replace("\x7f", "\\u007f")


def parsed(text: str) -> dict[str, Any] | None:
    """The keys of a line that `as_json` has written; None for any other text."""
    try:
        line: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return None
    return (
        line if isinstance(line.get("time"), str) and isinstance(line.get("level"), str) else None
    )


def human(line: Mapping[str, Any]) -> str:
    """Local time, level and text; a traceback follows in indented lines."""
    if "event" in line:
        text = " ".join(
            f"{escaped(key)}={_value(value)}" for key, value in line.items() if key not in _PLACED
        )
    else:
        text = escaped(str(line.get("message", "")))
    shown = f"{local_time(line['time'])} {line['level'].upper():<7} {text}"
    traceback = str(line.get("exception", "")).splitlines()
    return "\n".join([shown, *(f"  {escaped(each)}" for each in traceback)])


def readable(text: str) -> str:
    """A line of the gateway's log as a sentence; of any other text its control characters are
    escaped.
    """
    line = parsed(text)
    return escaped(text) if line is None else human(line)


def local_time(text: str) -> str:
    """A stamp in this machine's zone, to the second."""
    try:
        return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return escaped(text)


def escaped(text: str) -> str:
    """The text with an escape, as in \\x1b, for each character that steers a terminal."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def _value(value: Any) -> str:
    """The value in one word, or in quotes, so that tools can split the line."""
    if isinstance(value, float):
        return f"{value:.3f}"
    text = str(value)
    plain = text and text.isprintable() and not any(each in text for each in ' "=')
    return text if plain else escaped(json.dumps(text, ensure_ascii=False))


_AGO: Final = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def since_stamp(text: str, now: float) -> str:
    """The stamp for `10m`, `2h`, or an ISO 8601 time, which without a zone is in this machine's.

    `now` is a Unix time in seconds.

    Raises:
        ValueError: it is neither; the text has examples of both.
    """
    try:
        if ago := _AGO.fullmatch(text):
            return stamp(max(0.0, now - float(ago[1]) * _SECONDS[ago[2]]))
        return stamp(datetime.fromisoformat(text).astimezone(UTC).timestamp())
    except (ValueError, OverflowError, OSError):
        raise ValueError(
            f"{text[:100]!r} is neither a time such as 2026-01-31T12:30 nor how long ago, such as "
            "90s, 10m, 2h or 3d."
        ) from None


logger = logging.getLogger(__name__)

_LINES_BEHIND: Final = 10_000
_FLUSH_S: Final = 5.0


@contextlib.contextmanager
def gateway_logs(
    state_dir: StateDir, model_ids: Iterable[str], level: str, *, to_stderr: bool
) -> Iterator[None]:
    """Log to the state folder, and to stderr: in sentences if that is a terminal, else in JSON.

    An exception that ends the gateway is logged before it is raised on.
    """
    file = RotatedFile(state_dir.gateway_log_path, _complain)
    file.setFormatter(_Form(as_json))
    handlers: list[logging.Handler] = [file]
    # It is None if it was closed before the start.
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
        # It logs each request at INFO; those to agents of other hosts come twice a second.
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
        # logging.shutdown would wait for the locks of all handlers, also of workers' logs, and
        # these may hang. Every line was flushed when it was written.
        atexit.unregister(logging.shutdown)
        if not writer.hangs:
            file.close()


class _Entrance(QueueHandler):
    """Takes records from any thread without a wait, and drops them when too many wait."""

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
            # Handlers are called under their lock, so this count needs no other.
            self.dropped += 1


class _Writer(QueueListener):
    """Writes the records of the entrance, and logs how many were dropped once there is room."""

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
        """Write the records that are left, without a wait for a disk that hangs."""
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
    """The form of a line. It is chosen for each, as a successor gets the terminal of the gateway
    before it later.
    """
    return human(line) if sys.stderr.isatty() else as_json(line)


def _complain(sentence: str) -> None:
    """Print a failure of the log itself to stderr."""
    if sys.stderr is None:
        return
    with contextlib.suppress(OSError):
        print(f"bulkhead: {sentence}", file=sys.stderr, flush=True)


def _log_thread_death(death: threading.ExceptHookArgs) -> None:
    if death.exc_value is not None:
        name = death.thread.name if death.thread else "unknown"
        logger.error("The thread %r failed", name, exc_info=death.exc_value)
