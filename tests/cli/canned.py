"""A stand-in for a gateway: answers what it is told to, and remembers what it was asked."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self, TypeVar

import msgspec
from msgspec import Struct, inspect

from gateway.http.wire.command_bodies import (
    ModelBody,
    ModelListing,
    ModelStatus,
    OpenAIErrorEnvelope,
    Status,
)
from gateway.library.catalogue import EntryList, ModelOnDisk

T = TypeVar("T", bound=Struct)

_KINDS: Final[dict[str, type[Struct]]] = {
    "/admin/v1/status": Status,
    "/v1/models": ModelListing,
    "/v1/models/.+": ModelBody,
    "/admin/v1/models/.+/(load|unload|restart|kill)": ModelStatus,
    "/admin/v1/library": EntryList,
    "/admin/v1/library/.+": ModelOnDisk,
}

# Among a stream's events: here it waits until it may go on.
PAUSE = ": pause\n\n"


class CannedGateway:
    """Answers by path; a path that it doesn't know gets 404 without an envelope."""

    def __init__(self) -> None:
        self.answers: dict[str, list[tuple[int, str, bytes]]] = {}
        self.headers: list[dict[str, str]] = []
        self.bodies: list[Any] = []
        self.goes_on = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def will_answer(self, path: str, body: Any, status: int = 200) -> None:
        """Fields of the API's bodies that are left out are null, empty or 0."""
        whole = _whole(_kind(path, body), body)
        answer = (status, "application/json", msgspec.json.encode(whole))
        self.answers.setdefault(path, []).append(answer)

    def will_stream(self, path: str, events: Iterable[str]) -> None:
        answer = (200, "text/event-stream", "".join(events).encode())
        self.answers.setdefault(path, []).append(answer)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        self.goes_on.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def filled(kind: type[T], **known: Any) -> T:
    """A body with these fields; the others are null, empty or 0."""
    fields = inspect.type_info(kind).fields  # type: ignore[attr-defined]
    return kind(**{field.name: _nothing(field.type) for field in fields} | known)


def _kind(path: str, body: Any) -> type[Struct] | None:
    if isinstance(body, dict) and isinstance(body.get("error"), dict):
        return OpenAIErrorEnvelope
    return next((kind for pattern, kind in _KINDS.items() if re.fullmatch(pattern, path)), None)


def _whole(kind: type[Struct] | None, body: Any) -> Any:
    if kind is None or not isinstance(body, dict):
        return body
    whole = dict(body)
    for field in inspect.type_info(kind).fields:  # type: ignore[attr-defined]
        if field.encode_name not in whole:
            whole[field.encode_name] = _nothing(field.type)
            continue
        value, types = whole[field.encode_name], getattr(field.type, "types", (field.type,))
        for struct_type in types:
            if isinstance(struct_type, inspect.StructType):
                whole[field.encode_name] = _whole(struct_type.cls, value)
            elif isinstance(struct_type, inspect.ListType) and isinstance(
                struct_type.item_type, inspect.StructType
            ):
                whole[field.encode_name] = [_whole(struct_type.item_type.cls, one) for one in value]
    return whole


def _nothing(kind: inspect.Type) -> Any:
    match kind:
        case inspect.UnionType():
            return None
        case inspect.ListType() | inspect.VarTupleType():
            return []
        case inspect.DictType():
            return {}
        case inspect.StructType(cls=inner):
            return filled(inner)
        case inspect.StrType():
            return ""
        case inspect.BoolType():
            return False
    return 0


def chat_events(*pieces: str) -> list[str]:
    """A whole answer, as the gateway streams it."""
    chunks = ({"choices": [{"delta": {"content": piece}}]} for piece in pieces)
    return [*(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks), "data: [DONE]\n\n"]


def reasoning_event(text: str) -> str:
    return f"data: {json.dumps({'choices': [{'delta': {'reasoning_content': text}}]})}\n\n"


def _handler(gateway: CannedGateway) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            length = int(self.headers.get("content-length", 0))
            gateway.bodies.append(json.loads(self.rfile.read(length)))
            self._answer()

        def _answer(self) -> None:
            gateway.headers.append(dict(self.headers))
            path = self.path.partition("?")[0]
            answers = gateway.answers.get(path, [(404, "text/plain", b"nothing here")])
            # The last answer stays.
            status, kind, body = answers.pop(0) if len(answers) > 1 else answers[0]
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            begun, pause, rest = body.partition(PAUSE.encode())
            self.wfile.write(begun)
            if pause:
                gateway.goes_on.wait(60.0)
            self.wfile.write(pause + rest)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Silence: stderr is pytest's."""

    return Handler
