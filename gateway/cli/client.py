"""The commands' way to a gateway: one HTTP client, and what its failures mean."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar
from urllib.parse import quote

import httpx
import msgspec
from msgspec import Struct

from gateway.cli.bodies import (
    EntryListReading,
    EntryReading,
    ErrorEnvelope,
    ForecastReading,
    GatewayReading,
    ListedModel,
    ModelList,
    PullOrder,
    PullReading,
    RawModelList,
    RemovedReading,
)
from gateway.cli.failure import (
    CommandError,
    NobodyListensError,
    NoGatewayError,
    NoSuchModelError,
)
from gateway.system.tls import distrust


class ServerSentEvent(Struct, frozen=True):
    """`kind` is the event's name, or `comment`."""

    kind: str
    data: str


def server_sent_events(chunks: Iterable[bytes]) -> Iterator[ServerSentEvent]:
    """The events and comments of a stream; an event that is cut off is left out."""
    kind, data = "message", list[str]()
    for line in _lines(chunks):
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield ServerSentEvent(kind, "\n".join(data))
            kind, data = "message", []
        elif not name:
            yield ServerSentEvent("comment", value)
        elif name == "event":
            kind = value
        elif name == "data":
            data.append(value)


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Lines that end with a line feed.

    httpx's iter_lines would also split at the separators of str.splitlines, which may stand inside
    JSON text.
    """
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode("utf-8", "replace")


def trusting_system() -> ssl.SSLContext:
    """For a client that takes what this system trusts, or the file in SSL_CERT_FILE, and the
    authorities that come with httpx, as Python on macOS may find none of the system's.
    """
    context = httpx.create_ssl_context()
    context.load_default_certs()
    # Authorities at home seldom have everything that theirs should have.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


_ANSWER_S: Final = 10.0
_CONNECT_S: Final = 5.0
_TIMEOUT: Final = httpx.Timeout(_ANSWER_S, connect=_CONNECT_S)
# The disks of models may sleep.
_SLOW: Final = httpx.Timeout(30.0, connect=_CONNECT_S)
# A stream says something every few seconds, if only that it waits.
_STREAM: Final = httpx.Timeout(60.0, connect=_CONNECT_S)
# For what takes as long as it takes: loads, drains.
_PATIENT: Final = httpx.Timeout(None, connect=_CONNECT_S)

# Parts of a path that lead to another one.
_FOLDED: Final = ("", ".", "..")

Body = TypeVar("Body", bound=Struct)


class GatewayClient:
    """Every method raises `CommandError` when the gateway doesn't do what it is asked for."""

    def __init__(
        self, url: str, admin_key: str | None = None, trust: ssl.SSLContext | None = None
    ) -> None:
        """`trust` is what the gateway's certificate is checked with, if there is to be one."""
        self.url = url
        if trust is None and url.startswith("https:"):
            trust = trusting_system()
        self._http = httpx.Client(
            base_url=url,
            headers={} if admin_key is None else {"authorization": f"Bearer {admin_key}"},
            timeout=_TIMEOUT,
            # A proxy of the environment would look for the gateway on its own loopback.
            trust_env=False,
            verify=trust or True,
        )

    def __enter__(self) -> GatewayClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def status_json(self) -> bytes:
        return self.get("/admin/v1/status")

    def status(self) -> GatewayReading:
        return self.read(self.status_json(), GatewayReading)

    def models_json(self) -> bytes:
        """The list alone, as it was sent."""
        return bytes(self.read(self.get("/v1/models"), RawModelList).data)

    def models(self) -> tuple[ListedModel, ...]:
        return self.read(self.get("/v1/models"), ModelList).data

    def model(self, model_id: str) -> ListedModel:
        """The model of an id or alias."""
        return self.read(self.get(f"/v1/models/{_quoted(model_id)}"), ListedModel)

    def forecast(self, model_id: str, context_tokens: int | None) -> ForecastReading:
        """What a load would bring about now; None: with the model's own context."""
        path = f"/admin/v1/models/{_quoted(model_id)}/estimate"
        query: dict[str, str | int] = (
            {} if context_tokens is None else {"context_tokens": context_tokens}
        )
        with self._answer("GET", path, _SLOW, query=query) as response:
            return self.read(response.read(), ForecastReading)

    def get(self, path: str, **query: str | int) -> bytes:
        with self._answer("GET", path, _TIMEOUT, query=query) as response:
            return response.read()

    def order(self, verb: str, model_id: str, body: Struct) -> bytes:
        """Let an operator's verb happen, and wait for its end."""
        path = f"/admin/v1/models/{_quoted(model_id)}/{verb}"
        with self._answer("POST", path, _PATIENT, body) as response:
            return response.read()

    def reload(self) -> bytes:
        with self._answer("POST", "/admin/v1/reload", _PATIENT) as response:
            return response.read()

    def upgrade(self) -> bytes:
        with self._answer("POST", "/admin/v1/upgrade", _PATIENT) as response:
            return response.read()

    def add_key(self, new: Struct) -> bytes:
        with self._answer("POST", "/admin/v1/keys", _TIMEOUT, new) as response:
            return response.read()

    def revoke_key(self, name: str) -> None:
        if name in _FOLDED:
            raise CommandError(f"There is no key {name!r} to revoke.")
        with self._answer("DELETE", f"/admin/v1/keys/{quote(name, safe='')}", _TIMEOUT):
            pass

    def log(self, model_id: str | None, query: dict[str, str | int]) -> str:
        return self.get(_log_path(model_id), **query).decode("utf-8", "replace")

    @contextlib.contextmanager
    def followed_log(
        self, model_id: str | None, query: dict[str, str | int]
    ) -> Iterator[Iterator[ServerSentEvent]]:
        query = {"follow": 1, **query}
        with self._answer("GET", _log_path(model_id), _PATIENT, query=query) as response:
            yield server_sent_events(response.iter_bytes())

    @contextlib.contextmanager
    def events(self, recent: int, *, follow: bool) -> Iterator[Iterator[ServerSentEvent]]:
        query: dict[str, str | int] = {"recent": recent, "follow": int(follow)}
        timeout = _PATIENT if follow else _TIMEOUT
        with self._answer("GET", "/admin/v1/events", timeout, query=query) as response:
            yield server_sent_events(response.iter_bytes())

    @contextlib.contextmanager
    def chat(self, request: Struct) -> Iterator[Iterator[ServerSentEvent]]:
        with self._answer("POST", "/v1/chat/completions", _STREAM, request) as response:
            yield server_sent_events(response.iter_bytes())

    @contextlib.contextmanager
    def completion(self, request: Struct) -> Iterator[Iterator[ServerSentEvent]]:
        with self._answer("POST", "/v1/completions", _STREAM, request) as response:
            yield server_sent_events(response.iter_bytes())

    def begin_pull(self, order: PullOrder) -> PullReading:
        with self._answer("POST", "/admin/v1/pulls", _TIMEOUT, order) as response:
            return self.read(response.read(), PullReading)

    @contextlib.contextmanager
    def pull(self, pull_id: str) -> Iterator[Iterator[PullReading]]:
        """What becomes of a pull, until it is over."""
        with self._answer("GET", f"/admin/v1/pulls/{pull_id}", _PATIENT) as response:
            yield (
                self.read(event.data, PullReading)
                for event in server_sent_events(response.iter_bytes())
                if event.kind == "pull"
            )

    def cancel_pull(self, pull_id: str) -> bytes:
        with self._answer("DELETE", f"/admin/v1/pulls/{pull_id}", _PATIENT) as response:
            return response.read()

    def library(self) -> tuple[EntryReading, ...]:
        with self._answer("GET", "/admin/v1/library", _SLOW) as response:
            return self.read(response.read(), EntryListReading).models

    def library_entry(self, name: str) -> EntryReading:
        with self._answer("GET", _library_path(name), _SLOW) as response:
            return self.read(response.read(), EntryReading)

    def removal(self, name: str) -> RemovedReading:
        with self._answer("GET", _library_path(name, "removals"), _SLOW) as response:
            return self.read(response.read(), RemovedReading)

    def remove(self, name: str) -> RemovedReading:
        with self._answer("DELETE", _library_path(name), _PATIENT) as response:
            return self.read(response.read(), RemovedReading)

    def read(self, content: bytes | str, kind: type[Body]) -> Body:
        try:
            return msgspec.json.decode(content, type=kind)
        except msgspec.MsgspecError as error:
            raise NoGatewayError(
                f"What answers at {self.url} is not a Bulkhead gateway, or one of another "
                f"version ({error})."
            ) from error

    @contextlib.contextmanager
    def _answer(
        self,
        method: str,
        path: str,
        timeout: httpx.Timeout,
        body: Struct | None = None,
        *,
        query: dict[str, str | int] | None = None,
    ) -> Iterator[httpx.Response]:
        try:
            with self._http.stream(
                method,
                path,
                params=query or None,
                content=None if body is None else msgspec.json.encode(body),
                headers={} if body is None else {"content-type": "application/json"},
                timeout=timeout,
            ) as response:
                if not response.is_success:
                    raise self._refused(response.read(), response.status_code)
                yield response
        except httpx.ConnectError as error:
            if (doubt := distrust(error)) is not None:
                raise NoGatewayError(
                    f"The certificate at {self.url} is not trusted ({doubt}), so nothing was sent. "
                    "For a gateway of this account name its state folder (BULKHEAD_STATE_DIR); for "
                    "another one let this system trust its certificate, and name it with --url as "
                    "the certificate does."
                ) from error
            raise NobodyListensError(
                f"No gateway answers at {self.url} ({error}): start one with `bulkhead serve`, or "
                "name another with --url."
            ) from error
        except httpx.TimeoutException as error:
            raise NoGatewayError(f"The gateway at {self.url} doesn't answer in time.") from error
        except httpx.RequestError as error:
            raise NoGatewayError(
                f"The connection to the gateway at {self.url} broke ({error})."
            ) from error

    def _refused(self, content: bytes, status_code: int) -> CommandError:
        try:
            error = msgspec.json.decode(content, type=ErrorEnvelope).error
        except msgspec.MsgspecError:
            return NoGatewayError(
                f"What answers at {self.url} is not a Bulkhead gateway (status {status_code})."
            )
        if error.code == "model_not_found":
            return NoSuchModelError(error.message)
        if error.code == "invalid_api_key":
            # What follows the colon is for who writes HTTP requests.
            why = error.message.partition(":")[0].rstrip(".")
            return CommandError(f"{why}: give it with --admin-key-file or BULKHEAD_ADMIN_KEY.")
        return CommandError(error.message)


def _log_path(model_id: str | None) -> str:
    """The gateway's own log, or a model's."""
    return "/admin/v1" + ("" if model_id is None else f"/models/{_quoted(model_id)}") + "/logs"


def _library_path(name: str, what: str = "library") -> str:
    """An entry may be named by its folder, which begins with a slash."""
    root = "/" if name.startswith("/") else ""
    return f"/admin/v1/{what}/{root}{_quoted(name.removeprefix('/'), name)}"


def _quoted(model_id: str, named: str | None = None) -> str:
    """Clients and proxies fold such parts of a path, and another route would get the request.

    Raises:
        NoSuchModelError: it has one; `named` is what the user has written.
    """
    if any(part in _FOLDED for part in model_id.split("/")):
        raise NoSuchModelError(
            f"There is no model {named or model_id!r}: what is between the slashes of an id is "
            "never empty, `.` or `..`."
        )
    return quote(model_id, safe="/")
