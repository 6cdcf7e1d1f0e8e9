"""What schemathesis asks for, bound to what a gateway of two demo models can do: it imports this by
itself, as `SCHEMATHESIS_HOOKS` tells it to.

`demo` is asked, and `other` is loaded, restarted and killed. What was made is asked for again, by
the id that it got.
"""

from __future__ import annotations

import atexit
import json
import os
import zlib
from collections import Counter, deque
from pathlib import Path
from typing import Any, Final

import schemathesis

from tests.support.openapi_fuzz import ASKED, COUNTED_IN, ORDERED

# What would make a model's speed the limit of the test, and what an answer may have of it.
_MOST: Final = {
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_output_tokens"), 3),
    **dict.fromkeys(("min_tokens", "n", "best_of"), 2),
}
_LIMITED: Final = {
    "/v1/chat/completions": "max_tokens",
    "/v1/completions": "max_tokens",
    "/v1/messages": "max_tokens",
    "/v1/responses": "max_output_tokens",
}
_OLLAMA: Final = ("/api/chat", "/api/generate")
_OF_THE_DISKS: Final = ("/admin/v1/library/", "/admin/v1/removals/")
# Where things are made, and the field of the answer that names them.
_NAMES: Final = {
    "/v1/chat/completions": "id",
    "/v1/responses": "id",
    "/admin/v1/keys": "name",
    "/admin/v1/pulls": "id",
}

_statuses: Counter[int] = Counter()
_made: dict[str, deque[str]] = {path: deque(maxlen=8) for path in _NAMES}


@schemathesis.hook
def before_call(_context: Any, case: Any, _kwargs: dict[str, Any]) -> None:
    # The same case gets the same when it is tried again.
    chance = zlib.crc32(repr((case.path_parameters, case.query, case.body)).encode())
    if chance % 5 or ASKED in (case.path_parameters or {}).values():
        # What a link found, too, may be loaded and killed only if nobody asks it.
        _name_what_there_is(case)
    if case.path.endswith(("/events", "/live", "/logs")):
        # Else it goes on for ever.
        case.query = {**(case.query or {}), "follow": "0"}
    if case.path == "/v1/chat/completions" and chance % 2:
        case.headers = {**(case.headers or {}), "X-Mailbox": "keep"}
    if isinstance(case.body, dict):
        _bound(case.path, case.body)


def _name_what_there_is(case: Any) -> None:
    if isinstance(case.body, dict) and "model" in case.body and case.path != "/admin/v1/pulls":
        case.body["model"] = ASKED
    for name in case.path_parameters or {}:
        if name == "model_id" or case.path.startswith(_OF_THE_DISKS):
            case.path_parameters[name] = ORDERED if case.method == "POST" else ASKED
        elif made := _made.get(case.path.partition("/{")[0]):
            case.path_parameters[name] = made[0]
            made.rotate()


def _bound(path: str, body: dict[str, Any]) -> None:
    # What unloads the model that is asked costs a load.
    body.pop("keep_alive", None)
    for name, most in _MOST.items():
        value = body.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and value > most:
            body[name] = most
    if limit := _LIMITED.get(path):
        body.setdefault(limit, 2)
    if path in _OLLAMA and isinstance(body.setdefault("options", {}), dict | None):
        body["options"] = {**(body["options"] or {}), "num_predict": 2}


@schemathesis.hook
def after_call(_context: Any, case: Any, response: Any) -> None:
    _statuses[response.status_code] += 1
    name = _NAMES.get(case.path)
    if case.method != "POST" or name is None or response.status_code >= 300:
        return
    if "json" in response.headers.get("content-type", [""])[0]:
        made = response.json()
        if isinstance(made, dict) and isinstance(made.get(name), str):
            _made[case.path].append(made[name])


@schemathesis.check
def no_defect(_context: Any, response: Any, _case: Any) -> None:
    """The document has 500: for workers that die, of which none does here."""
    assert response.status_code != 500


@atexit.register
def _tell() -> None:
    Path(os.environ[COUNTED_IN]).write_text(json.dumps(_statuses), "utf-8")
