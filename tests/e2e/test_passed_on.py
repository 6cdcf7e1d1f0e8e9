"""What passes the gateway on its way to an upstream, under a key that may use one of its models."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.commands import serving
from tests.support.gateway import Gateway, eventually
from tests.support.raw_server import CHUNKED, chunk, whole
from tests.support.upstreams import listed, stand_ins

FILE = ("file", ("a.wav", b"\0" * 3_000_000))


def field(value: str) -> tuple[str, tuple[None, str]]:
    return "model", (None, value)


class Provider:
    """Has two models. `bodies` are those of its requests, as far as they came; it answers those
    that came as a whole, and of `dear` that there is none. It may be busy, or send comments alone.
    """

    def __init__(self) -> None:
        self.bodies: list[bytearray] = []
        self.heads: list[bytes] = []

    async def handle(self, head: bytes, reader: Any, writer: Any) -> None:
        if head.startswith(b"GET"):
            writer.write(whole(b'{"data": [{"id": "cheap"}, {"id": "dear"}]}'))
            return
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        self.heads.append(head)
        body = bytearray()
        self.bodies.append(body)
        while len(body) < length:
            piece = await reader.read(length - len(body))
            if not piece:
                return
            body += piece
        if b"comments" in body:
            writer.write(CHUNKED % b"text/event-stream")
            while not writer.is_closing():
                writer.write(chunk(b": wait\n\n"))
                await asyncio.sleep(0.1)
        elif b"busy" in body:
            writer.write(whole(b"{}", status=b"503 Busy\r\nretry-after: 123456789x"))
        elif b"dear" in body:
            writer.write(whole(b'{"error": {"message": "none"}}', status=b"404 Not Found"))
        else:
            writer.write(whole(b'{"text": "heard"}'))


@contextmanager
def running(provider: Provider) -> Iterator[str]:
    """The tables of a configuration that has it as an upstream."""
    begun, over = threading.Event(), threading.Event()
    found = []

    async def run() -> None:
        async with stand_ins({"prov": provider.handle}) as (tables, _):
            found.append(tables)
            begun.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    begun.wait()
    try:
        yield found[0]
    finally:
        over.set()
        thread.join()


@pytest.fixture(scope="module")
def keyed() -> Iterator[tuple[Gateway, Provider, dict[str, str]]]:
    """A gateway, its upstream, and a key for the upstream's cheap model."""
    provider = Provider()
    with running(provider) as tables, serving(f"{tables}silence_s = 2\n") as gateway:
        eventually(lambda: len(listed(gateway)) == 2)
        body = {"name": "cheap", "models": ["prov/cheap"]}
        key = gateway.client.post("/admin/v1/keys", json=body).raise_for_status().json()["key"]
        yield gateway, provider, {"authorization": f"Bearer {key}"}


Keyed = tuple[Gateway, Provider, dict[str, str]]


def test_no_form_gets_a_second_model_past_the_key(keyed: Keyed) -> None:
    gateway, provider, key = keyed

    def send(*fields: Any, path: str = "/v1/audio/transcriptions") -> Any:
        return gateway.client.post(path, files=list(fields), headers=key)

    assert send(field("prov/cheap"), FILE).json() == {"text": "heard"}
    assert b'name="model"\r\n\r\ncheap\r\n' in provider.bodies[-1]
    assert send(field("prov/dear"), FILE).status_code == 404
    count = len(provider.bodies)
    for fields in (
        (field("prov/cheap"), field("dear"), FILE),
        (field("prov/cheap"), ("Model", (None, "dear")), FILE),
        (field("prov/cheap"), FILE, field("dear")),
        (field("prov/cheap"), ("base_model", (None, "dear")), FILE),
    ):
        refused = send(*fields)
        assert refused.status_code == 400, refused.text
        assert "model" in refused.json()["error"]["message"]
    assert all(b"dear" not in body for body in provider.bodies)
    assert all(not body.rstrip().endswith(b"--") for body in provider.bodies[count:])
    query = send(field("prov/cheap"), FILE, path="/v1/audio/transcriptions?model=dear")
    assert (query.status_code, query.json()["error"]["param"]) == (400, "model")


def test_no_json_gets_a_second_model_past_the_key(keyed: Keyed) -> None:
    gateway, provider, key = keyed
    twice = '{"model": "prov/dear", "model": "prov/cheap", "input": "&model=other&", "route": 1}'
    headers = key | {"content-type": "application/x-www-form-urlencoded"}
    answer = gateway.client.post("/v1/audio/speech", content=twice, headers=headers)
    assert answer.status_code == 200, answer.text
    assert provider.bodies[-1] == b'{"model":"cheap","input":"&model=other&"}'
    assert answer.headers["x-bulkhead-left-out"] == "route"
    assert b"content-type: application/json" in provider.heads[-1]
    for name, value, param in (
        ("MODEL", "dear", "model"),
        ("models", ["dear"], "models"),
        ("fallbacks", ["dear"], "fallbacks"),
    ):
        both = {"model": "prov/cheap", name: value}
        refused = gateway.client.post("/v1/audio/speech", json=both, headers=key)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


def test_upstreams_interim_output_is_bounded(keyed: Keyed) -> None:
    gateway, _, key = keyed
    asked = {"model": "prov/cheap", "stream": True}
    busy = gateway.client.post("/v1/audio/speech", json=asked | {"input": "busy"}, headers=key)
    assert busy.status_code == 503, busy.text
    late = gateway.client.post("/v1/audio/speech", json=asked | {"input": "comments"}, headers=key)
    assert "completed no event for 2 s" in late.text
    assert "deadline_exceeded" in late.text


def test_forwarded_request_counts_by_path_and_outcome(keyed: Keyed) -> None:
    gateway, _, key = keyed
    operator = {"authorization": f"Bearer {(gateway.state_dir / 'admin.key').read_text().strip()}"}

    def counts() -> dict[str, int]:
        found = gateway.client.get("/admin/v1/usage", headers=operator).json()["keys"]
        today: dict[str, int] = next(item for item in found if item["name"] == "cheap")["today"]
        return today

    def ended(route: str, outcome: str) -> bool:
        text = gateway.client.get("/metrics", headers=operator).text
        return f'outcome="{outcome}",route="{route}"' in text

    before = counts()
    paths = ("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/images/edits")
    for path in paths:
        files = [field("prov/cheap"), FILE]
        gateway.client.post(path, files=files, headers=key).raise_for_status()
    unknown = gateway.client.post(paths[1], files=[field("prov/x"), FILE], headers=key)
    assert unknown.status_code == 404
    eventually(lambda: counts() == {**before, "requests": before["requests"] + 3})
    assert all(ended(path, "ok") for path in paths)
    assert ended(paths[1], "model_not_found")
    dear = gateway.client.post(paths[2], files=[field("prov/dear"), FILE], headers=operator)
    assert dear.status_code == 404
    eventually(lambda: ended(paths[2], "passed_error"))
    logs = gateway.client.get("/admin/v1/logs", headers=operator).text
    assert "404, an error of its server, " in logs
    assert not ended(paths[0], "passed_error")
