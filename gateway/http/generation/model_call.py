"""One HTTP request to a model: the model, the caller, and the terms in the headers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar, TypeVarTuple, Unpack

from starlette.requests import Request as HttpRequest

from gateway.access.caller import sharer_at
from gateway.config.model import Model
from gateway.http.generation.generation_body import MOST_PRIORITY
from gateway.http.generation.pictures import Source
from gateway.http.wire.access_log import record_of
from gateway.http.wire.auth import caller_of, from_page, take_places
from gateway.http.wire.bodies import beside_the_loop
from gateway.http.wire.errors import invalid
from gateway.models.fleet import Fleet
from gateway.models.model_supervisor import ModelSupervisor
from gateway.requests import refusals
from gateway.requests.request import Request, Terms
from gateway.requests.share import share_of
from gateway.requests.use import parse_keep_alive
from protocol.answers import RequestField

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class ModelCall:
    """The model that an HTTP request names, and the caller. A route makes one `ModelCall` for each
    request, so the model is looked up once.
    """

    def __init__(self, http: HttpRequest, model: str, *, passes: bool | None = False) -> None:
        """`model` is an id or an alias. With `passes` the request is passed on as it came, which
        only a model with a command takes. None: any model may be meant.

        Raises:
            Refusal: there is no such model, or the caller may not use it, or it takes no such
                requests.
        """
        self.http = http
        self.fleet: Fleet = http.app.state.fleet
        self.caller = caller_of(http)
        self.supervisor: ModelSupervisor = self.fleet.roster.find(model, self.caller)
        self.share = share_of(http.scope)
        # The pictures that were read for this request.
        self.pictures: dict[Source, bytes] = {}
        if passes is not None and passes is not self.model.is_command:
            refuse = refusals.passes_nothing if passes else refusals.only_passes
            raise refuse(self.model.id)

    @property
    def model(self) -> Model:
        return self.supervisor.model

    async def beside_the_loop(
        self, function: Callable[[Unpack[Arguments]], T], *arguments: *Arguments
    ) -> T:
        """Call the function, in a thread if the request is large.

        Raises:
            Refusal: no thread is free in time.
        """
        return await beside_the_loop(self.share.size_bytes, function, *arguments)

    def terms(
        self,
        priority: int | None,
        keep_alive: float | str | None,
        params: dict[RequestField, str],
    ) -> Terms:
        """The terms of the request. The deadline comes from a header, else from the configuration;
        the priority from a header, else from the body's `priority`; and `keep_alive` from the body.
        The caller's bounds limit priority and keep_alive. `params` maps fields of the message for a
        worker to the body's names for these fields.

        Raises:
            Refusal: a header or keep_alive can't be read.
        """
        record = record_of(self.http.scope)
        record.model = self.model.id
        return Terms(
            id=record.id,
            key=record.key,
            address=sharer_at(client.host) if (client := self.http.client) is not None else "",
            share=self.caller.share,
            deadline_s=deadline_s(self.http, self.fleet.settings.queue.deadline_s),
            priority=self._priority(priority),
            keep_alive_s=self.caller.keep_alive_of(
                keep_alive_s(keep_alive), self.model.settings.ttl_s
            ),
            params=params,
        )

    def count(self, requests: Sequence[Request]) -> None:
        """Count the requests against the limits of the caller's key, and have the times of the
        requests logged.

        Raises:
            Refusal: the limits of the key don't allow the requests now.
        """
        record_of(self.http.scope).timings = [request.timing for request in requests]
        take_places(self.http, requests)

    def _priority(self, of_body: int | None) -> int | None:
        """The priority in X-Priority, or else `of_body`; None: the model's priority counts.

        Raises:
            Refusal: X-Priority can't be read.
        """
        text = self.http.headers.get("x-priority")
        wanted = of_body if text is None else _read_priority(text)
        priority = self.caller.priority_of(wanted, self.model.settings.priority)
        if priority is not None and from_page(self.http.headers):
            # A web page may lower the priority of its request, but not raise it above the model's.
            return min(priority, self.model.settings.priority)
        return priority


def _read_priority(text: str) -> int:
    if re.fullmatch(r"[+-]?[0-9]{1,4}", text) is None or abs(int(text)) > MOST_PRIORITY:
        raise invalid(
            f"X-Priority is {text[:40]!r}: send a whole number from -{MOST_PRIORITY} to "
            f"{MOST_PRIORITY}.",
            "X-Priority",
        )
    return int(text)


def keep_alive_s(value: float | str | None) -> float | None:
    """The keep_alive of a body, in seconds. None: the body has no keep_alive.

    Raises:
        Refusal: keep_alive can't be read.
    """
    if value is None:
        return None
    try:
        return parse_keep_alive(value)
    except ValueError as error:
        raise invalid(f"{error}.", "keep_alive") from error


def check_mailbox(request: HttpRequest) -> bool:
    """Whether the header X-Mailbox asks to keep the answer for a client that leaves.

    Raises:
        Refusal: the header has another value, or answers of this path can't be kept.
    """
    text = request.headers.get("x-mailbox")
    if text is None:
        return False
    if text.strip().lower() != "keep":
        reason = f"{text[:40]!r} is not known: send keep, or leave it out"
    elif request.url.path == "/v1/responses":
        reason = "responses are kept with background: true"
    elif request.url.path != "/v1/chat/completions":
        reason = "only answers of /v1/chat/completions can be kept"
    else:
        return True
    raise invalid(f"X-Mailbox: {reason}.", "X-Mailbox")


def deadline_s(request: HttpRequest, default_s: float) -> float:
    """The deadline in seconds: the header X-Deadline-S, else `default_s`.

    Raises:
        Refusal: the header isn't a positive number.
    """
    text = request.headers.get("x-deadline-s")
    if text is None:
        return default_s
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise invalid(
            f"X-Deadline-S is {text!r}: send a positive number of seconds.", "X-Deadline-S"
        )
    return seconds
