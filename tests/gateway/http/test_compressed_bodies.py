"""Bodies that come compressed, read by an application as any others."""

from __future__ import annotations

import asyncio
import gzip
import random
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gateway.http.wire.bodies import MAX_BODY_BYTES, read_body
from gateway.http.wire.compressed_bodies import CompressedBodies, zstd_module
from gateway.http.wire.errors import on_refusal
from gateway.requests.share import SHARE, ByteBudget, Share
from gateway.system.refusal import Refusal

TEXT = bytes(random.Random(5).choices(b"abcdef ", k=600_000))


def _raw_deflate(body: bytes) -> bytes:
    encoder = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return encoder.compress(body) + encoder.flush()


CODINGS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("X-GZip", gzip.compress),
    "zlib": ("deflate", zlib.compress),
    "raw deflate": ("deflate", _raw_deflate),
    "zstd": ("zstd", lambda body: bytes(zstd_module().compress(body))),
    "identity": ("identity", bytes),
    "one of two": ("identity, gzip", gzip.compress),
}


def _ask(encoding: str, *pieces: bytes, budget: ByteBudget | None = None) -> httpx.Response:
    """The answer of an application that gives the body back, with the headers that it saw."""
    budget = budget or ByteBudget(512 << 20)

    async def echo(request: Request) -> Response:
        body = await read_body(request)
        seen = {f"seen-{name}": value for name, value in request.headers.items()}
        return Response(bytes(body), headers=seen)

    app = CompressedBodies(
        Starlette(
            routes=[Route("/v1/x", echo, methods=["POST"])],
            exception_handlers={Refusal: on_refusal},
        )
    )

    async def shared(scope: Scope, receive: Receive, send: Send) -> None:
        share = Share(budget)
        scope.setdefault("state", {})[SHARE] = share

        async def counted() -> Any:
            message = await receive()
            share.take(len(message.get("body", b"")))
            return message

        await app(scope, counted, send)
        share.release()

    async def body() -> Any:
        for piece in pieces:
            yield piece

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(shared)) as client:
            headers = {"content-encoding": encoding}
            return await client.post("http://gateway/v1/x", content=body(), headers=headers)

    return asyncio.run(ask())


@pytest.mark.parametrize("name", CODINGS)
@pytest.mark.parametrize("piece_bytes", [1 << 30, 1000, 7])
@pytest.mark.parametrize("size", [0, 1, 262_144, 600_000])
def test_the_body_is_what_was_compressed(name: str, piece_bytes: int, size: int) -> None:
    encoding, encode = CODINGS[name]
    body = TEXT[:size]
    encoded = encode(body)
    if piece_bytes == 7:
        encoded, body = encode(body[:3000]), body[:3000]
    pieces = [encoded[at : at + piece_bytes] for at in range(0, len(encoded), piece_bytes)]
    budget = ByteBudget(512 << 20)
    answer = _ask(encoding, *pieces, budget=budget)
    assert answer.status_code == 200
    assert answer.content == body
    assert budget.left_bytes == budget.total_bytes


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_streams_one_behind_the_other_are_one_body(encoding: str) -> None:
    _, encode = CODINGS[encoding]
    assert _ask(encoding, encode(b"one "), encode(b"two") + encode(b"")).content == b"one two"


def test_the_application_sees_neither_coding_nor_its_length() -> None:
    answer = _ask("gzip", gzip.compress(b"{}"))
    assert not {"seen-content-encoding", "seen-content-length"} & set(answer.headers)


@pytest.mark.parametrize("name", ["gzip", "zlib", "raw deflate", "zstd"])
def test_what_is_damaged_is_refused(name: str) -> None:
    encoding, encode = CODINGS[name]
    encoded = encode(TEXT)
    for damaged in (encoded[:-9], encoded[:300], b"plain text"):
        answer = _ask(encoding, damaged)
        assert answer.status_code == 400, damaged[:20]
        assert f"can't be decoded as {encoding}" in answer.json()["error"]["message"]
    assert "follows its end" in _ask(encoding, encoded + b"x").json()["error"]["message"]


@pytest.mark.parametrize("encoding", ["br", "gzip, gzip", "gzip, br", "compress"])
def test_other_codings_are_refused_by_name(encoding: str) -> None:
    answer = _ask(encoding, b"x")
    assert answer.status_code == 415
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_media_type", "content-encoding")
    assert encoding in error["message"]


@pytest.mark.parametrize("name", ["gzip", "zlib", "raw deflate", "zstd"])
def test_a_bomb_is_refused_before_it_takes_memory(name: str) -> None:
    encoding, encode = CODINGS[name]
    bomb = encode(bytes(400 << 20))
    tracemalloc.start()
    try:
        answer = _ask(encoding, bomb)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "request_too_large"
    assert peak_bytes < 3 * MAX_BODY_BYTES


def test_a_window_of_zstd_is_bounded() -> None:
    zstd = zstd_module()
    options = {zstd.CompressionParameter.window_log: 27}
    # Only a frame whose size isn't known says its window.
    encoder = zstd.ZstdCompressor(options=options)
    frame = encoder.compress(b"x" * 1000) + encoder.flush()
    answer = _ask("zstd", frame)
    assert answer.status_code == 400
    assert "can't be decoded as zstd" in answer.json()["error"]["message"]


def test_bodies_count_with_what_they_come_to() -> None:
    answer = _ask("gzip", gzip.compress(bytes(2 << 20)), budget=ByteBudget(1 << 20))
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "overloaded"
