"""Lines of a log: flat JSON objects for tools, sentences for people, and their times."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

# These have a place of their own in a sentence, or none.
_PLACED: Final = ("time", "level", "logger", "id")
_STAMP: Final = re.compile(r'(?:\{"time": ")?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)')


def stamp(at: float) -> str:
    """A Unix time in seconds as ISO 8601, always in UTC and of one width: it sorts as text."""
    text = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def stamp_of(line: str) -> str | None:
    """The stamp that a line of either kind of log begins with."""
    found = _STAMP.match(line)
    return found[1] if found else None


def about(**values: Any) -> dict[str, Any]:
    """What a log call gives as `extra`, so that its line has these keys beside the message."""
    return {"fields": values}


def structured(record: logging.LogRecord) -> dict[str, Any]:
    """The keys of a record's line. An event is told by its fields and needs no message."""
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
    """The keys of a line that `as_json` has written; None if it is something else."""
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
    """A line of the gateway's log as people read it; anything else as it is."""
    line = parsed(text)
    return escaped(text) if line is None else human(line)


def local_time(text: str) -> str:
    """A stamp in this machine's zone, to the second."""
    try:
        return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return escaped(text)


def escaped(text: str) -> str:
    """The text with each character that steers a terminal written out, as in \\x1b."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def _value(value: Any) -> str:
    """People read it, and tools can split it off."""
    if isinstance(value, float):
        return f"{value:.3f}"
    text = str(value)
    plain = text and text.isprintable() and not any(each in text for each in ' "=')
    return text if plain else escaped(json.dumps(text, ensure_ascii=False))


_AGO: Final = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def since_stamp(text: str, now: float) -> str:
    """The stamp for `10m`, `2h`, or an ISO 8601 time; one without a zone is of this machine's.

    `now` is a Unix time in seconds.

    Raises:
        ValueError: it is neither; the text says what would be.
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
