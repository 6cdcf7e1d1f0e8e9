"""The probe of an upgrade: eight streams go on, each with the text that it has undisturbed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

import httpx
import msgspec
import psutil

from gateway.doctor.finding import Observation
from gateway.http.wire.command_bodies import UpgradeAnswer

_STREAMS: Final = 8
_TOKENS: Final = 400
_ANSWER_S: Final = 60.0
_ENDS_S: Final = 30.0


def look_at_upgrade(url: str, within_s: float) -> Iterator[Observation]:
    """Replace the gateway at `url`, of which the caller ends the first process, in mid-answer."""
    successors: list[psutil.Process] = []
    try:
        yield asyncio.run(asyncio.wait_for(_look(url, successors), within_s))
    finally:
        for successor in successors:
            successor.terminate()
            successor.wait(_ENDS_S)


async def _look(url: str, successors: list[psutil.Process]) -> Observation:
    async with httpx.AsyncClient(base_url=url, timeout=_ANSWER_S, trust_env=False) as client:
        undisturbed = await asyncio.gather(
            *(_DemoStream(client, number).text() for number in range(_STREAMS))
        )
        streams = [_DemoStream(client, number) for number in range(_STREAMS)]
        texts = asyncio.gather(*(stream.text() for stream in streams))
        for stream in streams:
            await stream.started.wait()
        answer = (await client.post("/admin/v1/upgrade")).raise_for_status()
        upgraded = msgspec.json.decode(answer.content, type=UpgradeAnswer)
        successors.append(psutil.Process(upgraded.pid))
        pairs = list(zip(await texts, undisturbed, strict=True))
    same = sum(text == other for text, other in pairs)
    return Observation(
        f"{same} of {_STREAMS} streams had the same text; {upgraded.seconds:.1f} s, of which "
        f"{upgraded.still_s:.2f} s without tokens",
        same == _STREAMS,
    )


class _DemoStream:
    """A stream of the model `demo`, with its own prompt. `started` is set by its first token."""

    def __init__(self, client: httpx.AsyncClient, number: int) -> None:
        self.started = asyncio.Event()
        self._client = client
        self._number = number

    async def text(self) -> str:
        body = {
            "model": "demo",
            "prompt": f"Tell me {self._number} stories.",
            "max_tokens": _TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        text = ""
        async with self._client.stream("POST", "/v1/completions", json=body) as answer:
            async for line in answer.raise_for_status().aiter_lines():
                if not line.startswith("data: {"):
                    continue
                self.started.set()
                chunk = msgspec.json.decode(line.removeprefix("data: "))
                text += "".join(choice["text"] for choice in chunk["choices"])
        return text
