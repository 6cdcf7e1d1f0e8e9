"""Paths without /v1, and behind several slashes."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Receive, Scope, Send

from gateway.http.app import Addresses


@pytest.mark.parametrize(
    ("asked", "served"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/completions", "/v1/completions"),
        ("/embeddings", "/v1/embeddings"),
        ("/models", "/v1/models"),
        ("/models/a/b", "/v1/models/a/b"),
        ("/responses/resp_1/cancel", "/v1/responses/resp_1/cancel"),
        ("/messages/count_tokens", "/v1/messages/count_tokens"),
        ("//v1/chat/completions", "/v1/chat/completions"),
        ("//messages", "/v1/messages"),
        ("/v1//models", "/v1/models"),
        ("/v1/v1/messages", "/v1/messages"),
        ("/v1", "/v1"),
        ("/v1/nowhere", "/v1/nowhere"),
        ("/v1/models", "/v1/models"),
        ("/api/chat", "/api/chat"),
        ("//api/chat", "//api/chat"),
        ("/admin/v1/status", "/admin/v1/status"),
        ("/modelsx", "/modelsx"),
        ("/", "/"),
    ],
)
def test_path_means_the_path_below_v1(asked: str, served: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert (scope["path"], scope["raw_path"]) == (served, served.encode())

    async def nothing(*_: object) -> None:
        raise AssertionError

    scope = {"type": "http", "path": asked, "raw_path": asked.encode()}
    asyncio.run(Addresses(app)(scope, nothing, nothing))
