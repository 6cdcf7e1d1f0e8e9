"""A server of one model, whose answers a test writes."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
import time
from collections.abc import Iterator
from typing import Any, Self

_PIECE_CHARACTERS = 4


class ChatServer:
    """Streams `answer` to whoever asks, piece by piece, with a pause of `pause_s` after each. While
    `held` is set, it waits before the second half.
    """

    def __init__(self) -> None:
        self.answer = ""
        self.pause_s = 0.0
        self.held = threading.Event()
        self.asked: list[dict[str, Any]] = []
        chats = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *arguments: Any) -> None:
                pass

            def do_GET(self) -> None:
                body = json.dumps({"data": [{"id": "writer", "object": "model"}]}).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
                chats.asked.append(asked)
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("connection", "close")
                self.end_headers()
                # A client may leave.
                with contextlib.suppress(OSError):
                    for piece in chats._pieces():
                        self.wfile.write(b"data: %b\n\n" % piece)

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def config(self) -> str:
        """The table of a configuration that has it as the upstream `far`."""
        port = self._server.server_address[1]
        return f'[upstreams.far]\nurl = "http://127.0.0.1:{port}/v1"\n'

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _pieces(self) -> Iterator[bytes]:
        text = self.answer
        tokens = range(0, len(text), _PIECE_CHARACTERS)
        for index in tokens:
            while self.held.is_set() and index >= len(text) // 2:
                time.sleep(0.01)
            yield _chunk({"content": text[index : index + _PIECE_CHARACTERS]})
            time.sleep(self.pause_s)
        usage = {"prompt_tokens": 12, "completion_tokens": len(tokens), "total_tokens": 12}
        yield _chunk({}, "stop", usage)
        yield b"[DONE]"


def _chunk(delta: dict[str, str], finish: str | None = None, usage: object = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return json.dumps({"id": "chat", "choices": [choice], "usage": usage}).encode()
