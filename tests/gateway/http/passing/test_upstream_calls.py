"""Calls of upstreams that break off."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from gateway.http.passing import upstream_calls
from gateway.http.passing.upstream_calls import UpstreamCall
from gateway.http.passing.usage import UsageReader
from gateway.system.http_client import AnswerError
from gateway.system.refusal import Refusal
from gateway.upstreams.upstreams import Way

OUTBOUND: Any = SimpleNamespace(form=None)


def _way(name: str, failures: list[str]) -> Way:
    @contextmanager
    def asking(model: str):
        yield 0.0

    upstream: Any = SimpleNamespace(
        name=name,
        full=False,
        settings=SimpleNamespace(fields=(), silence_s=1.0),
        asking=asking,
        served=lambda began: None,
        failed=lambda error: failures.append(name),
    )
    return Way(upstream, "m", None)


@pytest.mark.parametrize("began", [False, True])
async def test_another_upstream_is_asked_until_one_has_begun_to_answer(
    monkeypatch: pytest.MonkeyPatch, began: bool
) -> None:
    asked: list[str] = []
    failures: list[str] = []

    async def ask(way: Way, outbound: Any) -> Any:
        asked.append(way.upstream.name)
        if not began:
            raise AnswerError("can't be reached", sent=False)
        return SimpleNamespace(status=200, headers=[], framed=True, close=lambda: None)

    monkeypatch.setattr(upstream_calls, "_ask", ask)
    monkeypatch.setattr(upstream_calls, "in_order", list)
    http = Request({"type": "http", "headers": []})
    call = UpstreamCall(http, [_way("one", failures), _way("two", failures)])
    with pytest.raises(Refusal) as caught:
        async with call.open_answer(OUTBOUND, UsageReader()):
            raise AnswerError("broke off")
    assert caught.value.code == "bad_gateway"
    assert asked == failures == (["one"] if began else ["one", "two"])
