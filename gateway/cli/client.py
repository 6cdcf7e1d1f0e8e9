"""The commands' way to a gateway: its address, its admin key, and an HTTP client."""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, TypeAlias, TypeVar
from urllib.parse import quote

import httpx
import msgspec
from msgspec import Struct

from gateway.access.key_file import admin_key
from gateway.cli.failure import (
    CommandError,
    NobodyListensError,
    NoGatewayError,
    NoSuchModelError,
)
from gateway.config.layers import ConfigError
from gateway.config.read import read_settings
from gateway.config.settings import Flags, Settings
from gateway.http.command_bodies import (
    ModelBody,
    ModelListing,
    ModelStatus,
    OpenAIErrorEnvelope,
    OrderOptions,
    Status,
)
from gateway.system.state_dir import StateDir, near_url, running_address
from gateway.system.tls import distrust, trusting

_CONNECT_S: Final = 5.0
ANSWER: Final = httpx.Timeout(10.0, connect=_CONNECT_S)
# For requests that read the disks of models, which may sleep.
DISKS: Final = httpx.Timeout(30.0, connect=_CONNECT_S)
# For streams with an event or a comment every few seconds.
STREAM: Final = httpx.Timeout(60.0, connect=_CONNECT_S)
# For loads and drains, whose time has no bound here.
PATIENT: Final = httpx.Timeout(None, connect=_CONNECT_S)

# Clients and proxies fold a path with such a part, so it would lead elsewhere.
FOLDED: Final = ("", ".", "..")

STATUS: Final = "/admin/v1/status"

Body = TypeVar("Body", bound=Struct)
Query: TypeAlias = dict[str, str | int]


class ServerSentEvent(Struct, frozen=True):
    """`kind` is the event's name, or `comment`."""

    kind: str
    data: str


class GatewayClient:
    """Every method raises `CommandError` if the gateway refuses or doesn't answer."""

    def __init__(
        self, url: str, admin_key: str | None = None, trust: ssl.SSLContext | None = None
    ) -> None:
        """`trust` checks the gateway's certificate; None: by what this system trusts."""
        self.url = url
        if trust is None and url.startswith("https:"):
            trust = trusting_system()
        self._http = httpx.Client(
            base_url=url,
            headers={} if admin_key is None else {"authorization": f"Bearer {admin_key}"},
            timeout=ANSWER,
            # A proxy of the environment would seek the gateway on its own loopback.
            trust_env=False,
            verify=trust or True,
        )

    def __enter__(self) -> GatewayClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def status(self) -> Status:
        return self.read(self.get(STATUS), Status)

    def models(self) -> list[ModelBody]:
        return self.read(self.get("/v1/models"), ModelListing).data

    def model(self, model_id: str) -> ModelBody:
        """The model of an id or alias."""
        return self.read(self.get(f"/v1/models/{quoted(model_id)}"), ModelBody)

    def order(self, verb: str, model_id: str, options: OrderOptions) -> ModelStatus:
        """Give an order about a model, and wait until it is carried out."""
        path = f"/admin/v1/models/{quoted(model_id)}/{verb}"
        return self.read(self.send("POST", path, options), ModelStatus)

    def events(
        self, recent: int, *, follow: bool
    ) -> AbstractContextManager[Iterator[ServerSentEvent]]:
        query: Query = {"recent": recent, "follow": int(follow)}
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
        """The events of an answer, while they come."""
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
            # The text behind the colon is for authors of HTTP requests.
            why = error.message.partition(":")[0].rstrip(".")
            return CommandError(f"{why}: give it with --admin-key-file or BULKHEAD_ADMIN_KEY.")
        return CommandError(error.message)


def quoted(model_id: str, named: str | None = None) -> str:
    """An id as a part of a path. `named` is the user's word for the model, for the error.

    Raises:
        NoSuchModelError: a part of the id would be folded.
    """
    if any(part in FOLDED for part in model_id.split("/")):
        raise NoSuchModelError(
            f"There is no model {named or model_id!r}: a part of an id between slashes is never "
            "empty, `.` or `..`."
        )
    return quote(model_id, safe="/")


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
    """Lines that end with a line feed. httpx's iter_lines would also split at other separators,
    which JSON text may contain.
    """
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode("utf-8", "replace")


def trusting_system() -> ssl.SSLContext:
    """Trusts this system's authorities, or the file in SSL_CERT_FILE, and those of httpx, since
    Python on macOS may find none of the system's.
    """
    context = httpx.create_ssl_context()
    context.load_default_certs()
    # Private authorities seldom have all fields that a strict check demands.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


# Names of one loopback address; another program may listen at the other ones.
_ITSELF: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class Access(Struct, frozen=True):
    """How to reach a gateway. `trust` checks its certificate; None: by what this system trusts."""

    url: str
    key: str | None
    trust: ssl.SSLContext | None


def local_settings(state_dir: Path | None) -> tuple[Settings, StateDir]:
    """The settings and the state folder that `serve` would use. With mistakes in the configuration
    these are the defaults and the named folder.
    """
    try:
        settings = read_settings(Flags(state_dir=state_dir), os.environ)
        named = settings.gateway.state_dir
    except ConfigError:
        settings = Settings()
        named = os.environ.get("BULKHEAD_STATE_DIR") if state_dir is None else str(state_dir)
    return settings, StateDir.at(named)


def access(url: str | None, key: str | None, settings: Settings, state_dir: StateDir) -> Access:
    """Access to the gateway at `url`; without one, to the gateway that uses the folder, or else to
    the address in the settings. Only the gateway that uses the folder gets the folder's admin key:
    another program may listen at its port under another name of loopback, so the gateway's own
    address takes the place of `url`.
    """
    address = running_address(state_dir)
    if address is None or (url is not None and not _same(url, address.url)):
        here = settings.gateway
        return Access(url or near_url(here.host, here.port, tls=here.tls), key, None)
    return Access(
        address.url,
        key or admin_key(state_dir.admin_key_path),
        None if address.certificate is None else _trusting(address.certificate),
    )


def _trusting(certificate: str) -> ssl.SSLContext | None:
    try:
        return trusting(certificate)
    except OSError:
        return None


def _same(url: str, other: str) -> bool:
    """Whether two addresses lead to one gateway, by the names of loopback."""
    one, two = httpx.URL(url), httpx.URL(other)
    if (one.scheme, one.port) != (two.scheme, two.port):
        return False
    return one.host == two.host or {one.host, two.host} <= _ITSELF


@contextlib.contextmanager
def own_gateway(state_dir: Path | None) -> Iterator[GatewayClient | None]:
    """A client of the gateway that uses the state folder; None if none does."""
    settings, folder = local_settings(state_dir)
    if running_address(folder) is None:
        yield None
        return
    near = access(None, None, settings, folder)
    with GatewayClient(near.url, near.key, near.trust) as client:
        yield client
