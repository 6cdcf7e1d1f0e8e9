"""What agents asked in a turn with the scripted model, as `record.py` writes it down."""

from __future__ import annotations

import json
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Any, TypedDict

# Where the agents worked.
HOLD = PurePosixPath("/home/somebody/hold")
_FOLDER = Path(__file__).parent / "requests"
_AS_BEFORE = "as before"


class Request(TypedDict):
    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any] | None


def recorded(agent: str) -> list[Request]:
    requests: list[Request] = json.loads(_path(agent).read_text("utf-8"))
    last: dict[str, Any] = {}
    for request in requests:
        if request["body"] is not None:
            last = {name: _whole(value, last.get(name)) for name, value in request["body"].items()}
            request["body"] = last
    return requests


def record(agent: str, requests: list[Request]) -> None:
    """What a request has in common with the one before is written down once."""
    written: list[Request] = []
    last: dict[str, Any] = {}
    for request in requests:
        body = request["body"]
        if body is None:
            written.append(request)
            continue
        short = {name: _short(value, last.get(name)) for name, value in body.items()}
        written.append({**request, "body": short})
        last = body
    _path(agent).write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n", "utf-8")


def _short(value: Any, last: Any) -> Any:
    if value == last:
        return _AS_BEFORE
    if not isinstance(value, list) or not isinstance(last, list):
        return value
    same = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(value, last, strict=False))))
    return {_AS_BEFORE: same, "then": value[same:]}


def _whole(short: Any, last: Any) -> Any:
    if short == _AS_BEFORE:
        return last
    if isinstance(short, dict) and _AS_BEFORE in short:
        return [*last[: short[_AS_BEFORE]], *short["then"]]
    return short


def _path(agent: str) -> Path:
    return _FOLDER / f"{agent}.json"
