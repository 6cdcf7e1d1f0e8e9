"""An HTTPS client for one server. The server proves itself by the fingerprint of its certificate,
not by its name.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import sys
from typing import Final, TypeVar

import httpx
import msgspec
from msgspec import Struct

from gateway.config.model_folders import expand_home
from gateway.system.file_access import program
from gateway.system.lane import Lane
from gateway.system.notation import without_number
from gateway.system.state_file import read_secret
from gateway.system.tasks import Tasks
from gateway.system.tls import fingerprint, parse_fingerprint, trusting_anybody, trusting_this

Body = TypeVar("Body", bound=Struct)

# The longest wait for the server's IP address, and for the key file. A name of the local network
# may take seconds.
_LOOKUP_S: Final = 5.0
_CONNECT_S: Final = 3.0
_PORT: Final = 443
# On macOS a LaunchAgent, with every program that it starts, may reach the local network only after
# a user has allowed that at the screen. Until then a connection fails with EHOSTUNREACH. Without a
# user at the screen macOS doesn't ask. Daemons, root, and programs started by a terminal or SSH
# need no permission (Apple's TN3179).
_ADVICE: Final = (
    ". macOS says that, too, to a LaunchAgent that may not reach the local network: allow {} at "
    "the screen (System Settings, Privacy & Security, Local Network), or have a daemon run it, "
    "which needs no permission: sudo bulkhead service install --system"
)
# The code of an answer that can't be read.
FOREIGN: Final = "foreign"


class RefusedError(OSError):
    """The server's refusal, with its code and its message. `lasting`: another try can't help."""

    def __init__(self, code: str, message: str, *, lasting: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.lasting = lasting


class _Error(Struct):
    message: str
    code: str


class _Envelope(Struct):
    error: _Error


class PinnedClient:
    """Sends nothing, least of all its key, before the server has shown the pinned certificate. Each
    method raises OSError, with the reason, if the request fails or its deadline passes.
    """

    def __init__(self, url: str, key_file: str, pinned: str) -> None:
        """`pinned` is the certificate's fingerprint. Raises: ValueError: it is no fingerprint."""
        self.url = url
        self._key_file = expand_home(key_file)
        self._fingerprint = parse_fingerprint(pinned)
        at = httpx.URL(url)
        self._host = at.raw_host.decode("ascii").strip("[]")
        self._port = at.port or _PORT
        self._lane = Lane(f"way to {self._host}")
        self._http: httpx.AsyncClient | None = None
        self._connecting = asyncio.Lock()
        self._asking = 0
        self._tasks = Tasks(f"way to {self._host}")

    async def get(self, path: str, kind: type[Body], deadline_s: float) -> Body:
        return self._read(await self._send("GET", path, None, deadline_s), kind)

    async def post(self, path: str, body: Struct, kind: type[Body], deadline_s: float) -> Body:
        return self._read(await self._send("POST", path, body, deadline_s), kind)

    async def order(self, method: str, path: str, deadline_s: float) -> None:
        """Send a request whose answer has no body."""
        await self._send(method, path, None, deadline_s)

    async def address(self) -> str:
        """The present IP address of the server's name."""
        return await self._lane.run(self._resolve, _LOOKUP_S, f"the name {self._host}")

    async def close(self) -> None:
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()
        await self._tasks.cancel_all()

    async def _send(
        self, method: str, path: str, body: Struct | None, deadline_s: float
    ) -> httpx.Response:
        self._asking += 1
        try:
            async with asyncio.timeout(deadline_s):
                http = await self._connected()
                answer = await http.request(
                    method,
                    path,
                    content=None if body is None else msgspec.json.encode(body),
                    headers={} if body is None else {"content-type": "application/json"},
                )
        except TimeoutError as error:
            self._doubt()
            raise TimeoutError(f"{self.url} did not answer within {deadline_s:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL, RuntimeError) as error:
            self._doubt()
            reason = without_number(str(error)) or type(error).__name__
            raise ConnectionError(f"{self.url}: {reason}") from error
        finally:
            self._asking -= 1
        if not answer.is_success:
            raise self._refused(answer)
        return answer

    def _doubt(self) -> None:
        """Drop the connection, so that the next request makes a new one. Keep it if other requests
        may still be answered.
        """
        if self._asking == 1 and self._http is not None:
            self._tasks.start(self._http.aclose(), "close")
            self._http = None

    async def _connected(self) -> httpx.AsyncClient:
        async with self._connecting:
            if self._http is None:
                key = await self._lane.run(self._key, _LOOKUP_S, str(self._key_file))
                found = await self.address()
                self._http = httpx.AsyncClient(
                    base_url=httpx.URL("https://x").copy_with(host=found, port=self._port),
                    headers={"authorization": f"Bearer {key}"},
                    verify=await self._trust(found),
                    trust_env=False,
                    timeout=None,  # noqa: S113 - each request has a deadline as a whole
                )
            return self._http

    async def _trust(self, address: str) -> ssl.SSLContext:
        """A context that trusts the certificate with the pinned fingerprint, and no other."""
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, writer = await asyncio.open_connection(
                    address, self._port, ssl=trusting_anybody(), server_hostname=""
                )
        except TimeoutError as error:
            raise TimeoutError(f"{self.url} did not answer within {_CONNECT_S:g} s") from error
        except OSError as error:
            reason = without_number(str(error))
            raise ConnectionError(
                f"{self.url} can't be reached: {reason}{advice(error)}"
            ) from error
        try:
            shown: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        finally:
            writer.transport.abort()
        if fingerprint(shown) != self._fingerprint:
            raise RefusedError(
                "certificate",
                f"{self.url} shows another certificate than the one that is expected: its "
                f"fingerprint is {fingerprint(shown)}. If the agent has a new one, put that into "
                "the configuration; else somebody is in between.",
                lasting=True,
            )
        return trusting_this(shown)

    def _key(self) -> str:
        return read_secret(self._key_file).decode("ascii").strip()

    def _resolve(self) -> str:
        found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        return str(found[0][4][0])

    def _read(self, answer: httpx.Response, kind: type[Body]) -> Body:
        try:
            return msgspec.json.decode(answer.content, type=kind)
        except msgspec.MsgspecError as error:
            raise RefusedError(
                FOREIGN,
                f"What answers at {self.url} is no agent, or one of another version ({error}).",
                lasting=True,
            ) from error

    def _refused(self, answer: httpx.Response) -> RefusedError:
        lasting = answer.headers.get("x-should-retry") == "false"
        try:
            error = msgspec.json.decode(answer.content, type=_Envelope).error
        except msgspec.MsgspecError:
            return RefusedError(
                FOREIGN,
                f"What answers at {self.url} is no agent (status {answer.status_code}).",
                lasting=True,
            )
        message = f"{self.url}: {error.message}"
        if error.code == "invalid_api_key":
            message = f"{self.url} doesn't take the key in {self._key_file}."
        return RefusedError(error.code, message, lasting=lasting)


def advice(error: OSError, system: str = sys.platform) -> str:
    """Advice to append to the error of a failed connection; empty if there is none."""
    kept_out = system == "darwin" and error.errno == errno.EHOSTUNREACH
    return _ADVICE.format(program()) if kept_out else ""
