"""The generation parameters that chat and completions share."""

from __future__ import annotations

import re
import secrets
import uuid
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Raw, Struct
from starlette.requests import Request as HttpRequest

from gateway.dispatch.keep_alive import parse_keep_alive
from gateway.dispatch.refusal import Refusal
from gateway.dispatch.request import Request
from gateway.supervise.fleet import Fleet
from protocol.messages import Generate, Prompt, Sampling

_MOST_STOPS: Final = 16
# A machine is built from them before the answer begins, and its size grows with theirs.
_LONGEST_STOP: Final = 1000
_MOST_PRIORITY: Final = 1000
_LARGEST_COUNT: Final = (1 << 31) - 1

Probability = Annotated[float, Meta(ge=0, le=1)]
Tokens = Annotated[int, Meta(ge=1, le=_LARGEST_COUNT)]
StopSequence = Annotated[str, Meta(min_length=1, max_length=_LONGEST_STOP)]
Stop = StopSequence | Annotated[list[StopSequence], Meta(max_length=_MOST_STOPS)] | None


class StreamOptions(Struct):
    include_usage: bool | None = None


# Not built: what is refused anyway may be tens of megabytes of lists.
_NOT_GIVEN: Final = Raw(b"null")
_LONGEST_NEUTRAL: Final = 100


class GenerationBody(Struct, kw_only=True):
    """Fields of both bodies. Those typed Raw are known and not supported; see `_NEUTRAL`."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Tokens | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=_LARGEST_COUNT)] | None = None
    min_p: Probability | None = None
    stop: Stop = None
    seed: int | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    priority: Annotated[int, Meta(ge=-_MOST_PRIORITY, le=_MOST_PRIORITY)] | None = None
    keep_alive: float | str | None = None
    logprobs: Raw = _NOT_GIVEN
    top_logprobs: Raw = _NOT_GIVEN
    logit_bias: Raw = _NOT_GIVEN
    presence_penalty: Raw = _NOT_GIVEN
    frequency_penalty: Raw = _NOT_GIVEN
    repetition_penalty: Raw = _NOT_GIVEN
    response_format: Raw = _NOT_GIVEN
    tools: Raw = _NOT_GIVEN
    tool_choice: Raw = _NOT_GIVEN
    functions: Raw = _NOT_GIVEN
    function_call: Raw = _NOT_GIVEN
    best_of: Raw = _NOT_GIVEN
    echo: Raw = _NOT_GIVEN
    suffix: Raw = _NOT_GIVEN

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


# Values with which a parameter that isn't supported changes nothing.
_NEUTRAL: Final[dict[str, tuple[object, ...]]] = {
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
}


def check_supported(body: GenerationBody) -> None:
    """Refuse what would otherwise be ignored in silence.

    Raises:
        Refusal: a parameter asks for something that this server doesn't do.
    """
    if body.n not in (None, 1):
        raise Refusal(
            "invalid_request_error",
            f"n is {body.n}: one answer a request is supported; for more send more requests.",
            param="n",
        )
    for name, neutral in _NEUTRAL.items():
        text: Raw = getattr(body, name)
        value = msgspec.json.decode(text) if len(text) <= _LONGEST_NEUTRAL else text
        if value is not None and value not in neutral:
            raise Refusal(
                "invalid_request_error", f"{name} is not supported: leave it out.", param=name
            )


def new_request(
    http_request: HttpRequest,
    fleet: Fleet,
    body: GenerationBody,
    prompt: Prompt,
    max_tokens: int | None,
) -> Request:
    """What a body and its headers ask for.

    Raises:
        Refusal: a header, or keep_alive, can't be read.
    """
    return Request(
        generate_message(body, prompt, max_tokens),
        fleet.now(),
        deadline_s(http_request, fleet.settings.queue.deadline_s),
        priority=_priority(http_request, body),
        keep_alive_s=_keep_alive_s(body),
    )


def _priority(request: HttpRequest, body: GenerationBody) -> int | None:
    text = request.headers.get("x-priority")
    if text is None:
        return body.priority
    if re.fullmatch(r"[+-]?[0-9]{1,4}", text) is None or abs(int(text)) > _MOST_PRIORITY:
        raise Refusal(
            "invalid_request_error",
            f"X-Priority is {text[:40]!r}: send a whole number from -{_MOST_PRIORITY} to "
            f"{_MOST_PRIORITY}.",
            param="X-Priority",
        )
    return int(text)


def _keep_alive_s(body: GenerationBody) -> float | None:
    if body.keep_alive is None:
        return None
    try:
        return parse_keep_alive(body.keep_alive)
    except ValueError as error:
        raise Refusal("invalid_request_error", f"{error}.", param="keep_alive") from error


def generate_message(body: GenerationBody, prompt: Prompt, max_tokens: int | None) -> Generate:
    """What the worker is told. A seed is always assigned: a request stays the same request."""
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    seed = secrets.randbits(64) if body.seed is None else body.seed & (1 << 64) - 1
    return Generate(
        request_id=uuid.uuid4().hex,
        prompt=prompt,
        sampling=Sampling(
            seed=seed,
            temperature=body.temperature,
            top_p=body.top_p,
            # -1 is what vLLM's clients send for "no limit".
            top_k=0 if body.top_k == -1 else body.top_k,
            min_p=body.min_p,
        ),
        max_tokens=max_tokens,
        stop=stop,
        ignore_eos=bool(body.ignore_eos),
    )


def deadline_s(request: HttpRequest, default_s: float) -> float:
    """X-Deadline-S, or the configured deadline.

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
        raise Refusal(
            "invalid_request_error",
            f"X-Deadline-S is {text!r}: send a positive number of seconds.",
            param="X-Deadline-S",
        )
    return seconds
