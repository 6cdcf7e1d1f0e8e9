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
# mlx_lm.server's backlog is 5: connections that come faster than it accepts them are taken up a
# second later, which would look like slow answers.
_ACCEPTED_S: Final = 0.01

Address = tuple[str, int]
Prompt = str | list[int]


def completion_request(
    model: str, prompt: Prompt, tokens: int, settings: dict[str, float], key: str | None = None
) -> bytes:
    """POST /v1/completions: the path that both servers feed to the model without a template. With
    an API key, if there is one.
    """
    body = json.dumps(
        {
            "model": model,
            "prompt": prompt,
            "max_tokens": tokens,
            **settings,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        }
    ).encode()
    authorization = "" if key is None else f"Authorization: Bearer {key}\r\n"
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{authorization}"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class RunningStreams:
    """Requests that wait to be sent at once, each on a connection that is open already."""

    def __init__(
        self, streams: Sequence[_TimedStream], requests: Sequence[bytes], tokens: int
    ) -> None:
        self._streams = streams
        self._requests = requests
        self._tokens = tokens

    @classmethod
    async def open(cls, address: Address, requests: Sequence[bytes], tokens: int) -> RunningStreams:
        """Connect once for each request. Every answer must have `tokens` tokens."""
        loop = asyncio.get_running_loop()
        streams = []
        for _ in requests:
            _, stream = await loop.create_connection(lambda: _TimedStream(loop), *address)
            streams.append(stream)
            await asyncio.sleep(_ACCEPTED_S)
        return cls(streams, requests, tokens)

    async def run(self) -> Generation:
        """Send the requests and read the answers.

        Raises:
            FailedError: a stream broke off, or made another number of tokens.
        """
        try:
            began = time.perf_counter()
            for stream, request in zip(self._streams, self._requests, strict=True):
                stream.send(request)
            async with asyncio.timeout(_LONGEST_ROUND_S):
                ends = [await stream.ended for stream in self._streams]
        except TimeoutError:
            raise FailedError(f"A round took longer than {_LONGEST_ROUND_S:g} s.") from None
        finally:
            for stream in self._streams:
                stream.close()
        for stream in self._streams:
            if stream.tokens != self._tokens:
                raise FailedError(f"A stream made {stream.tokens} tokens, not {self._tokens}.")
        return Generation(
            tokens=self._tokens * len(self._streams),
            wall_s=max(ends) - began,
            first_token_s=[stream.first_token_s for stream in self._streams],
        )


class _TimedStream(asyncio.Protocol):
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
