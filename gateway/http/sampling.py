"""The generation parameters that chat and completions share."""

from __future__ import annotations

import secrets
from typing import Annotated, Final

from msgspec import Meta, Struct

from gateway.http.parameters import Place
from gateway.http.supported import check_supported, refusing
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
MOST_PRIORITY: Final = 1000
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
Priority = Annotated[int, Meta(ge=-MOST_PRIORITY, le=MOST_PRIORITY)]
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
