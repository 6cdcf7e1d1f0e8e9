"""The history of the memory and the answers, for the page and for programs."""

from __future__ import annotations

import time
from typing import Final

from msgspec import Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.history.history import HistoryMark, Span
from gateway.history.recorder import Recorder
from gateway.history.steps import Columns
from gateway.http.wire.bodies import json_response
from gateway.http.wire.errors import invalid
from gateway.http.wire.openapi import Operation, Query, Routes

history_routes = Routes("operation")

_SPANS: Final[dict[str, Span]] = {"hour": "hour", "day": "day"}


class HistoryAnswer(Struct):
    """`columns` has the steps that have ended, `marks` the last evictions and deaths in them."""

    span: Span
    columns: Columns
    marks: list[HistoryMark]


@history_routes.get(
    "/history",
    Operation(
        "The last hour, or the last day",
        answer=HistoryAnswer,
        query=[Query("span", "string", "hour, in steps of 10 s, or day, in steps of 120 s.")],
    ),
)
async def history(request: HttpRequest) -> Response:
    recorder: Recorder = request.app.state.recorder
    text = request.query_params.get("span", "hour")
    if (span := _SPANS.get(text)) is None:
        raise invalid(f"span is {text[:100]!r}: send hour or day.", "span")
    return json_response(HistoryAnswer(span, *recorder.history.read(span, time.time())))
