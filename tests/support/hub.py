"""A hub of the tests' own, which speaks as huggingface.co does, and fails as networks do."""

from __future__ import annotations

import hashlib
import json
import random
import re
import socket
import struct
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

# Nobody waits longer for a stall than until its reader gives up.
STALL_S = 60.0
_PIECE = 16 << 10


class Repository:
    """Files by name; those that end with .safetensors are kept as large files are."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = dict(files)
        self.commit = ""
        self.push({})

    def push(self, files: dict[str, bytes]) -> None:
        self.files |= files
        lines = "".join(f"{name} {digest(name, self.files[name])}" for name in sorted(self.files))
        self.commit = hashlib.sha1(lines.encode()).hexdigest()


def large(name: str) -> bool:
    return name.endswith(".safetensors")


def digest(name: str, content: bytes) -> str:
    if large(name):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Answer:
    """What becomes of one reading of a file: a status instead of it, or a fault within it."""

    def __init__(
        self,
        *,
        status: int | None = None,
        headers: dict[str, str] | None = None,
        after: int | None = None,
        stall: bool = False,
        ranges: bool = True,
        body: bytes | None = None,
        at_cdn: bool = False,
    ) -> None:
        """After so many bytes the connection is reset, or says nothing more for a `stall`."""
        self.status = status
        self.headers = headers or {}
        self.after = after
        self.stall = stall
        self.ranges = ranges
        self.body = body
        self.at_cdn = at_cdn


GOOD = Answer()


class Hub:
    """`plan` says what becomes of each reading; what is asked for is in `asked`.

    Large files come from a CDN, which is another server, and must not see the token.
    """

    def __init__(self, repositories: dict[str, dict[str, bytes]]) -> None:
        self.repositories = {name: Repository(files) for name, files in repositories.items()}
        self.plan: Callable[[str], Answer] = lambda _name: GOOD
        self.api_answers: list[Answer] = []
        self.search_answers: list[Answer] = []
        self.searches: list[dict[str, list[str]]] = []
        # Properties of repositories that differ from those that follow from the files.
        self.told: dict[str, dict[str, Any]] = {}
        self.takes_words_as_one = False
        self.asked: list[str] = []
        self.ranges: list[str] = []
        self.tokens: dict[str, set[str | None]] = {"hub": set(), "cdn": set()}
        self.claimed: dict[str, int] = {}
        self.token: str | None = None
        # Bytes per second of each connection to the CDN.
        self.rate: float | None = None
        self._open: set[socket.socket] = set()
        self._closing = threading.Event()
        self._servers = [_Server(self, _HubHandler), _Server(self, _CdnHandler)]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._servers[0].server_port}"

    @property
    def cdn_url(self) -> str:
        # Another name of the same machine is another origin.
        return f"http://localhost:{self._servers[1].server_port}"

    def properties(self, name: str) -> dict[str, Any]:
        """What the hub says of a repository if it is asked to `expand` it."""
        files = self.repositories[name].files
        config = json.loads(files.get("config.json", b"{}"))
        weights = sum(len(content) for file, content in files.items() if large(file))
        known = ("architectures", "model_type", "quantization_config")
        return {
            "config": {key: config[key] for key in known if key in config},
            "downloads": 1000,
            "gated": False,
            "lastModified": "2025-09-01T12:00:00.000Z",
            "safetensors": {"parameters": {"U8": weights}, "total": weights},
            "tags": ["mlx", "safetensors", "text-generation", "region:us"],
            "usedStorage": sum(map(len, files.values())),
            **self.told.get(name, {}),
        }

    def pause(self, seconds: float) -> None:
        self._closing.wait(seconds)

    def __enter__(self) -> Self:
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._closing.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()


class Chaos:
    """Of readings, so many fail in a way that is drawn, and then no more."""

    def __init__(self, faults: int, seed: int) -> None:
        self._random = random.Random(seed)
        self._left = faults
        self._lock = threading.Lock()

    def __call__(self, _name: str) -> Answer:
        with self._lock:
            if self._left <= 0 or self._random.random() < 0.3:
                return GOOD
            self._left -= 1
            after = self._random.randrange(300_000)
            return self._random.choice(
                [
                    Answer(after=after),
                    Answer(after=after, stall=True),
                    Answer(ranges=False, after=after),
                    Answer(body=b"<html>Please log in</html>"),
                    Answer(status=503),
                    Answer(status=429, headers={"retry-after": "0"}),
                    Answer(status=403, at_cdn=True),
                ]
            )


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hub: Hub, handler: type[BaseHTTPRequestHandler]) -> None:
        self.hub = hub
        super().__init__(("127.0.0.1", 0), handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that are killed break connections, which is what they are here for."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    @property
    def hub(self) -> Hub:
        return self.server.hub

    def say(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send(self, name: str, content: bytes, answer: Answer, headers: dict[str, str]) -> None:
        """A file, or the part of it that was asked for."""
        content = content if answer.body is None else answer.body
        asked = self.headers.get("range", "")
        self.hub.ranges.append(asked)
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", asked)
        status, begin, end = 200, 0, len(content)
        if found and answer.ranges and answer.body is None:
            begin = int(found[1])
            end = min(len(content), int(found[2]) + 1) if found[2] else len(content)
            if begin >= len(content) > 0:
                return self.say(416)
            status = 206
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        if status == 206:
            self.send_header("content-range", f"bytes {begin}-{end - 1}/{len(content)}")
        self.send_header("content-length", str(end - begin))
        self.end_headers()
        sent = 0
        for index in range(begin, end, _PIECE):
            piece = content[index : min(end, index + _PIECE)]
            if answer.after is not None and sent + len(piece) > answer.after:
                self.wfile.write(piece[: max(0, answer.after - sent)])
                self.wfile.flush()
                return self._break(answer)
            self.wfile.write(piece)
            sent += len(piece)
            if self.hub.rate:
                self.hub.pause(len(piece) / self.hub.rate)
        return None

    def _break(self, answer: Answer) -> None:
        if answer.stall:
            self.hub.pause(STALL_S)
        else:
            # A reset, not an orderly end.
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close_connection = True
        self.connection.close()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Silence: stderr is pytest's."""


class _HubHandler(_Handler):
    def do_GET(self) -> None:
        hub, parts = self.hub, urlsplit(self.path)
        path = unquote(parts.path)
        token = self.headers.get("authorization")
        hub.tokens["hub"].add(token)
        hub.asked.append(path)
        if path == "/api/models":
            return self._models(parse_qs(parts.query))
        if api := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/main", path):
            return self._api(api[1], token)
        if file := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self._file(*file.groups())
        return self.say(404)

    def _models(self, query: dict[str, list[str]]) -> None:
        """As the hub has it: a list of objects with `_id`, `id` and the properties that were asked
        for by `expand`, cut at `limit`.
        """
        hub = self.hub
        hub.searches.append(query)
        if hub.search_answers:
            answer = hub.search_answers.pop(0)
            if answer.stall:
                hub.pause(STALL_S)
            if answer.status is not None or answer.body is not None:
                return self.say(answer.status or 200, answer.body or b"", answer.headers)
        text = query["search"][0].lower()
        words = [text] if hub.takes_words_as_one else text.split()
        author = query.get("author", [""])[0]
        found = [
            (name, hub.properties(name))
            for name in hub.repositories
            if all(word in name.lower() for word in words)
            and (not author or name.startswith(f"{author}/"))
        ]
        if kind := query.get("filter"):
            found = [pair for pair in found if kind[0] in pair[1]["tags"]]
        if order := query.get("sort"):
            found.sort(key=lambda pair: pair[1][order[0]], reverse=True)
        limit = int(query.get("limit", ["1000"])[0])
        wanted = query.get("expand", [])
        body = [
            {
                "_id": hashlib.sha1(name.encode()).hexdigest()[:24],
                "id": name,
                **{key: properties[key] for key in wanted if key in properties},
            }
            for name, properties in found[:limit]
        ]
        return self.say(200, json.dumps(body).encode(), {"content-type": "application/json"})

    def _api(self, name: str, token: str | None) -> None:
        hub = self.hub
        if hub.api_answers:
            answer = hub.api_answers.pop(0)
            if answer.status is not None:
                return self.say(answer.status, headers=answer.headers)
        if name not in hub.repositories:
            # As the hub has it, which doesn't tell who there is.
            return self.say(401, headers={"x-error-code": "RepoNotFound"})
        if hub.token is not None and token != f"Bearer {hub.token}":
            return self.say(403, headers={"x-error-code": "GatedRepo"})
        repository = hub.repositories[name]
        siblings = [
            {
                "rfilename": name,
                "size": hub.claimed.get(name, len(content)),
                "blobId": digest("", content),
                **({"lfs": {"sha256": digest(name, content)}} if large(name) else {}),
            }
            for name, content in repository.files.items()
        ]
        body = {"id": name, "sha": repository.commit, "siblings": siblings}
        return self.say(200, json.dumps(body).encode())

    def _file(self, name: str, commit: str, file: str) -> None:
        hub = self.hub
        repository = hub.repositories.get(name)
        if repository is None or file not in repository.files or commit != repository.commit:
            return self.say(404)
        answer = hub.plan(file)
        content = repository.files[file]
        if answer.status is not None and not answer.at_cdn:
            return self.say(answer.status, headers=answer.headers)
        if answer.body is not None and not large(file):
            return self.say(200, answer.body)
        etag = digest(file, content)
        if not large(file):
            return self.send(file, content, answer, {"etag": f'"{etag}"'})
        key = f"{time.monotonic_ns()}"
        _answers[key] = answer
        return self.say(
            302,
            headers={
                "location": f"{hub.cdn_url}/{key}/{name}/{file}",
                "x-linked-etag": f'"{etag}"',
                "x-linked-size": str(len(content)),
                "x-repo-commit": commit,
            },
        )


# Of redirections that were given out.
_answers: dict[str, Answer] = {}


class _CdnHandler(_Handler):
    def do_GET(self) -> None:
        self.hub.tokens["cdn"].add(self.headers.get("authorization"))
        key, owner, name, file = unquote(self.path)[1:].split("/", 3)
        answer = _answers.pop(key)
        if answer.status is not None:
            return self.say(answer.status)
        content = self.hub.repositories[f"{owner}/{name}"].files[file]
        return self.send(file, content, answer, {"etag": '"an etag of the CDN\'s own"'})
