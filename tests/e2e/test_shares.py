"""Keys that share a model: what one asks for keeps no other waiting."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.support.commands import table
from tests.support.gateway import Gateway, chat_body, eventually
from tests.support.minilm import minilm
from tests.support.streams import Stream, open_stream

pytestmark = pytest.mark.timeout(300)

CHAT = "/v1/chat/completions"
PLACES, FLOOD, DEPTH = 4, 40, 48
LONG = "All work and no play makes a dull boy. " * 30


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    running = Gateway(
        models=(),
        config=f"""
        [queue]
        depth = {DEPTH}
        [models.demo]
        path = "demo"
        max_concurrency = {PLACES}
        [models.minilm]
        path = "{minilm()}"
        {table("sound", max_concurrency=1, memory="200MB")}
        """,
    )
    try:
        running.load()
        yield running
    finally:
        status = running.stop()
    assert status == 0, running.log


@pytest.fixture(scope="module")
def keys(gateway: Gateway) -> dict[str, dict[str, str]]:
    made = {}
    for name, share in (("flood", None), ("short", None), ("heavy", 3)):
        body = {"name": name} | ({} if share is None else {"share": share})
        answer = gateway.client.post("/admin/v1/keys", json=body).raise_for_status().json()
        assert answer["share"] == share
        made[name] = {"authorization": f"Bearer {answer['key']}"}
        secret = (gateway.state_dir / "admin.key").read_text().strip()
        gateway.client.headers["authorization"] = f"Bearer {secret}"
    return made


def _post(gateway: Gateway, text: str, headers: dict[str, str], **fields: Any) -> httpx.Response:
    body = chat_body(text, max_tokens=4, ignore_eos=True, **fields)
    return httpx.post(f"{gateway.url}{CHAT}", json=body, headers=headers, timeout=180.0)


def _waiting(gateway: Gateway) -> list[dict[str, Any]]:
    listed = gateway.client.get("/admin/v1/requests").raise_for_status().json()["requests"]
    return [item for item in listed if item["state"] != "running"]


def _streams(gateway: Gateway, headers: dict[str, str], number: int, tokens: int) -> list[Stream]:
    return [
        open_stream(
            gateway,
            f"Tell me story {index}.",
            headers=headers,
            max_tokens=tokens,
            ignore_eos=True,
            temperature=0,
        )
        for index in range(number)
    ]


def test_short_chats_are_answered_while_a_flood_of_another_key_waits(
    gateway: Gateway, keys: dict[str, dict[str, str]]
) -> None:
    with ThreadPoolExecutor(FLOOD) as pool:
        flood = [
            pool.submit(_post, gateway, f"{index} {LONG}", keys["flood"]) for index in range(FLOOD)
        ]
        eventually(lambda: len(_waiting(gateway)) > FLOOD // 2)
        before, waiting = sum(future.done() for future in flood), len(_waiting(gateway))
        answer = _post(gateway, "Hello.", keys["short"])
        assert answer.status_code == 200
        assert sum(future.done() for future in flood) - before < waiting
        sharers = gateway.model()["sharers"]
        assert {sharer["name"] for sharer in sharers} >= {"flood", "short"}
        assert all(future.result().status_code == 200 for future in flood)
    took = {sharer["name"]: sharer["cost_s"] for sharer in gateway.model()["sharers"]}
    assert took["flood"] > took["short"] > 0.0
    text = gateway.client.get("/metrics").text
    found = re.findall(r'sharer_seconds_total\{model_name="demo",sharer="(\w+)"\}', text)
    assert {"flood", "short"} <= set(found)


def test_streams_that_have_all_places_give_one_up_and_go_on(
    gateway: Gateway, keys: dict[str, dict[str, str]]
) -> None:
    tokens = 600
    alone = [stream.join().outcome for stream in _streams(gateway, keys["flood"], PLACES, tokens)]
    streams = _streams(gateway, keys["flood"], PLACES, tokens)
    eventually(lambda: all(stream.text for stream in streams))
    answer = _post(gateway, "Hello.", keys["short"])
    assert answer.status_code == 200
    assert not all(stream.done for stream in streams)
    assert [stream.join().outcome for stream in streams] == alone


def test_a_full_queue_has_a_place_for_another_key(
    gateway: Gateway, keys: dict[str, dict[str, str]]
) -> None:
    most = PLACES + DEPTH
    with ThreadPoolExecutor(most) as pool:
        flood = [
            pool.submit(_post, gateway, f"{index} {LONG}", keys["flood"]) for index in range(most)
        ]
        eventually(lambda: len(_waiting(gateway)) + sum(future.done() for future in flood) >= DEPTH)
        with ThreadPoolExecutor(PLACES) as others:
            answers = [
                others.submit(_post, gateway, f"{number}", keys["short"])
                for number in range(PLACES)
            ]
        assert all(answer.result().status_code == 200 for answer in answers)
        codes = {future.result().status_code for future in flood}
    assert codes <= {200, 429}


def _embed(gateway: Gateway, headers: dict[str, str], texts: list[str]) -> httpx.Response:
    body = {"model": "minilm", "input": texts}
    return httpx.post(f"{gateway.url}/v1/embeddings", json=body, headers=headers, timeout=180.0)


def test_a_key_that_only_embeds_keeps_nobody_waiting(
    gateway: Gateway, keys: dict[str, dict[str, str]]
) -> None:
    gateway.load("minilm")
    number = 12
    with ThreadPoolExecutor(number) as pool:
        texts = [f"{index} {LONG[:200]}" for index in range(4)]
        flood = [pool.submit(_embed, gateway, keys["flood"], texts) for _ in range(number)]
        eventually(lambda: gateway.model("minilm")["active_requests"] > number // 2)
        assert _embed(gateway, keys["short"], ["Hello."]).status_code == 200
        assert sum(future.done() for future in flood) < number // 2
        assert all(future.result().status_code == 200 for future in flood)
    took = {sharer["name"]: sharer["cost_s"] for sharer in gateway.model("minilm")["sharers"]}
    assert took["flood"] > took["short"] > 0.0


def _upload(gateway: Gateway, headers: dict[str, str]) -> httpx.Response:
    fields = {"model": "sound", "speed": "0.2"}  # The server waits for so many seconds.
    path = f"{gateway.url}/v1/audio/transcriptions"
    sound = {"file": b"RIFF" * 10_000}
    return httpx.post(path, data=fields, files=sound, headers=headers, timeout=180.0)


def test_a_key_that_only_uploads_keeps_nobody_waiting(
    gateway: Gateway, keys: dict[str, dict[str, str]]
) -> None:
    gateway.load("sound")
    number = 20
    with ThreadPoolExecutor(number) as pool:
        flood = [pool.submit(_upload, gateway, keys["flood"]) for _ in range(number)]
        eventually(lambda: len(_waiting(gateway)) > number // 2)
        before, waiting = sum(future.done() for future in flood), len(_waiting(gateway))
        assert _upload(gateway, keys["short"]).status_code == 200
        assert sum(future.done() for future in flood) - before < waiting
        assert all(future.result().status_code == 200 for future in flood)
