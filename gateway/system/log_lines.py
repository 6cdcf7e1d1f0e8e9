"""The gateway's log: the form of its lines, and the threads and files that they go through.

A line is a flat JSON object for tools, and a sentence for people. Lines go to a rotated file, and
to stderr unless the operator chose the file alone. A separate thread writes the lines, so that a
slow disk doesn't hold up the event loop.
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
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from typing import Any, Final

import msgspec

from gateway import VERSION
from gateway.system.log_files import RotatedFile, remove_leftovers, shorten_crashes
from gateway.system.state_dir import StateDir

# Keys that `human` doesn't write as KEY=VALUE.
_PLACED: Final = ("time", "level", "logger", "id")


def stamp(at: float) -> str:
    """The Unix time `at` as ISO 8601 in UTC. All stamps have one width, so they sort as texts."""
    text = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def about(**values: Any) -> dict[str, Any]:
    """The `extra` of a log call: `values` become keys of the line, beside the message."""
    return {"fields": values}


def structured(record: logging.LogRecord) -> dict[str, Any]:
    """The line of a record. For an event the line has the event's fields and no message."""
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
    """The line in JSON: ASCII without control characters, whatever the values hold."""
    return json.dumps(line, default=str).replace("\x7f", "\\u007f")


def parsed(text: str) -> dict[str, Any] | None:
    """The line that `as_json` has written as `text`; None for any other text."""
    try:
        line: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return None
    return (
        line if isinstance(line.get("time"), str) and isinstance(line.get("level"), str) else None
    )


def human(line: Mapping[str, Any]) -> str:
    """The line for people: local time, level and text. A traceback follows, indented."""
    if "event" in line:
        text = " ".join(
            f"{escaped(key)}={_value(value)}" for key, value in line.items() if key not in _PLACED
        )
    else:
        text = escaped(str(line.get("message", "")))
    shown = f"{local_time(line['time'])} {line['level'].upper():<7} {text}"
    traceback = str(line.get("exception", "")).splitlines()
    return "\n".join([shown, *(f"  {escaped(frame)}" for frame in traceback)])


def readable(text: str) -> str:
    """A JSON line of the gateway's log in the form of `human`. Any other text only gets its control
    characters escaped.
    """
    line = parsed(text)
    return escaped(text) if line is None else human(line)


def local_time(text: str) -> str:
    """A stamp in this machine's time zone, to the second; a text that is no stamp, escaped."""
    try:
        return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return escaped(text)


def escaped(text: str) -> str:
    """The text with an escape such as \\x1b for each character that could control a terminal."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def _value(value: Any) -> str:
    """The value in one word, or in quotes, so that tools can split the line."""
    if isinstance(value, float):
        return f"{value:.3f}"
    text = str(value)
    plain = text and text.isprintable() and not any(character in text for character in ' "=')
    return text if plain else escaped(json.dumps(text, ensure_ascii=False))


_AGO: Final = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def since_stamp(text: str, now: float) -> str:
    """The stamp of a time that `text` names: a duration before `now`, such as 10m or 2h, or an
    ISO 8601 time, by default in this machine's zone.

    `now` is a Unix time in seconds.

    Raises:
        ValueError: `text` is neither. The message has examples of both.
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
_COLLECTED_S: Final = 0.02


@contextlib.contextmanager
def gateway_logs(
    state_dir: StateDir, model_ids: Iterable[str], level: str, *, to_stderr: bool
) -> Iterator[None]:
    """Log to the state folder, and with `to_stderr` to stderr too. On a terminal the lines are
    sentences, otherwise JSON.

    An exception that ends the gateway is logged, and raised again.
    """
    file = RotatedFile(state_dir.gateway_log_path, _complain)
    file.setFormatter(_Form(as_json))
    handlers: list[logging.Handler] = [file]
    # sys.stderr is None if it was closed before the start.
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
        # httpx logs each request at INFO.
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
        # logging.shutdown would wait for the locks of all handlers. Handlers of workers' logs may
        # hang with their locks. Nothing is lost: each line is flushed when it is written.
        atexit.unregister(logging.shutdown)
        if not writer.hangs:
            file.close()


class _Entrance(QueueHandler):
    """Queues records from any thread without a wait, and drops them while the queue is full."""

    queue: queue.Queue[logging.LogRecord | None]

    def __init__(self, bound: int) -> None:
        super().__init__(queue.Queue(bound))
        self.dropped = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        # Format now: arguments may change before the line is written, and tracebacks hold frames.
        return logging.makeLogRecord({"levelno": record.levelno, "line": structured(record)})

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            # This handler is called under its own lock, so the count needs no other lock.
            self.dropped += 1


class _Writer(QueueListener):
    """Writes the records that `_Entrance` queues, and logs how many records it dropped."""

    def __init__(self, entrance: _Entrance, *handlers: logging.Handler) -> None:
        super().__init__(entrance.queue, *handlers)
        self._entrance = entrance
        self._reported = 0
        self.hangs = False

    def dequeue(self, block: bool) -> logging.LogRecord:
        if self._entrance.queue.empty():
            # To wake this thread costs the event loop more than a line does: lines that come
            # within this time have one wake.
            time.sleep(_COLLECTED_S)
        return super().dequeue(block)

    def handle(self, record: logging.LogRecord) -> None:
        super().handle(record)
        if (dropped := self._entrance.dropped - self._reported) > 0:
            self._reported += dropped
            text = f"{dropped} log lines were dropped: they came faster than they could be written"
            notice = logger.makeRecord(logger.name, logging.WARNING, "", 0, text, (), None)
            super().handle(self._entrance.prepare(notice))

    def enqueue_sentinel(self) -> None:
        with contextlib.suppress(queue.Full):
            self._entrance.queue.put(None, timeout=_FLUSH_S)

    def stop(self) -> None:
        """Write the records that are left, but give up after some seconds if the disk hangs."""
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
    """The text of a line for stderr. Each line looks anew whether stderr is a terminal: a gateway
    that takes over gets the earlier gateway's terminal some time after its start.
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
