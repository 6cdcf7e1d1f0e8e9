"""Streamed answers read in the background, and probes beside them."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.support.gateway import Gateway, chat_body
from tests.support.usage import of_text


@dataclass
class Stream:
    """One streamed chat completion, read on a thread."""

    text: str = ""
    arrivals: list[float] = field(default_factory=list)
    comments: int = 0
    # Kinds of those server-sent events that have one.
    events: list[str] = field(default_factory=list)
    error: dict[str, Any] | None = None
    status: int | None = None
    done: bool = False
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    _thread: threading.Thread | None = None

    def join(self, timeout_s: float = 120.0) -> Stream:
        assert self._thread is not None
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), "the stream never ended"
        return self

    @property
    def outcome(self) -> tuple[object, ...]:
        """What a client makes of it; equal for equal answers. What of the prompt was cached is
        another thing each time.
        """
        usage = of_text(self.usage or {})
        return (self.text, self.finish_reason, usage, self.error, self.done)

    @property
    def gaps_s(self) -> list[float]:
        return [b - a for a, b in zip(self.arrivals, self.arrivals[1:], strict=False)]

    def _read(self, url: str, body: dict[str, Any], headers: dict[str, str]) -> None:
        try:
            self._read_events(url, body, headers)
        except httpx.TransportError as error:
            self.error = {"code": "connection_lost", "message": str(error)}

    def _read_events(self, url: str, body: dict[str, Any], headers: dict[str, str]) -> None:
        with (
            httpx.Client(timeout=180.0) as client,
            client.stream(
                "POST", f"{url}/v1/chat/completions", json=body, headers=headers
            ) as answer,
        ):
            self.status = answer.status_code
            if answer.status_code != 200:
                self.error = json.loads(answer.read())["error"]
                return
            for line in answer.iter_lines():
                self.add_line(line)

    def add_line(self, line: str) -> None:
        if line.startswith(":"):
            self.comments += 1
        elif line.startswith("event: "):
            self.events.append(line.removeprefix("event: "))
        elif line == "data: [DONE]":
            self.done = True
        elif line.startswith("data: "):
            data = json.loads(line.removeprefix("data: "))
            self.error = data.get("error")
            self.usage = data.get("usage") or self.usage
            for choice in data.get("choices", []):
                self.finish_reason = choice["finish_reason"] or self.finish_reason
                if text := choice["delta"].get("content"):
                    self.arrivals.append(time.monotonic())
                    self.text += text


def open_stream(
    gateway: Gateway,
    text: str,
    model_id: str = "demo",
    headers: dict[str, str] | None = None,
    **fields: Any,
) -> Stream:
    stream = Stream()
    body = chat_body(text, model_id, stream=True, **fields)
    stream._thread = threading.Thread(
        target=stream._read, args=(gateway.url, body, headers or {}), daemon=True
    )
    stream._thread.start()
    return stream


class Probe:
    """Asks a path again and again; keeps the slowest answer."""

    def __init__(self, gateway: Gateway, path: str, every_s: float = 0.02) -> None:
        self.slowest_s = 0.0
        self.count = 0
        self.failures: list[str] = []
        self._url = gateway.url + path
        self._every_s = every_s
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def __enter__(self) -> Probe:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(120)

    def _ask(self) -> None:
        with httpx.Client(timeout=120.0) as client:
            while not self._ending.wait(self._every_s):
                began = time.monotonic()
                try:
                    client.get(self._url).raise_for_status()
                except httpx.HTTPError as error:
                    self.failures.append(repr(error))
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)
                self.count += 1
