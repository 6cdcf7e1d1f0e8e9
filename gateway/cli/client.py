"""An HTTP client of a gateway."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Final, TypeAlias, TypeVar
from urllib.parse import quote

import httpx
import msgspec
from msgspec import Struct

from gateway.cli.failure import (
    CommandError,
    HubAwayError,
    NobodyListensError,
    NoGatewayError,
    NoSuchModelError,
    NotFoundError,
)
from gateway.http.wire.command_bodies import (
    ModelBody,
    ModelListing,
    ModelStatus,
    OpenAIErrorEnvelope,
    OrderOptions,
    Status,
)
from gateway.system.tls import distrust, trusting_system

_CONNECT_S: Final = 5.0
ANSWER: Final = httpx.Timeout(10.0, connect=_CONNECT_S)
# The timeout of requests for which the gateway reads models on disks: a disk may sleep.
DISKS: Final = httpx.Timeout(30.0, connect=_CONNECT_S)
# The timeout of streams, which have an event or a comment every few seconds.
STREAM: Final = httpx.Timeout(60.0, connect=_CONNECT_S)
# Once connected, a load or a drain may take any time.
PATIENT: Final = httpx.Timeout(None, connect=_CONNECT_S)

# Clients and proxies normalize a path with these parts: the request would reach another route.
FOLDED: Final = ("", ".", "..")

STATUS: Final = "/admin/v1/status"

Body = TypeVar("Body", bound=Struct)
Query: TypeAlias = dict[str, str | int]


class ServerSentEvent(Struct, frozen=True):
    """An event of a stream, with its name as `kind`; or a comment, with the kind `comment`."""

    kind: str
    data: str


class KeyRefusedError(CommandError):
    """The gateway wants a key, or doesn't know the one that was sent."""


class GatewayClient:
    """A client of one gateway. Every method raises `CommandError` if the gateway refuses the
    request or doesn't answer.
    """

    def __init__(
        self, url: str, admin_key: str | None = None, trust: ssl.SSLContext | None = None
    ) -> None:
        """`trust` verifies the gateway's certificate. If it is None, `trusting_system` does."""
        self.url = url
        # Whether the gateway is the command's own.
        self.ends_with_command = False
        self._trust = trust
        if trust is None and url.startswith("https:"):
            trust = trusting_system()
        self._http = httpx.Client(
            base_url=url,
            headers={} if admin_key is None else {"authorization": f"Bearer {admin_key}"},
            timeout=ANSWER,
            # A proxy from the environment (HTTP_PROXY) would look for 127.0.0.1 on its own machine.
            trust_env=False,
            verify=trust or True,
        )

    def __enter__(self) -> GatewayClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def with_key(self, key: str | None) -> GatewayClient:
        """Another client of the same gateway, with this key in place of the admin key."""
        return GatewayClient(self.url, key, self._trust)

    def status(self) -> Status:
        return self.read(self.get(STATUS), Status)

    def models(self) -> list[ModelBody]:
        return self.read(self.get("/v1/models"), ModelListing).data

    def model(self, model_id: str) -> ModelBody:
        """The model with this id or alias."""
        return self.read(self.get(f"/v1/models/{quoted(model_id)}"), ModelBody)

    def order(self, verb: str, model_id: str, options: OrderOptions) -> ModelStatus:
        """Give an order about a model, and wait until the gateway has carried out the order."""
        path = f"/admin/v1/models/{quoted(model_id)}/{verb}"
        return self.read(self.send("POST", path, options), ModelStatus)

    def events(
        self, recent: int, *, follow: bool, model: str | None = None
    ) -> AbstractContextManager[Iterator[ServerSentEvent]]:
        """Past events are the last `recent` ones, of this model if there is one."""
        query: Query = {"recent": recent, "follow": int(follow)}
        if model is not None:
            query["model"] = model
        timeout = PATIENT if follow else ANSWER
        return self.stream("GET", "/admin/v1/events", timeout=timeout, query=query)

    def get(self, path: str, timeout: httpx.Timeout = ANSWER, query: Query | None = None) -> bytes:
        with self._answer("GET", path, timeout, query=query) as response:
            return response.read()

    def send(
        self, method: str, path: str, body: Struct | None = None, timeout: httpx.Timeout = PATIENT
    ) -> bytes:
        with self._answer(method, path, timeout, body) as response:
            return response.read()

    @contextlib.contextmanager
    def stream(
        self,
        method: str,
        path: str,
        body: Struct | None = None,
        timeout: httpx.Timeout = PATIENT,
        query: Query | None = None,
    ) -> Iterator[Iterator[ServerSentEvent]]:
        """The events and comments of an answer, each as soon as it arrives."""
        with self._answer(method, path, timeout, body, query=query) as response:
            yield server_sent_events(response.iter_bytes())

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
        query: Query | None = None,
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
            error = msgspec.json.decode(content, type=OpenAIErrorEnvelope).error
        except msgspec.MsgspecError:
            return NoGatewayError(
                f"What answers at {self.url} is not a Bulkhead gateway (status {status_code})."
            )
        if error.code == "model_not_found":
            return NoSuchModelError(error.message)
        if error.code == "invalid_api_key":
            # After the colon the message tells which header of a request has the key.
            why = error.message.partition(":")[0].rstrip(".")
            return KeyRefusedError(f"{why}: give it with --admin-key-file or BULKHEAD_ADMIN_KEY.")
        if error.code == "not_found":
            return NotFoundError(error.message)
        if error.code == "hub_unavailable":
            return HubAwayError(error.message)
        return CommandError(error.message)


def quoted(model_id: str, named: str | None = None) -> str:
    """The id, quoted for the path of a URL. `named` is the name that the user typed, for the error.

    Raises:
        NoSuchModelError: a part of the id between slashes is in `FOLDED`.
    """
    if any(part in FOLDED for part in model_id.split("/")):
        raise NoSuchModelError(
            f"There is no model {named or model_id!r}: a part of an id between slashes is never "
            "empty, `.` or `..`."
        )
    return quote(model_id, safe="/")


def server_sent_events(chunks: Iterable[bytes]) -> Iterator[ServerSentEvent]:
    """The events and comments of a stream. An event that the stream's end cuts off is left out."""
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
    """Split a stream at line feeds alone. httpx's iter_lines also splits at other separators, which
    JSON text may contain.
    """
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode("utf-8", "replace")
