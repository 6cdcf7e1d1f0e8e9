"""What agents asked in a turn with the scripted model, as `record.py` writes it down."""

from __future__ import annotations

import json
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
    for each in requests:
        if each["body"] is not None:
            each["body"] = last = {
                name: last[name] if value == _AS_BEFORE else value
                for name, value in each["body"].items()
            }
    return requests


def record(agent: str, requests: list[Request]) -> None:
    """A field that a request has in common with the one before is written down once."""
    written, last = [], {}
    for each in requests:
        body = each["body"]
        if body is not None:
            short = {k: _AS_BEFORE if last.get(k) == v else v for k, v in body.items()}
            each, last = {**each, "body": short}, body
        written.append(each)
    _path(agent).write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n", "utf-8")


def _path(agent: str) -> Path:
    return _FOLDER / f"{agent}.json"
