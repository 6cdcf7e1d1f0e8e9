"""Query strings of lists and streams, and ids in paths."""

from __future__ import annotations

import pytest
from starlette.requests import Request
from starlette.routing import Match

from gateway.http.app import ROUTES
from gateway.http.wire.bodies import read_flag, read_limit, reads_newest_first
from gateway.system.refusal import Refusal


def _asked(query: str) -> Request:
    return Request({"type": "http", "query_string": query.encode(), "headers": []})


@pytest.mark.parametrize(("query", "limit"), [("", 20), ("limit=1", 1), ("limit=100", 100)])
def test_limit_of_listing(query: str, limit: int) -> None:
    assert read_limit(_asked(query)) == limit


@pytest.mark.parametrize("text", ["0", "101", "-1", "x", ""])
def test_invalid_limits_are_refused(text: str) -> None:
    with pytest.raises(Refusal, match="limit is ") as raised:
        read_limit(_asked(f"limit={text}"))
    assert (raised.value.status, raised.value.param) == (400, "limit")


def test_order_of_listing() -> None:
    for default in (False, True):
        assert reads_newest_first(_asked(""), default=default) is default
        assert reads_newest_first(_asked("order=desc"), default=default)
        assert not reads_newest_first(_asked("order=asc"), default=default)
        with pytest.raises(Refusal, match="send asc or desc"):
            reads_newest_first(_asked("order=zzz"), default=default)


def test_flags_of_query() -> None:
    for query, flag in (("", False), ("stream=true", True), ("stream=1", True)):
        assert read_flag(_asked(query), "stream") is flag
    for query in ("stream=false", "stream=0", "stream=False"):
        assert not read_flag(_asked(query), "stream")
    for query in ("stream=maybe", "stream="):
        with pytest.raises(Refusal, match="send true or false"):
            read_flag(_asked(query), "stream")


def test_a_slash_at_the_end_is_no_id() -> None:
    path = "/v1/chat/completions"

    def taken(path: str) -> bool:
        scope = {"type": "http", "method": "POST", "path": path}
        return any(route.matches(scope)[0] is not Match.NONE for route in ROUTES)

    assert taken(path)
    assert taken(f"{path}/an/id")
    assert not taken(f"{path}/")
