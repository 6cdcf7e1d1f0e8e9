"""Streams over HTTP, read with as little work as possible: the reader shares the processor.

Frames are counted and not parsed. A frame may hold several tokens, so the tokens come from the
usage figure at the stream's end.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Sequence
from typing import Final, cast

from bench.results import FailedError, Generation

_FRAME: Final = b"data: "
_END: Final = b"data: [DONE]"
_USAGE: Final = re.compile(rb'"completion_tokens": ?(\d+)')
# Holds the usage frame, which is the last but one.
_TAIL_BYTES: Final = 2048
_LONGEST_ROUND_S: Final = 600.0

Address = tuple[str, int]


def completion_request(model: str, prompt: str, tokens: int) -> bytes:
    """POST /v1/completions: the path that both servers feed to the model without a template."""
    body = json.dumps(
        {
            "model": model,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        }
    ).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def generate(address: Address, requests: Sequence[bytes], tokens: int) -> Generation:
    """Send all requests at once, on connections that are open already, and read the answers.

    Raises:
        FailedError: a stream didn't make `tokens` tokens.
    """
    loop = asyncio.get_running_loop()
    streams = []
    # One after the other: mlx_lm.server's backlog is 5, and a refused connection costs a second.
    for _ in requests:
        _, stream = await loop.create_connection(lambda: _Stream(loop), *address)
        streams.append(stream)
    try:
        began = time.perf_counter()
        for stream, request in zip(streams, requests, strict=True):
            stream.send(request)
        async with asyncio.timeout(_LONGEST_ROUND_S):
            ends = [await stream.ended for stream in streams]
    except TimeoutError:
        raise FailedError(f"A round took longer than {_LONGEST_ROUND_S:g} s.") from None
    finally:
        for stream in streams:
            stream.close()
    for stream in streams:
        if stream.tokens != tokens:
            raise FailedError(f"A stream made {stream.tokens} tokens, not {tokens}.")
    return Generation(
        tokens=tokens * len(streams),
        wall_s=max(ends) - began,
        first_token_s=[stream.first_token_s for stream in streams],
    )


class _Stream(asyncio.Protocol):
    """One answer. `ended` becomes the time of its last frame."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.ended: asyncio.Future[float] = loop.create_future()
        self.first_token_s = 0.0
        self.frames = 0
        self._sent_at = 0.0
        self._tail = b""

    @property
    def tokens(self) -> int:
        found = _USAGE.search(self._tail)
        return int(found[1]) if found else 0

    def send(self, request: bytes) -> None:
        self._sent_at = time.perf_counter()
        self._transport.write(request)

    def close(self) -> None:
        # A failure that nobody waits for any more would be logged at exit.
        self.ended.cancel()
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have its interface, but not its base class.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        # A frame's mark may straddle two reads.
        seam = self._tail[1 - len(_FRAME) :]
        added = (seam + data).count(_FRAME)
        self._tail = (self._tail + data)[-_TAIL_BYTES:]
        if not added:
            return
        now = time.perf_counter()
        if not self.frames:
            self.first_token_s = now - self._sent_at
        self.frames += added
        if _END in self._tail and not self.ended.done():
            self.ended.set_result(now)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            text = self._tail.decode(errors="replace")
            self.ended.set_exception(FailedError(f"A stream broke off ({exc}): {text}"))
