"""Workers and gateways are killed while answers are made that nobody waits for: each ends once."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.support.gateway import START_S, Gateway, chat_body, eventually

pytestmark = pytest.mark.slow

CONFIG = """
[gateway]
drain_s = 0.2
[mailbox]
concurrency = 2
[workers]
restart_limit = 1000
"""
ASKED = {"temperature": 0, "seed": 1}
WORDS = ("What is Bulkhead?", "What can you do?", "Tell me a story.")
TOKENS = 80
PENDING = ("queued", "in_progress")
# One to die of, twice as often as one to obey.
WAYS = ("worker", "gateway", "orderly", "gateway")


class _House:
    """A gateway, and those after it, in one state folder; and all that they have accepted."""

    def __init__(self) -> None:
        self.first = self.gateway = Gateway(config=CONFIG)
        # It goes with the first one.
        self.state_dir = self.first.state_dir
        self.logs = ""
        self.texts: dict[str, str] = {}
        # By their paths, with what they answer.
        self.accepted: dict[str, str] = {}
        # With the number of the last event that was read.
        self.followed: dict[str, int] = {}

    def learn(self) -> None:
        for words in WORDS:
            self.texts[words] = self.gateway.say(words, max_tokens=TOKENS, **ASKED)

    def send(self, number: int) -> None:
        words = WORDS[number % len(WORDS)]
        if number % 3 == 2:
            self._send_chat(words, f"chaos-{number}", stream=number % 2 == 0)
            return
        body = {"model": "demo", "input": words, "max_output_tokens": TOKENS, **ASKED}
        body["background"] = True
        if number % 3 == 1:
            self._follow_a_little(words, body)
            return
        answer = self.gateway.client.post("/v1/responses", json=body)
        assert answer.raise_for_status().json()["status"] == "queued"
        self.accepted[f"/v1/responses/{answer.json()['id']}"] = words

    def _follow_a_little(self, words: str, body: dict[str, Any]) -> None:
        body["stream"] = True
        with self.gateway.client.stream("POST", "/v1/responses", json=body) as answer:
            created, queued, *_ = (
                json.loads(line[6:])
                for line in itertools.islice(answer.iter_lines(), 6)
                if line.startswith("data: ")
            )
        path = f"/v1/responses/{created['response']['id']}"
        self.accepted[path] = words
        self.followed[path] = queued["sequence_number"]

    def events(self, path: str, **query: int) -> list[dict[str, Any]]:
        answer = self.gateway.client.get(path, params={"stream": "true", **query})
        lines = answer.raise_for_status().text.splitlines()
        return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]

    def _send_chat(self, words: str, name: str, *, stream: bool) -> None:
        """And vanish once it was accepted."""
        body = json.dumps(chat_body(words, stream=stream, max_tokens=TOKENS, **ASKED))
        client = http.client.HTTPConnection(self.gateway.url.removeprefix("http://"))
        headers = {"X-Mailbox": "keep", "X-Request-Id": name}
        client.request("POST", "/v1/chat/completions", body, headers)
        path = f"/v1/chat/completions/chatcmpl-{name}"
        eventually(lambda: self.gateway.client.get(path).status_code != 404, START_S)
        client.close()
        self.accepted[path] = words

    def kill(self, way: str) -> None:
        if way == "worker":
            worker = self.gateway.model()["worker"]
            if worker is not None and worker["pid"]:
                os.kill(worker["pid"], signal.SIGKILL)
            return
        if way == "orderly":
            self.gateway.process.send_signal(signal.SIGTERM)
        else:
            self.gateway.process.kill()
        self.gateway.process.wait()
        self.logs += self.gateway.log
        self.gateway.client.close()
        self.gateway = Gateway("--state-dir", str(self.state_dir), config=CONFIG)

    def outcome(self, path: str) -> tuple[str, str]:
        """How it ended, and its text; why, if it failed."""
        # All that are kept run one after the other, also after the gateway was killed.
        answer = eventually(lambda: self._ended(path), within_s=300.0, every_s=0.2)
        body = answer.json()
        if body.get("error"):
            return "failed", body["error"]["message"]
        if "choices" in body:
            return "completed", body["choices"][0]["message"]["content"]
        text = "".join(p["text"] for item in body["output"] for p in item["content"])
        return body["status"], text

    def _ended(self, path: str) -> httpx.Response | None:
        answer = self.gateway.client.get(path)
        assert answer.status_code != 404, f"{path} was accepted and is lost"
        body: dict[str, Any] = answer.json()
        return None if body.get("status") in PENDING else answer


@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=pytest.mark.chaos)])
@pytest.mark.timeout(1800)
def test_each_accepted_one_ends_exactly_once(rounds: int, tell: Callable[..., None]) -> None:
    chance = random.Random(rounds)
    house = _House()
    try:
        house.learn()
        ways = [WAYS[number % len(WAYS)] for number in range(rounds)]
        for number, way in enumerate(ways):
            for index in range(3):
                house.send(3 * number + index)
            time.sleep(chance.uniform(0.0, 1.5))
            house.kill(way)
        outcomes = {path: house.outcome(path) for path in house.accepted}
        for path, (status, text) in outcomes.items():
            if status == "failed":
                assert text, "a failure says why"
            else:
                expected = house.texts[house.accepted[path]]
                assert status in ("completed", "incomplete")
                assert text == expected, path
        for path, last in house.followed.items():
            events = house.events(path)
            numbers = [event["sequence_number"] for event in events]
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
            deltas = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
            assert outcomes[path][0] == "failed" or "".join(deltas) == outcomes[path][1]
            rest = [entry for entry in events if entry["sequence_number"] > last]
            assert house.events(path, starting_after=last) == rest
        assert {path: house.outcome(path) for path in outcomes} == outcomes, "they stay so"
        logs = house.logs + house.gateway.log
        for path in outcomes:
            name = re.escape(path.rsplit("/", 1)[1])
            ends = re.findall(rf"{name}: (?:completed|incomplete|failed)", logs)
            assert len(ends) <= 1, (path, ends)
        statuses = [status for status, _ in outcomes.values()]
        reasons = {text[:60] for status, text in outcomes.values() if status == "failed"}
        tell(
            kills=rounds,
            accepted=len(statuses),
            failed=statuses.count("failed"),
            completed=len(statuses) - statuses.count("failed"),
            reasons=sorted(reasons),
        )
    finally:
        assert house.gateway.stop() == 0, house.gateway.log
        shutil.rmtree(house.state_dir.parent, ignore_errors=True)
