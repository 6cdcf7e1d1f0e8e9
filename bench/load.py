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

from bench.prompts import Prompt
from bench.results import FailedError, Generation

_FRAME: Final = b"data: "
_END: Final = b"data: [DONE]"
_USAGE: Final = re.compile(rb'"completion_tokens": ?(\d+)')
# Holds the usage frame, which is the last but one.
_TAIL_BYTES: Final = 2048
_LONGEST_S: Final = 600.0
# mlx_lm.server's backlog is 5: it takes up connections that come faster than it accepts them a
# second later, which would look like slow answers.
_ACCEPTED_S: Final = 0.01

Address = tuple[str, int]


def completion_request(
    model: str, prompt: Prompt, tokens: int, settings: dict[str, float], key: str | None = None
) -> bytes:
    """A request to /v1/completions, whose prompt both servers feed to the model without a template;
    with an API key, if there is one.
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


class ReadStream(asyncio.Protocol):
    """One answer. `times` are those of the reads that brought frames."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.times: list[float] = []
        self.frames = 0
        self.bytes = 0
        self._sent_at = 0.0
        self._tail = b""

    @property
    def tokens(self) -> int:
        found = _USAGE.search(self._tail)
        return int(found[1]) if found else 0

    @property
    def first_token_s(self) -> float:
        return self.times[0] - self._sent_at

    def send(self, request: bytes) -> None:
        self._sent_at = time.perf_counter()
        self._transport.write(request)

    def close(self) -> None:
        # A failure that is never read would be logged at exit.
        self.ended.cancel()
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have its interface, but not its base class.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.bytes += len(data)
        # A frame's mark may straddle two reads.
        seam = self._tail[1 - len(_FRAME) :]
        added = (seam + data).count(_FRAME)
        self._tail = (self._tail + data)[-_TAIL_BYTES:]
        if not added:
            return
        self.times.append(time.perf_counter())
        self.frames += added
        if _END in self._tail and not self.ended.done():
            self.ended.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            text = self._tail.decode(errors="replace")
            self.ended.set_exception(FailedError(f"A stream broke off ({exc}): {text}"))


class RunningStreams:
    """Requests that are sent at once, each on a connection that is open already."""

    def __init__(self, streams: Sequence[ReadStream], requests: Sequence[bytes]) -> None:
        self._streams = streams
        self._requests = requests

    @classmethod
    async def open(cls, address: Address, requests: Sequence[bytes]) -> RunningStreams:
        """Connect once for each request."""
        loop = asyncio.get_running_loop()
        streams = []
        for _ in requests:
            _, stream = await loop.create_connection(ReadStream, *address)
            streams.append(stream)
            await asyncio.sleep(_ACCEPTED_S)
        return cls(streams, requests)

    async def read(self) -> Sequence[ReadStream]:
        """Send the requests and read the answers.

        Raises:
            FailedError: a stream broke off.
        """
        try:
            for stream, request in zip(self._streams, self._requests, strict=True):
                stream.send(request)
            async with asyncio.timeout(_LONGEST_S):
                await asyncio.gather(*(read_stream.ended for read_stream in self._streams))
        except TimeoutError:
            raise FailedError(f"Streams took longer than {_LONGEST_S:g} s.") from None
        finally:
            for stream in self._streams:
                stream.close()
        return self._streams

    async def generate(self, tokens: int) -> Generation:
        """The same, with answers that must have `tokens` tokens each.

        Raises:
            FailedError: a stream broke off, or made another number of tokens.
        """
        began = time.perf_counter()
        streams = await self.read()
        for stream in streams:
            if stream.tokens != tokens:
                raise FailedError(f"A stream made {stream.tokens} tokens, not {tokens}.")
        return Generation(
            tokens=tokens * len(streams),
            wall_s=max(read_stream.times[-1] for read_stream in streams) - began,
            first_token_s=[stream.first_token_s for stream in streams],
        )
