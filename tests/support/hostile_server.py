"""A server of a command that breaks every rule: its requests say how. Standard library alone."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

_OK: Final = b"HTTP/1.1 200 OK\r\n"
_LENGTH: Final = b"content-length: 2\r\n\r\n{}"
_CHUNKED: Final = b"transfer-encoding: chunked\r\n\r\n"


_STATUSES: Final = (b"200", b"200", b"200", b"204", b"304", b"302", b"404", b"503", b"600", b"999")
_TYPES: Final = (b"application/json", b"text/event-stream", b"audio/wav", b"text/html")
_HEADERS: Final = (
    b"x: y",
    b"connection: close",
    b"refresh: 1",
    b"content-encoding: gzip",
    b"\xff: ",
)
_COUNTS: Final = (b"3", b"-1", b"1e9", b"9" * 4300, b"[]")


class Hostile:
    """Answers on one port: GET as `health` says, and other requests as their field `how` says, or
    by chance.
    """

    def __init__(self, port: int, health: str, seed: int | None) -> None:
        self._listening = socket.create_server(("127.0.0.1", port))
        self._health = health
        self._chance = None if seed is None else random.Random(seed)

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                time.sleep(1000)
                return
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            while head := _until(connection, b"\r\n\r\n"):
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                body = _exactly(connection, int(length or 0))
                if b"/v1/models " in head[:20]:
                    connection.sendall(_OK + _whole(b'{"data": [{"id": "odd"}]}'))
                    continue
                asks_health = head.startswith(b"GET /health")
                if self._chance is not None and not asks_health:
                    self._at_random(head, connection.sendall)
                    continue
                how = self._health if head.startswith(b"GET") else json.loads(body)["how"]
                getattr(self, f"_{how}")(connection.sendall)

    def _at_random(self, head: bytes, send: Callable[[bytes], None]) -> None:
        """An answer of odd parts, which may come apart and break off."""
        assert self._chance is not None
        chance = self._chance
        usage = b'{"prompt_tokens": %b, "completion_tokens": 3}' % chance.choice(_COUNTS)
        body = chance.choice((b"{}", b"data: {}\n\n", b": wait\n\n", usage, b'{"usage": ' + usage))
        body *= chance.randrange(4)
        length = chance.choice((b"content-length: %d" % len(body), b"content-length: 9", b"a: b"))
        if chance.random() < 0.3:
            length, body = (
                b"transfer-encoding: chunked",
                b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body),
            )
        lines = [b"HTTP/1.1 %b Odd" % chance.choice(_STATUSES), length, chance.choice(_HEADERS)]
        lines += [b"content-type: " + chance.choice(_TYPES), b"", b""]
        for piece in (b"\r\n".join(lines), body):
            send(piece[: chance.choice((len(piece), len(piece), len(piece), 3))])
            time.sleep(chance.choice((0, 0, 0.01, 0.1)))
        if chance.random() < 0.5:
            raise OSError("It breaks off.")

    def _well(self, send: Callable[[bytes], None]) -> None:
        send(_OK + _LENGTH)

    def _silent(self, send: Callable[[bytes], None]) -> None:
        time.sleep(1000)

    def _garbage(self, send: Callable[[bytes], None]) -> None:
        send(b"<html>as in the year 1991</html>\n")

    def _continue(self, send: Callable[[bytes], None]) -> None:
        while True:
            send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _head(self, send: Callable[[bytes], None]) -> None:
        send(_OK + b"x-large: " + b"x" * 10_000_000 + b"\r\n" + _LENGTH)

    def _drip(self, send: Callable[[bytes], None]) -> None:
        send(_OK + _CHUNKED)
        while True:
            send(b"1\r\nx\r\n")
            time.sleep(0.2)

    def _event(self, send: Callable[[bytes], None]) -> None:
        """An event that never ends."""
        send(_OK + b"content-type: text/event-stream\r\n" + _CHUNKED)
        send(b"c\r\ndata: {}\r\n\r\n\r\n")
        while True:
            send(b"1\r\nx\r\n")
            time.sleep(0.2)

    def _extension(self, send: Callable[[bytes], None]) -> None:
        """A chunk whose first line never ends."""
        send(_OK + _CHUNKED + b"1;")
        while True:
            send(b"x")
            time.sleep(0.2)

    def _deaf(self, send: Callable[[bytes], None]) -> None:
        """Lives, but listens no longer."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        send(_OK + _LENGTH)

    def _stop(self, send: Callable[[bytes], None]) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def _breed(self, send: Callable[[bytes], None]) -> None:
        for _ in range(200):
            subprocess.Popen(["sleep", "1000"], start_new_session=True)
        send(_OK + _LENGTH)

    def _orphans(self, send: Callable[[bytes], None]) -> None:
        """Leave processes behind that end at once, without their parents."""
        for _ in range(20):
            subprocess.run(["sh", "-c", "sh -c 'sleep 0.1' & :"], check=True)
        send(_OK + _LENGTH)

    def _blot(self, send: Callable[[bytes], None]) -> None:
        """Print much without ever ending a line, and then lines without a text."""
        for _ in range(100):
            os.write(2, b"x" * 100_000)
        for _ in range(100):
            os.write(2, b"\n" * 100_000)
        send(_OK + _LENGTH)


def _whole(body: bytes) -> bytes:
    return b"content-length: %d\r\n\r\n%b" % (len(body), body)


def _until(connection: socket.socket, end: bytes) -> bytes:
    found = b""
    while not found.endswith(end):
        if not (piece := connection.recv(1)):
            return b""
        found += piece
    return found


def _exactly(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count and (piece := connection.recv(count - len(found))):
        found += piece
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--health", default="well")
    parser.add_argument("--seed", type=int, help="answers come by chance")
    parser.add_argument("--leave", action="store_true", help="a grandchild listens")
    flags = parser.parse_args()
    if flags.leave:
        again = [sys.executable, __file__, f"--port={flags.port}"]
        subprocess.run(["sh", "-c", '"$@" & :', "sh", *again], check=True)
        return
    Hostile(flags.port, flags.health, flags.seed).serve()


if __name__ == "__main__":
    main()
