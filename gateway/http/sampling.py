"""The generation parameters that chat and completions share."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request as HttpRequest

from gateway.config.model import Model
from gateway.http.callers import caller_of, take_places
from gateway.http.connection.origins import from_page
from gateway.http.connection.request_id import unique
from gateway.http.parameters import Place
from gateway.http.record import record_of
from gateway.http.supported import check_supported, refusing
from gateway.models.fleet import Fleet
from gateway.requests.keep_alive import parse_keep_alive
from gateway.requests.request import Request
from gateway.requests.share import share_of
from gateway.system.refusal import Refusal
from protocol.answers import RequestField
from protocol.prompts import Prompt
from protocol.requests import Generate, Sampling
from protocol.tokens import LARGEST_TOKEN_ID

# What clients call as the worker does.
_SAME_NAMES: Final[tuple[RequestField, ...]] = (
    "tools",
    "suffix",
    "logit_bias",
    "allowed_token_ids",
    "stop_token_ids",
    "bad_words",
)
_MOST_STOPS: Final = 16
# A machine is built from them before the answer begins, and its size grows with theirs.
_LONGEST_STOP: Final = 1000
_LONGEST_SALT: Final = 256
# As OpenAI has it.
MOST_ANSWERS: Final = 128
_MOST_PRIORITY: Final = 1000
_LARGEST_PENALTY: Final = 10.0
# As mlx-lm has it.
_XTC_THRESHOLD: Final = 0.1
# As mlx_lm.server has it.
_REPETITION_CONTEXT: Final = 20
# mlx_lm.server's clients send 0 for "none", all others 1.
_NO_PENALTY: Final = (None, 0, 1)
LARGEST_COUNT: Final = (1 << 31) - 1
_MOST_BIASES: Final = 1024
_MOST_STOP_TOKENS: Final = 256
_MOST_BAD_WORDS: Final = 256
# More than vocabularies have.
_MOST_ALLOWED: Final = 1 << 20

Probability = Annotated[float, Meta(ge=0, le=1)]
Priority = Annotated[int, Meta(ge=-_MOST_PRIORITY, le=_MOST_PRIORITY)]
# What a context has no room for is cut off, however much it is.
Tokens = Annotated[int, Meta(ge=1)]
StopSequence = Annotated[str, Meta(min_length=1, max_length=_LONGEST_STOP)]
# vLLM advises 43 characters.
Salt = Annotated[str, Meta(max_length=_LONGEST_SALT)]
TokenId = Annotated[int, Meta(ge=0, le=LARGEST_TOKEN_ID)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
Stop = StopSequence | Annotated[list[StopSequence], Meta(max_length=_MOST_STOPS)] | None


@refusing("stream_options")
class StreamOptions(Struct):
    include_usage: bool | None = None


class GenerationBody(Struct, kw_only=True):
    """What is done on both paths; the table of parameters has the rest."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=LARGEST_COUNT)] | None = None
    min_p: Probability | None = None
    repetition_penalty: Annotated[float, Meta(ge=0, le=_LARGEST_PENALTY)] | None = None
    repetition_context_size: Annotated[int, Meta(ge=1, le=LARGEST_COUNT)] | None = None
    stop: Stop = None
    seed: int | None = None
    ignore_eos: bool | None = None
    priority: Priority | None = None
    keep_alive: float | str | None = None
    cache_salt: Salt | None = None
    n: Annotated[int, Meta(ge=1, le=MOST_ANSWERS)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: Annotated[dict[TokenId, Bias], Meta(max_length=_MOST_BIASES)] | None = None
    xtc_probability: Probability | None = None
    xtc_threshold: Annotated[float, Meta(ge=0, le=0.5)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=LARGEST_COUNT)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=_MOST_STOP_TOKENS)] | None = None
    include_stop_str_in_output: bool | None = None
    bad_words: Annotated[list[StopSequence], Meta(max_length=_MOST_BAD_WORDS)] | None = None
    allowed_token_ids: Annotated[list[TokenId], Meta(max_length=_MOST_ALLOWED)] | None = None

    @property
    def answers(self) -> int:
        """How many are wanted of each prompt."""
        return self.n or 1

    @property
    def answers_param(self) -> str:
        return "n"

    @property
    def constraint_param(self) -> str:
        """Where it says what the answer must match."""
        return "response_format"

    @property
    def limit(self) -> int | None:
        """How long the answer may be, in tokens, if that was said."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens
        return self.max_tokens

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


def check_generation(body: GenerationBody, place: Place) -> None:
    """Raises: Refusal: it asks for something that this server doesn't do, or nobody can."""
    check_supported(body, place)
    if body.limit is not None and (body.min_tokens or 0) > body.limit:
        raise Refusal(
            "invalid_request_error",
            f"min_tokens: it is {body.min_tokens}, and the answer may have {body.limit} at most.",
            param="min_tokens",
        )
    if body.stream_options is not None:
        check_supported(body.stream_options, "stream_options", "stream_options.")


def new_requests(
    http_request: HttpRequest,
    fleet: Fleet,
    body: GenerationBody,
    generates: Sequence[Generate],
    prompt_param: str,
) -> list[Request]:
    """What a body and its headers ask for: `body.answers` for each of these, one after the other.
    What the client calls the prompt is `prompt_param`.

    Raises:
        Refusal: a header, or keep_alive, can't be read, or it is too much at once, for anybody or
            for its key.
    """
    check_mailbox(http_request)
    if len(generates) * body.answers > MOST_ANSWERS:
        raise Refusal(
            "invalid_request_error",
            f"It asks for {len(generates) * body.answers:,} answers, of {MOST_ANSWERS} at most: "
            "send several requests.",
            param=body.answers_param if body.answers > 1 else prompt_param,
        )
    caller = caller_of(http_request)
    model = fleet.roster.find(body.model, caller).model
    salt = caller.cache_salt(body.cache_salt or "", shared=fleet.settings.prompt_cache.shared)
    # The prompt is sent for each of its answers.
    share = share_of(http_request.scope)
    share.take(share.size_bytes * (body.answers - 1))
    record = record_of(http_request)
    record.model = model.id
    priority = priority_of(http_request, body.priority, model)
    requests = [
        Request(
            another_answer(generate, unique(record.id), index),
            fleet.now(),
            deadline_s(http_request, fleet.settings.queue.deadline_s),
            request_id=record.id,
            key=record.key,
            repeats_prompt=index > 0,
            priority=priority,
            keep_alive_s=keep_alive_of(http_request, body.keep_alive, model),
            params=_params(body, prompt_param),
        )
        for generate in (msgspec.structs.replace(each, cache_salt=salt) for each in generates)
        for index in range(body.answers)
    ]
    record.timings = [each.timing for each in requests]
    take_places(http_request, requests)
    return requests


def another_answer(generate: Generate, request_id: str, index: int) -> Generate:
    """Of several answers each has random numbers of its own; the first has what it would alone."""
    seed = (generate.sampling.seed + index) & (1 << 64) - 1
    sampling = msgspec.structs.replace(generate.sampling, seed=seed)
    return msgspec.structs.replace(generate, request_id=request_id, sampling=sampling)


def _params(body: GenerationBody, prompt_param: str) -> dict[RequestField, str]:
    """What this client calls the fields of `Generate`."""
    names: dict[RequestField, str] = {each: each for each in _SAME_NAMES}
    names |= {"prompt": prompt_param, "prompt_logprobs": "echo"}
    names["template_arguments"] = "chat_template_kwargs"
    return names | {"constraint": body.constraint_param}


def priority_of(request: HttpRequest, own: int | None, model: Model) -> int | None:
    """X-Priority, or that of the body, as far as the caller may have it; None is the model's own.

    Raises:
        Refusal: the header can't be read.
    """
    priority = caller_of(request).priority_of(_priority(request, own), model.settings.priority)
    if priority is not None and from_page(request.headers):
        # A page may wait longer than others, but not push itself before them.
        return min(priority, model.settings.priority)
    return priority


def _priority(request: HttpRequest, own: int | None) -> int | None:
    text = request.headers.get("x-priority")
    if text is None:
        return own
    if re.fullmatch(r"[+-]?[0-9]{1,4}", text) is None or abs(int(text)) > _MOST_PRIORITY:
        raise Refusal(
            "invalid_request_error",
            f"X-Priority is {text[:40]!r}: send a whole number from -{_MOST_PRIORITY} to "
            f"{_MOST_PRIORITY}.",
            param="X-Priority",
        )
    return int(text)


def keep_alive_of(request: HttpRequest, value: float | str | None, model: Model) -> float | None:
    """Seconds, as far as the caller may have them; None is the model's own.

    Raises:
        Refusal: it can't be read.
    """
    return caller_of(request).keep_alive_of(keep_alive_s(value), model.settings.ttl_s)


def keep_alive_s(value: float | str | None) -> float | None:
    """Seconds, if that was given.

    Raises:
        Refusal: it can't be read.
    """
    if value is None:
        return None
    try:
        return parse_keep_alive(value)
    except ValueError as error:
        raise Refusal("invalid_request_error", f"{error}.", param="keep_alive") from error


def generate_message(body: GenerationBody, prompt: Prompt, max_tokens: int | None) -> Generate:
    """What the worker is told, but for an id. A seed is always assigned: a request stays the same
    request.
    """
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    seed = secrets.randbits(64) if body.seed is None else body.seed & (1 << 64) - 1
    return Generate(
        request_id="",
        prompt=prompt,
        sampling=Sampling(
            seed=seed,
            temperature=body.temperature,
            top_p=body.top_p,
            # -1 is what vLLM's clients send for "no limit".
            top_k=0 if body.top_k == -1 else body.top_k,
            min_p=body.min_p,
            repetition_penalty=(
                None if body.repetition_penalty in _NO_PENALTY else body.repetition_penalty
            ),
            repetition_context_tokens=body.repetition_context_size or _REPETITION_CONTEXT,
            frequency_penalty=body.frequency_penalty or 0.0,
            presence_penalty=body.presence_penalty or 0.0,
            logit_bias=tuple((body.logit_bias or {}).items()),
            allowed_token_ids=tuple(body.allowed_token_ids or ()),
            bad_words=tuple(body.bad_words or ()),
            min_tokens=body.min_tokens or 0,
            stop_token_ids=tuple(body.stop_token_ids or ()),
            xtc_probability=body.xtc_probability or 0.0,
            xtc_threshold=_XTC_THRESHOLD if body.xtc_threshold is None else body.xtc_threshold,
        ),
        max_tokens=None if max_tokens is None else min(max_tokens, LARGEST_COUNT),
        stop=stop,
        include_stop=bool(body.include_stop_str_in_output),
        ignore_eos=bool(body.ignore_eos),
    )


def check_mailbox(request: HttpRequest) -> bool:
    """Whether the answer is to be kept for a client that leaves.

    Raises:
        Refusal: the header says something else, or this path keeps no answers.
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
    raise Refusal("invalid_request_error", f"X-Mailbox: {reason}.", param="X-Mailbox")


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
