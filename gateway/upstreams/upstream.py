"""One upstream: its models and its health, by looks at its list, and the client that asks it."""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit

from gateway.config.model_folders import expand_home
from gateway.config.model_settings import UpstreamSettings
from gateway.system.clock import until_set
from gateway.system.events import EventLog
from gateway.system.http_client import AnswerError, HttpClient, Question, Server
from gateway.system.lane import Lane
from gateway.system.state_file import read_secret
from gateway.system.tasks import Histogram
from gateway.system.tls import trusting_signer, trusting_system
from gateway.upstreams.health import UpstreamHealth
from gateway.upstreams.offers import CycleError, Offer, read_offers
from gateway.upstreams.route import via_value

logger = logging.getLogger(__name__)

_CONNECT_S: Final = 3.0
# A look has so long in all, so that an answer that trickles doesn't hold it up.
_LOOK_S: Final = 5.0
_MOST_LIST_BYTES: Final = 1 << 20
_BUSY_S: Final = 1.0
# Bounds of a histogram. A model that must be loaded there is in the last ones.
_ANSWER_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_API: Final = "/v1"
_KEY: Final = re.compile(rb"[!-~]+")
_PORTS: Final = {"http": 80, "https": 443}
_LOCKED: Final = (401, 403)
REDIRECTS: Final = (301, 302, 303, 307, 308)


class KeyNotTakenError(ValueError):
    """The upstream doesn't take the gateway's key."""


class Upstream:
    """`offers` are the models of the last list, by all names that the upstream knows them by. They
    stay while it is out of reach. `running` counts the requests to each name that run from here.
    `asked` is set after the first look, `idle` while no request runs. `failures` counts requests
    that got no answer or not all of it, and `answer_s` has the seconds until answers began.
    """

    def __init__(
        self, name: str, settings: UpstreamSettings, instance: str, events: EventLog
    ) -> None:
        """`instance` is this gateway's."""
        self.name = name
        self.settings = settings
        self.health = UpstreamHealth()
        self.models: list[Offer] = []
        self.offers: dict[str, Offer] = {}
        self.running: Counter[str] = Counter()
        self.chosen_at: dict[str, float] = {}
        self.failures = 0
        self.answer_s = Histogram(_ANSWER_S)
        self.asked = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()
        self._running_at_look: Counter[str] = Counter()
        self._busy_until: dict[str, float] = {}
        self._instance = instance
        self._events = events
        self._lane = Lane(f"files of upstream {name}")
        self._loop = asyncio.get_running_loop()
        self._look_soon = asyncio.Event()
        self._key: bytes | None = None
        self._client: HttpClient | None = None
        address = urlsplit(settings.url)
        # An address without a path is that of the server; its API is where everybody's is.
        self._base = address.path.rstrip("/") or _API
        self._secure = address.scheme == "https"
        self._host = address.hostname or ""
        self._port = address.port or _PORTS[address.scheme]

    # Requests

    @property
    def client(self) -> HttpClient:
        """Call this only once a look has succeeded."""
        assert self._client is not None
        return self._client

    @property
    def of_bulkhead(self) -> bool:
        """Whether it is another Bulkhead, as far as its list shows."""
        return any(model.of_bulkhead for model in self.models)

    def trouble(self) -> str | None:
        """Why requests to it are refused now; None: they aren't."""
        return self.health.trouble(self._loop.time())

    @property
    def full(self) -> bool:
        """Whether as many requests from here run there as may at once."""
        return self.running.total() >= self.settings.max_concurrency

    def wait_s(self) -> float:
        """Seconds until a refused request is worth another try."""
        return self.health.wait_s(self._loop.time())

    def load(self, name: str) -> int:
        """The requests that run and wait for the model there, with those from here up to now."""
        offer = self.offers.get(name)
        others = 0 if offer is None else max(0, offer.load - self._running_at_look[name])
        return others + self.running[name]

    def busy(self, name: str) -> bool:
        """Whether it has asked for patience with requests to this model."""
        return self._loop.time() < self._busy_until.get(name, 0.0)

    def be_patient(self, name: str, seconds: float | None) -> None:
        """It refused a request, and asks to wait for so long. None: it didn't say how long."""
        self._busy_until[name] = self._loop.time() + (_BUSY_S if seconds is None else seconds)

    def target(self, path: bytes) -> bytes:
        """The path there for a path here. Those of OpenAI's API begin with /v1 here; beside these
        there are others.
        """
        api = _API.encode()
        if path.startswith(api + b"/"):
            return self._base.encode() + path.removeprefix(api)
        return self._base.removesuffix(_API).encode() + path

    def secrets(self) -> list[tuple[bytes, bytes]]:
        """The headers that show the gateway's key."""
        return [] if self._key is None else [(b"authorization", b"Bearer " + self._key)]

    @contextmanager
    def asking(self, name: str) -> Iterator[float]:
        """A request to the model runs. Yields the time at which it began."""
        now = self._loop.time()
        self.health.sent(now)
        self.running[name] += 1
        self.idle.clear()
        self.chosen_at[name] = now
        try:
            yield now
        finally:
            self.running[name] -= 1
            if not self.running.total():
                self.idle.set()

    def served(self, began: float) -> None:
        """It has begun to answer a request, which began at that time."""
        self.health.served()
        self.answer_s.observe(self._loop.time() - began)

    def failed(self, error: AnswerError) -> None:
        """A request got no answer, or not all of it."""
        self.failures += 1
        now = self._loop.time()
        if error.sent:
            self.health.failed(now, str(error))
        else:
            self.health.missed(now, str(error))
            self._look_soon.set()

    # Looks

    async def watch(self) -> None:
        """Look again and again."""
        while True:
            await self.look()
            self._look_soon.clear()
            await until_set(self._look_soon, self.health.pause_s())

    async def look(self) -> None:
        """Fetch the list of models."""
        before = self.health.trouble(self._loop.time()) if self.health.asked else None
        running = self.running.copy()
        try:
            offers = await self.fetch()
        except (OSError, AnswerError, ValueError) as error:
            self._missed(str(error), before)
        else:
            self.models = offers
            self.offers = {name: offer for offer in reversed(offers) for name in offer.names}
            self._running_at_look = running
            if not self.health.reachable:
                self._events.emit("upstream", None, name=self.name, reachable=True)
            self.health.reached()
        self.asked.set()

    def _missed(self, reason: str, before: str | None) -> None:
        if reason != before:
            logger.warning("Upstream %s %s", self.name, reason)
            self._events.emit("upstream", None, name=self.name, reachable=False, reason=reason)
        self.health.missed(self._loop.time(), reason)

    async def fetch(self) -> list[Offer]:
        """Ask for the list of models. Makes the client, if there is none yet.

        Raises:
            OSError: a file can't be read, or time is up.
            AnswerError: there is no answer.
            KeyNotTakenError: the gateway's key isn't taken.
            CycleError: the upstream is this gateway.
            ValueError: the answer is no list. The text of each error completes "the upstream ...".
        """
        try:
            async with asyncio.timeout(_LOOK_S):
                await self._prepare()
                return read_offers(await self._list(), self._instance)
        except TimeoutError:
            raise TimeoutError(f"did not list its models within {_LOOK_S:g} s") from None
        except OSError as error:
            raise OSError(f"can't be asked: {error}") from error

    async def _list(self) -> bytes:
        """Raises: AnswerError, ValueError: there is no list."""
        headers = [(b"via", via_value(self._instance)), *self.secrets()]
        question = Question(b"GET", self.target(b"/v1/models"), headers)
        answer = await self.client.ask(question, _LOOK_S)
        try:
            if answer.status in _LOCKED:
                file = self.settings.key_file
                raise KeyNotTakenError(
                    "wants a key, and key_file names none"
                    if file is None
                    else f"doesn't take the key in {file}"
                )
            if answer.status == 508:
                raise CycleError
            if answer.status in REDIRECTS:
                to = dict(answer.headers).get(b"location", b"nowhere").decode(errors="replace")
                raise ValueError(f"redirects to {to[:300]!r}: that may be the url to configure")
            if answer.status != 200:
                raise ValueError(f"answered with {answer.status} when asked for its models")
            body = bytearray()
            while piece := await answer.read(_LOOK_S):
                body += piece
                if len(body) > _MOST_LIST_BYTES:
                    raise ValueError(f"lists its models in more than {_MOST_LIST_BYTES >> 20} MiB")
            return bytes(body)
        finally:
            answer.close()

    async def _prepare(self) -> None:
        """Read the key, which may be another by now, and make the client. Raises: OSError."""
        if (key_file := self.settings.key_file) is not None:
            path = expand_home(key_file)
            secret = await self._lane.run(lambda: read_secret(path), _LOOK_S, str(path))
            key = secret.strip()
            if _KEY.fullmatch(key) is None:
                raise ValueError(f"can't be asked: {path} holds no key")
            self._key = key
        if self._client is None:
            tls = None
            if self._secure:
                tls = await self._lane.run(self._trusting, _LOOK_S, "the certificates")
            self._client = HttpClient(Server(self._host, self._port, tls), _CONNECT_S)

    def _trusting(self) -> ssl.SSLContext:
        file = self.settings.certificate
        return trusting_system() if file is None else trusting_signer(str(expand_home(file)))

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
