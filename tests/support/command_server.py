"""A model server that a configuration names as a command, and that misbehaves by flags. Standard
library alone, since nothing but its own environment may matter to it.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.server
import json
import mmap
import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from typing import Any

EATEN: list[bytearray | mmap.mmap] = []


def eat(megabytes: int) -> None:
    """Take memory, and touch all of it."""
    block = bytearray(megabytes << 20)
    block[::4096] = b"\1" * len(block[::4096])
    EATEN.append(block)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: Any) -> None:
        pass

    def address_string(self) -> str:
        return "client"

    def do_GET(self) -> None:
        if self.path.startswith("/environment"):
            self._json(dict(os.environ))
        elif self.path.startswith("/own"):
            self._json({"path": self.path, "headers": dict(self.headers.items())})
        else:
            self._json({"data": []})

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "7")
        self.end_headers()

    def do_POST(self) -> None:
        body = self._body()
        kind = self.headers.get("content-type", "")
        if kind.startswith("multipart/"):
            self._answer_form(body)
            return
        asked = json.loads(body or b"{}")
        if asked.get("eat"):
            eat(asked["eat"])
        if asked.get("die"):
            os._exit(asked["die"])
        if asked.get("hang"):
            time.sleep(asked["hang"])
        if self.path.endswith("/speech"):
            self._pieces([b"RIFF" * 500] * 2, asked.get("pause_s", 0), "audio/wav")
        elif self.path.endswith("/images/generations"):
            self._draw("image_generation", bool(asked.get("stream")))
        elif asked.get("stream"):
            self._stream(asked)
        else:
            usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
            message = {"role": "assistant", "content": asked.get("model")}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            self._json(
                {
                    "id": "x",
                    "object": "chat.completion",
                    "created": 1,
                    "model": asked.get("model"),
                    "choices": [choice],
                    "usage": usage,
                    "headers": dict(self.headers.items()),
                }
            )

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        found = b""
        while size := int(self.rfile.readline(), 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def _answer_form(self, body: bytes) -> None:
        time.sleep(float(self._field(body, "speed") or 0))
        stream = self._field(body, "stream") == "true"
        if self.path.endswith("/images/edits"):
            self._draw("image_edit", stream)
        elif stream:
            deltas = [{"type": "transcript.text.delta", "delta": text} for text in ("he", "ard")]
            self._events([*deltas, {"type": "transcript.text.done", "text": "heard"}])
        else:
            text = self.path.rpartition("/")[2] + " heard"
            self._json({"bytes": len(body), "model": self._field(body, "model"), "text": text})

    def _field(self, body: bytes, name: str) -> str:
        value = body.partition(b'name="%b"' % name.encode())[2].partition(b"\r\n\r\n")[2]
        return value.partition(b"\r\n")[0].decode()

    def _draw(self, name: str, stream: bool) -> None:
        picture = base64.b64encode(b"picture" * 30_000).decode()
        if stream:
            kinds = {"partial_image": {"partial_image_index": 0}, "completed": {}}
            self._events(
                [
                    {"type": f"{name}.{kind}", "b64_json": picture, **more}
                    for kind, more in kinds.items()
                ]
            )
        else:
            self._json({"created": 1, "data": [{"b64_json": picture}]})

    def _events(self, events: list[dict[str, Any]]) -> None:
        lines = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]
        self._pieces([line.encode() for line in lines], 0, "text/event-stream")

    def _pieces(self, pieces: list[bytes], pause_s: float, kind: str) -> None:
        self._send_head(kind)
        for piece in pieces:
            self._chunk(piece)
            time.sleep(pause_s)
        self._chunk(b"")

    def _send_head(self, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()

    def _stream(self, asked: dict[str, Any]) -> None:
        self._send_head("text/event-stream")
        for number in range(int(asked.get("max_tokens", 5))):
            delta = {"content": f"{number} "}
            choice = {"index": 0, "delta": delta, "finish_reason": None}
            self._event({"id": "x", "object": "chat.completion.chunk", "choices": [choice]})
            time.sleep(asked.get("pause_s", 0.01))
        choice = {"index": 0, "delta": {}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
        self._event({"object": "chat.completion.chunk", "choices": [choice], "usage": usage})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, event: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()

    def _json(self, body: Any) -> None:
        self._bytes(json.dumps(body).encode(), "application/json")

    def _bytes(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


def talk_nonsense(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)) as listening:
        while True:
            connection, _ = listening.accept()
            with contextlib.suppress(OSError), connection:
                connection.recv(65536)
                connection.sendall(b"SSH-2.0-nonsense\r\n\r\n")


def flood() -> None:
    while True:
        print("a line of a flood " * 20, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--socket")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--slow-start", type=float, default=0.0)
    parser.add_argument("--map", help="a file, of which all pages are read through a mapping")
    parser.add_argument("--eat", type=int, default=0, help="megabytes, before it is ready")
    for flag in ("flood", "daemon", "child", "nonsense", "never", "ignore-sigterm", "hide", "fail"):
        parser.add_argument(f"--{flag}", action="store_true")
    flags = parser.parse_args()
    if flags.fail:
        sys.exit("this server can't start")
    if flags.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if flags.child:
        # In a session of its own, without the environment of its parent's session leader.
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
    if flags.hide:
        # As Apple's own programs do: its environment can't be read, and it leaves its parent.
        subprocess.Popen(["sh", "-c", "sleep 1000 & sleep 1000 &"], env={}).wait()
    if flags.daemon and os.fork():
        os._exit(0)
    if flags.daemon:
        os.setsid()
        if os.fork():
            os._exit(0)
    if flags.flood:
        threading.Thread(target=flood, daemon=True).start()
    if flags.eat:
        eat(flags.eat)
    if flags.map:
        with open(flags.map, "rb") as file:  # noqa: PTH123
            EATEN.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        sum(EATEN[0][::4096])
    time.sleep(flags.slow_start)
    while flags.never:
        time.sleep(1)
    if flags.nonsense:
        talk_nonsense(flags.port)
    server = (
        UnixServer(flags.socket, Handler)
        if flags.socket
        else Server((flags.host, flags.port), Handler)
    )
    print("serves", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
