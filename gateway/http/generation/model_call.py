"""One HTTP request to a model: from its headers to requests in the model's queue."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final, TypeVar, TypeVarTuple, Unpack

import msgspec
from starlette.requests import Request as HttpRequest

from gateway.access.caller import sharer_at
from gateway.config.model import Model
from gateway.http.generation.generation import MOST_ANSWERS, MOST_PRIORITY, GenerationBody
from gateway.http.generation.pictures import PictureReader, Source, check_pictures, left_out_header
from gateway.http.wire.access_log import record_of, unique
from gateway.http.wire.answer import EVENTS, Answer, Framing
from gateway.http.wire.auth import caller_of, from_page, take_places
from gateway.http.wire.bodies import beside_the_loop
from gateway.http.wire.errors import invalid
from gateway.models.compartment import Compartment
from gateway.models.fleet import Fleet
from gateway.requests import refusals
from gateway.requests.choices import Format, answers_to
from gateway.requests.request import Request, Terms
from gateway.requests.share import share_of
from gateway.requests.use import parse_keep_alive
from protocol.answers import RequestField
from protocol.requests import Generate

# Fields that have the same name in bodies and in messages for workers.
_SAME_NAMES: Final[tuple[RequestField, ...]] = (
    "tools",
    "suffix",
    "logit_bias",
    "allowed_token_ids",
    "stop_token_ids",
    "bad_words",
)

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
        self.compartment: Compartment = self.fleet.roster.find(model, self.caller)
        self.share = share_of(http.scope)
        if passes is not None and passes is not self.model.is_command:
            refuse = refusals.passes_nothing if passes else refusals.only_passes
            raise refuse(self.model.id)

    @property
    def model(self) -> Model:
        return self.compartment.model

    @property
    def vision(self) -> bool:
        """Whether the model takes pictures."""
        return self.model.settings.pictures

    async def beside_the_loop(
        self, function: Callable[[Unpack[Arguments]], T], *arguments: *Arguments
    ) -> T:
        """Call the function, in a thread if the body is large.

        Raises:
            Refusal: no thread is free in time.
        """
        body_bytes: int = self.http.state.body_bytes
        return await beside_the_loop(body_bytes, function, *arguments)

    async def read_pictures(self, sources: Sequence[Source]) -> list[bytes]:
        """The bytes of the pictures, in order.

        Raises:
            Refusal: the model takes no pictures, or a picture can't be read.
        """
        check_pictures(sources, self.model)
        reader: PictureReader = self.http.app.state.pictures
        return await reader.read(sources, self.fleet.settings.gateway, self.share)

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

    def requests(
        self, body: GenerationBody, generates: Sequence[Generate], prompt_param: str
    ) -> list[Request]:
        """Make `body.answers` requests for each message, in order, and count them against the
        caller's limits. The requests are not in the queue yet. `prompt_param` names the body's
        field with the prompt.

        Raises:
            Refusal: a header or keep_alive can't be read, there is no memory for the prompts, or
                the body asks for more answers than the server or the caller's key allows.
        """
        check_mailbox(self.http)
        if len(generates) * body.answers > MOST_ANSWERS:
            raise invalid(
                f"The request asks for {len(generates) * body.answers:,} answers, of "
                f"{MOST_ANSWERS} at most: send several requests.",
                body.answers_param if body.answers > 1 else prompt_param,
            )
        shared = self.fleet.settings.prompt_cache.shared
        salt = self.caller.cache_salt(body.cache_salt or "", shared=shared)
        # A worker gets the prompt once for each answer.
        self.share.take(self.share.size_bytes * (body.answers - 1))
        terms = self.terms(body.priority, body.keep_alive, _params(body, prompt_param))
        requests: list[Request] = []
        for each in generates:
            generate = msgspec.structs.replace(each, request_id=unique(terms.id), cache_salt=salt)
            requests += answers_to(generate, body.answers, terms, self.fleet.now())
        self.count(requests)
        return requests

    def count(self, requests: Sequence[Request]) -> None:
        """Count the requests against the limits of the caller's key, and have the times of the
        requests logged.

        Raises:
            Refusal: the limits of the key don't allow the requests now.
        """
        record_of(self.http.scope).timings = [each.timing for each in requests]
        take_places(self.http, requests)

    def answer(
        self,
        requests: Sequence[Request],
        form: Format,
        *,
        stream: bool = False,
        framing: Framing = EVENTS,
        left_out: Collection[str] = (),
        complete: Callable[[], Awaitable[None]] | None = None,
    ) -> Answer:
        """Put the requests into the model's queue. Returns the response that writes their answers.

        `left_out` names the parts of the body that the model doesn't get; `complete` is awaited
        before the end of the answer is sent.

        Raises:
            Refusal: the queue is full.
        """
        self.fleet.submit(self.compartment, *requests)
        return Answer(
            self.compartment,
            requests,
            form,
            stream=stream,
            framing=framing,
            headers=left_out_header(left_out),
            complete=complete,
        )

    def _priority(self, own: int | None) -> int | None:
        """The priority in X-Priority, else `own`, the body's; None: the model's priority counts.

        Raises:
            Refusal: X-Priority can't be read.
        """
        text = self.http.headers.get("x-priority")
        wanted = own if text is None else _read_priority(text)
        priority = self.caller.priority_of(wanted, self.model.settings.priority)
        if priority is not None and from_page(self.http.headers):
            # A web page may lower the priority of its request, but not raise it above the model's.
            return min(priority, self.model.settings.priority)
        return priority


def _params(body: GenerationBody, prompt_param: str) -> dict[RequestField, str]:
    """The body's names for the fields of `Generate`."""
    names: dict[RequestField, str] = {each: each for each in _SAME_NAMES}
    names |= {"prompt": prompt_param, "prompt_logprobs": "echo"}
    names["template_arguments"] = "chat_template_kwargs"
    return names | {"constraint": body.constraint_param}


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
