"""`python -m tests.support.agents.record [AGENT...]` runs agents and keeps what they asked: in
`requests`, a file each, without what is this machine's and without their makers' prose.
"""

from __future__ import annotations

import http.client
import http.server
import json
import re
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from tests.support.agents.recorded import HOLD, Request, record
from tests.support.agents.running import AGAIN, AGENTS, QUESTION, ask, configuration
from tests.support.agents.script import CARGO, script
from tests.support.gateway import Gateway
from tests.support.scripted.model import scripted_model

_HEADERS = ("anthropic-beta", "anthropic-version", "content-type", "originator", "user-agent")
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{20,}")
_PROSE_WORDS = 6
_OURS = ("anchor-of-", "-hold.", CARGO, QUESTION, AGAIN)
_BEGINNING = re.compile(r"\s*(?:<[\w -]+>|[\w-]+:)?")


def main() -> None:
    for agent in sys.argv[1:] or AGENTS:
        with TemporaryDirectory() as folder:
            record(agent, _asked_by(agent, Path(folder)))


def _asked_by(agent: str, folder: Path) -> list[Request]:
    hold = folder / "hold"
    hold.mkdir()
    model = scripted_model(folder / "plain", "plain", script(hold))
    gateway = Gateway(models=(), config=configuration({"plain": model}))
    recorder = _Recorder(gateway.url)
    try:
        ask(agent, folder / "home", hold, recorder.url, "plain")
    finally:
        recorder.shutdown()
        gateway.stop()
    neutral = _Neutral({str(hold): str(HOLD), str(folder): "/home/somebody"})
    return [neutral(request) for request in recorder.requests]


class _Recorder(http.server.ThreadingHTTPServer):
    """Passes everything on to a gateway."""

    def __init__(self, gateway: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.gateway = urlsplit(gateway).netloc
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.requests: list[Request] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Recorder

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        connection = http.client.HTTPConnection(self.server.gateway)
        for item in ("host", "accept-encoding", "connection"):
            headers.pop(item, None)
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        print(self.command, self.path, len(body), answer.status)
        self.server.requests.append(
            {
                "method": self.command,
                "path": self.path,
                # Without what a program says of its machine.
                "headers": {
                    name: headers[name].split(" (")[0] for name in _HEADERS if name in headers
                },
                "body": json.loads(body) if body else None,
            }
        )
        self.send_response(answer.status)
        self.send_header("content-type", answer.getheader("content-type", ""))
        self.end_headers()
        while piece := answer.read1(65536):
            self.wfile.write(piece)
            self.wfile.flush()

    do_GET = do_HEAD = do_POST = _pass_on  # noqa: N815

    def log_message(self, *_: Any) -> None:
        """It prints what it does itself."""


class _Neutral:
    """Says what was said, but for places, ids, and what was written to be read."""

    def __init__(self, places: dict[str, str]) -> None:
        self._places = places
        self._ids: dict[str, str] = {}

    def __call__(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self._text(name): self(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self(item) for item in value]
        return self._text(value) if isinstance(value, str) else value

    def _text(self, text: str) -> str:
        try:
            inner = json.loads(text) if text.startswith("{") else None
        except ValueError:
            inner = None
        if inner is not None:
            return json.dumps(self(inner))
        for place, neutral in self._places.items():
            text = text.replace(place, neutral)
        text = _ID.sub(self._id, text)
        if len(text.split()) < _PROSE_WORDS or any(our in text for our in _OURS):
            return text
        begins = _BEGINNING.match(text)
        assert begins is not None
        return f"{begins[0]} {len(text)} characters.".lstrip()

    def _id(self, found: re.Match[str]) -> str:
        new = re.sub(r"[0-9a-f]", "0", found[0])
        number = str(len(self._ids) + 1)
        return self._ids.setdefault(found[0], new[: -len(number)] + number)


if __name__ == "__main__":
    main()
