"""The probe of an upgrade: eight streams go on, each with the text that it has undisturbed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

import httpx
import msgspec
import psutil
from msgspec import Struct

from gateway.doctor.seen import Seen

_STREAMS: Final = 8
_TOKENS: Final = 400
_ANSWER_S: Final = 60.0
_ENDS_S: Final = 30.0


class _Upgraded(Struct, frozen=True):
    pid: int
    seconds: float
    still_s: float


def look_at_upgrade(url: str, within_s: float) -> Iterator[Seen]:
    """Replace the gateway at `url`, of which the caller ends the first process, in mid-answer."""
    successors: list[psutil.Process] = []
    try:
        yield asyncio.run(asyncio.wait_for(_look(url, successors), within_s))
    finally:
        for each in successors:
            each.terminate()
            each.wait(_ENDS_S)


async def _look(url: str, successors: list[psutil.Process]) -> Seen:
    async with httpx.AsyncClient(base_url=url, timeout=_ANSWER_S, trust_env=False) as client:
        undisturbed = await asyncio.gather(
            *(_Stream(client, each).text() for each in range(_STREAMS))
        )
        streams = [_Stream(client, each) for each in range(_STREAMS)]
        texts = asyncio.gather(*(each.text() for each in streams))
        for each in streams:
            await each.begun.wait()
        answer = (await client.post("/admin/v1/upgrade")).raise_for_status()
        upgraded = msgspec.json.decode(answer.content, type=_Upgraded)
        successors.append(psutil.Process(upgraded.pid))
        pairs = list(zip(await texts, undisturbed, strict=True))
    same = sum(text == other for text, other in pairs)
    return Seen(
        f"{same} of {_STREAMS} streams had the same text; {upgraded.seconds:.1f} s, of which "
        f"{upgraded.still_s:.2f} s without tokens",
        same == _STREAMS,
    )


class _Stream:
    """A stream of the model `demo`, with a prompt of its own. `begun` is set by its first token."""

    def __init__(self, client: httpx.AsyncClient, number: int) -> None:
        self.begun = asyncio.Event()
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
                self.begun.set()
                chunk = msgspec.json.decode(line.removeprefix("data: "))
                text += "".join(each["text"] for each in chunk["choices"])
        return text
