"""Bytes that no client library would send: bodies, headers, sizes that lie, requests in a row, and
clients that close half of their connection or leave.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

from gateway.system.refusal import _STATUS
from tests.support.gateway import Gateway, chat_body
from tests.support.raw_http import HOST, connect, get, post

PATHS: Final = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v1/rerank",
    "/admin/v1/models/none/load",
    "/admin/v1/models/demo/prompt-cache/clear",
)
READ: Final = (
    "/livez",
    "/health",
    "/metrics",
    "/v1/models",
    "/admin/v1/status",
    "/nowhere",
    "/%ff",
)
WORDS: Final = ("model", "messages", "prompt", "input", "role", "content", "n", "stop", "tools")
HEAD: Final = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
ANSWERED_S: Final = 120.0


def _value(chance: random.Random, depth: int = 0) -> Any:
    """JSON that a body might have somewhere."""
    kind = chance.randrange(9 if depth < 4 else 7)
    match kind:
        case 0:
            return chance.choice([None, True, False])
        case 1:
            return chance.choice([0, -1, 1, 2**31, 2**63, -(2**70), 1e308, 0.5])
        case 2 | 3:
            return chance.choice(
                ["", "demo", "user", "Hello", "\x00", "\ud7ff", "é" * 40, "x" * 500]
            )
        case 4:
            return {"role": "user", "content": "Hello"}
        case 5:
            return [{"role": "user", "content": "Hello"}]
        case 6:
            return chance.choice(WORDS)
        case 7:
            return [_value(chance, depth + 1) for _ in range(chance.randrange(4))]
        case _:
            return {chance.choice(WORDS): _value(chance, depth + 1) for _ in range(3)}


def _body(chance: random.Random) -> bytes:
    body = chat_body("Hello", max_tokens=1, stream=chance.random() < 0.5)
    body |= {"prompt": "Hello", "input": "Hello", "query": "Hello", "documents": ["Hello"]}
    for _ in range(chance.randrange(4)):
        body[chance.choice([*WORDS, "stream", "temperature", "max_tokens", "logprobs"])] = _value(
            chance
        )
    # Never much to compute, and nothing that is worth a load.
    body["max_tokens"] = 1 if isinstance(body.get("max_tokens"), int) else body.get("max_tokens")
    if body.get("model") == "demo" and chance.random() < 0.8:
        body["model"] = "none"
    text = json.dumps(body).encode()
    match chance.randrange(10):
        case 0:
            return text[: chance.randrange(len(text))]
        case 1:
            place = chance.randrange(len(text))
            return text[:place] + chance.randbytes(chance.randrange(1, 5)) + text[place + 1 :]
        case 2:
            return chance.choice([b"[", b'{"a":']) * chance.randrange(1, 5000)
        case 3:
            return b'{"model":"none","messages":[%s]}' % b",".join([b"{}"] * 2000)
        case _:
            return text


def _whole(chance: random.Random) -> bytes:
    if chance.random() < 0.3:
        return get(chance.choice(READ), *_headers(chance))
    return post(chance.choice(PATHS), _body(chance), *_headers(chance))


def _headers(chance: random.Random) -> list[str]:
    found = [
        "X-Request-Id: \x01",
        "X-Priority: 99999999",
        "X-Deadline-S: nan",
        "Origin: http://evil.example",
        "Host: evil.example",
        "Expect: 100-continue",
        "Accept: nothing/at-all",
        f"X-Long: {'y' * chance.randrange(3000)}",
        "Content-Type: text/plain; charset=\xff",
        "Connection: Upgrade",
        "Upgrade: h2c",
    ]
    return chance.sample(found, chance.randrange(3))


def _chunked(chance: random.Random) -> bytes:
    """Sizes that are right, or lie, or are none; and what smuggling is made of."""
    head = f"POST {chance.choice(PATHS)} HTTP/1.1\r\n".encode() + HOST
    coding = b"Transfer-Encoding: chunked\r\n"
    lies = [
        b"",
        b"",
        b"Content-Length: 5\r\n",
        b"Transfer-Encoding: identity\r\n",
        b"TE: trailers\r\n",
    ]
    body = _body(chance)
    cut = chance.randrange(len(body) + 1)
    parts = []
    for part in (body[:cut], body[cut:]):
        size = b"%x" % len(part)
        if chance.random() < 0.3:
            size = chance.choice([b"-1", b"zz", b"fffffffffffffffff", b"5;a=b", b"0x5", b""])
        parts.append(size + b"\r\n" + part + chance.choice([b"\r\n", b"\r\n", b"\r\n", b"\n", b""]))
    return head + coding + chance.choice(lies) + b"\r\n" + b"".join(parts) + b"0\r\n\r\n"


def _bad_head(chance: random.Random) -> bytes:
    request = bytearray(_whole(chance))
    for _ in range(chance.randrange(1, 4)):
        request[chance.randrange(min(len(request), 120))] = chance.randrange(256)
    return bytes(request)


def _pipelined(chance: random.Random) -> bytes:
    return b"".join(_whole(chance) for _ in range(chance.randrange(2, 6)))


KINDS: Final[tuple[Callable[[random.Random], bytes], ...]] = (
    *(_whole, _whole, _whole, _pipelined, _chunked, _chunked, _bad_head),
)


def _ask(gateway: Gateway, chance: random.Random) -> tuple[int, list[int]]:
    """Send something, and read until the end or until there is an answer to a whole request.

    Returns how many requests it was meant as, and the statuses of the answers.
    """
    data = chance.choice(KINDS)(chance)
    meant = max(1, data.count(b" HTTP/1.1\r\n"))
    with connect(gateway, timeout_s=ANSWERED_S) as connection:
        with contextlib.suppress(ConnectionError):
            for part in _cut(data, chance):
                connection.sendall(part)
            end = chance.random()
            if end < 0.1:
                # It leaves without reading.
                return meant, []
            # It waits for its answer still. Without this the gateway would wait until its deadline
            # for more of what isn't whole, if it hasn't ended the connection by now.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
        received = bytearray()
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(65536):
                received += part
    return meant, _check(bytes(received), data)


def _cut(data: bytes, chance: random.Random) -> Iterator[bytes]:
    if chance.random() < 0.2:
        place = chance.randrange(len(data) + 1)
        yield data[:place]
        if chance.random() < 0.5:
            yield data[place:]
    else:
        yield data


def _check(received: bytes, sent: bytes) -> list[int]:
    """Every answer is a documented one. Raises AssertionError with what was sent."""
    _, *parts = HEAD.split(received)
    statuses = [int(part) for part in parts[::2]]
    for status, rest in zip(statuses, parts[1::2], strict=True):
        assert status in (100, 200) or status in _STATUS.values(), (status, sent)
        assert status < 500, (received, sent)
        assert status == 100 or b"x-request-id: " in rest, (received, sent)
    return statuses


def send_at_random(
    gateway: Gateway, chance: random.Random, requests: int
) -> tuple[int, Counter[int]]:
    """Until it was so many requests, in whatever shape; returns how many, and the answers by
    status.

    Raises AssertionError with what was sent, and TimeoutError for what is neither answered nor
    ended.
    """
    made, statuses = 0, Counter[int]()
    while made < requests:
        meant, answered = _ask(gateway, chance)
        made += meant
        statuses.update(answered)
    return made, statuses
