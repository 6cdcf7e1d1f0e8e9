"""Forms that come slowly, or whose clients leave: they keep nobody from a place."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.e2e.test_passed_on import Provider, running
from tests.gateway.http.passing.test_form_parts import FILE, form
from tests.support.commands import serving, table
from tests.support.gateway import Gateway, eventually
from tests.support.raw_http import connect, post, read_all, send

PATH = "/v1/audio/transcriptions"
TYPE = "Content-Type: multipart/form-data; boundary=B"
CLOSE = "Connection: close"
MODEL = b'Content-Disposition: form-data; name="model"'
PATIENCE = {"x-deadline-s": "10"}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with serving(table("one", max_concurrency=1, memory="200MB")) as gateway:
        gateway.load("one")
        yield gateway


def _upload(model: bytes) -> bytes:
    return post(PATH, form((MODEL, model), (FILE % b"a", b"\0" * 2_000_000)), TYPE, CLOSE)


def _begin_upload(gateway: Gateway, model: bytes) -> socket.socket:
    connection = connect(gateway)
    connection.sendall(_upload(model)[:1_000_000])
    return connection


def test_an_upload_has_no_place_at_a_command_before_it_is_there(gateway: Gateway) -> None:
    slow = _begin_upload(gateway, b"one")
    with slow:
        assert gateway.chat("hi", "one", headers=PATIENCE).status_code == 200
        slow.sendall(_upload(b"one")[1_000_000:])
        assert b"transcriptions heard" in read_all(slow)


def test_an_upload_is_no_request_to_an_upstream_before_it_is_there() -> None:
    provider = Provider()
    with running(provider) as config, serving(config) as gateway:
        eventually(lambda: gateway.status()["upstreams"][0]["models"])
        slow = _begin_upload(gateway, b"cheap")
        with slow:
            whole = connect(gateway)
            with whole:
                whole.sendall(_upload(b"cheap"))
                assert b"heard" in read_all(whole)
            assert len(provider.heads) == 1
            slow.sendall(_upload(b"cheap")[1_000_000:])
            assert b"heard" in read_all(slow)


def test_a_form_that_is_ambiguous_at_its_end_reaches_no_server() -> None:
    provider = Provider()
    body = form((MODEL, b"cheap"), (FILE % b"a", b"\0" * 2_000_000), (MODEL, b"dear"))
    with running(provider) as config, serving(config) as gateway:
        eventually(lambda: gateway.status()["upstreams"][0]["models"])
        with connect(gateway) as connection:
            connection.sendall(post(PATH, body, TYPE, CLOSE))
            assert b"several fields model" in read_all(connection)
        assert not provider.heads


def test_a_form_whose_client_leaves_leaves_the_queue(gateway: Gateway) -> None:
    def waiting() -> int:
        return int(gateway.model("one")["queue_depth"])

    body = {"model": "one", "stream": True, "max_tokens": 1000, "pause_s": 0.1, "messages": []}
    with gateway.client.stream("POST", "/v1/chat/completions", json=body) as first:
        pieces = first.iter_bytes()
        next(pieces)
        with connect(gateway) as connection:
            connection.sendall(_upload(b"one"))
            eventually(lambda: waiting() == 1)
        eventually(lambda: waiting() == 0)
        assert gateway.model("one")["active_requests"] == 1, "the place was taken all the time"


@pytest.mark.parametrize(("size", "told"), [(5_000, b"heard"), (500_000, b"more framing")])
def test_few_bytes_may_come_in_chunks_of_their_own(
    gateway: Gateway, size: int, told: bytes
) -> None:
    body = form((MODEL, b"one"), (FILE % b"a", b"\0" * size))
    with connect(gateway) as connection:
        head = post(PATH, b"", TYPE, CLOSE).replace(
            b"Content-Length: 0", b"Transfer-Encoding: chunked"
        )
        chunks = b"".join(b"1\r\n%c\r\n" % number for number in body)
        send(connection, head + chunks + b"0\r\n\r\n")
        assert told in read_all(connection)
