"""The generation parameters of the APIs, from a body to the message for a worker."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from gateway.config.model_settings import ModelSettings
from gateway.http.generation.supported_parameters import Place, check_supported, refusing
from gateway.http.wire.bodies import ABSENT, NOT_GIVEN, given
from gateway.http.wire.errors import invalid
from protocol.message_base import LARGEST_TOKEN_ID
from protocol.requests import Constraint, Generate, Prompt, Sampling

_MOST_STOPS: Final = 16
# Before the answer begins, an automaton is built from the stop sequences, and grows with them.
_LONGEST_STOP: Final = 1000
_LONGEST_SALT: Final = 256
# OpenAI's bound.
MOST_ANSWERS: Final = 128
MOST_PRIORITY: Final = 1000
_LARGEST_PENALTY: Final = 10.0
# mlx-lm's default.
_XTC_THRESHOLD: Final = 0.1
# mlx_lm.server's default.
_REPETITION_CONTEXT: Final = 20
# 0 means no penalty for mlx_lm.server's clients, 1 for all others.
_NO_PENALTY: Final = (None, 0, 1)
LARGEST_COUNT: Final = (1 << 31) - 1
_MOST_BIASES: Final = 1024
_MOST_STOP_TOKENS: Final = 256
_MOST_BAD_WORDS: Final = 256
# More tokens than any vocabulary has.
_MOST_ALLOWED: Final = 1 << 20

Probability = Annotated[float, Meta(ge=0, le=1)]
Priority = Annotated[int, Meta(ge=-MOST_PRIORITY, le=MOST_PRIORITY)]
_NO_LIMIT: Final = -1
# There is no upper bound: a value beyond the context is cut to the context.
Tokens = Annotated[int, Meta(ge=_NO_LIMIT)]
# An empty text stops nothing.
StopSequence = Annotated[str, Meta(max_length=_LONGEST_STOP)]
BadWord = Annotated[str, Meta(min_length=1, max_length=_LONGEST_STOP)]
# vLLM advises 43 characters.
Salt = Annotated[str, Meta(max_length=_LONGEST_SALT)]
TokenId = Annotated[int, Meta(ge=0, le=LARGEST_TOKEN_ID)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
Stop = StopSequence | Annotated[list[StopSequence], Meta(max_length=_MOST_STOPS)] | None


@refusing("stream_options")
class StreamOptions(Struct):
    include_usage: bool | None = None


class SamplingBody(Struct, kw_only=True):
    """The parameters that chat, completions and responses share."""

    model: str
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    # 0 leaves the likeliest token.
    top_p: Probability | None = None
    top_k: Annotated[int, Meta(ge=-1, le=LARGEST_COUNT)] | None = None
    min_p: Probability | None = None
    repetition_penalty: Annotated[float, Meta(ge=0, le=_LARGEST_PENALTY)] | None = None
    repetition_context_size: Annotated[int, Meta(ge=1, le=LARGEST_COUNT)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: Annotated[dict[TokenId, Bias], Meta(max_length=_MOST_BIASES)] | None = None
    stop: Stop = None
    seed: int | None = None
    ignore_eos: bool | None = None
    repetition_stop: bool | None = None
    priority: Priority | None = None
    keep_alive: float | str | None = None
    cache_salt: Salt | None = None


class GenerationBody(SamplingBody, kw_only=True):
    """The parameters of both chat and completions that are supported. `parameters` lists all."""

    stream_options: StreamOptions | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    n: Annotated[int, Meta(ge=1, le=MOST_ANSWERS)] | None = None
    xtc_probability: Probability | None = None
    xtc_threshold: Annotated[float, Meta(ge=0, le=0.5)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=LARGEST_COUNT)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=_MOST_STOP_TOKENS)] | None = None
    include_stop_str_in_output: bool | None = None
    bad_words: Annotated[list[BadWord], Meta(max_length=_MOST_BAD_WORDS)] | None = None
    allowed_token_ids: Annotated[list[TokenId], Meta(max_length=_MOST_ALLOWED)] | None = None

    @property
    def answers(self) -> int:
        """The number of answers for each prompt."""
        return self.n or 1

    @property
    def answers_param(self) -> str:
        return "n"

    @property
    def constraint_param(self) -> str:
        """The field with the constraint on the answer."""
        return "response_format"

    @property
    def asked_limit(self) -> int | None:
        """The most tokens of the answer, as the body has it."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens
        return self.max_tokens

    @property
    def limit(self) -> int | None:
        """The most tokens of the answer. None: there is no limit."""
        return limit_of(self.asked_limit)

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


Body = TypeVar("Body", bound=SamplingBody)


def with_defaults(body: Body, settings: ModelSettings) -> Body:
    """The body, with the model's defaults for the parameters that it leaves out."""
    given = settings.defaults.given.items()
    missing = {name: value for name, value in given if getattr(body, name) is None}
    return msgspec.structs.replace(body, **missing) if missing else body


def limit_of(tokens: int | None) -> int | None:
    return None if tokens == _NO_LIMIT else tokens


def check_limit(tokens: int | None, param: str) -> None:
    """Raises: Refusal: the answer of a chat may have no token."""
    if tokens == 0:
        raise invalid(f"{param}: it is 0: send at least 1, or -1 for no limit.", param)


def check_generation(body: GenerationBody, place: Place) -> None:
    """Raises: Refusal: the body has parameters that are not supported, or that contradict each
    other.
    """
    check_supported(body, place)
    if place == "chat":
        check_limit(body.max_tokens, "max_tokens")
        check_limit(body.max_completion_tokens, "max_completion_tokens")
    if body.limit is not None and (body.min_tokens or 0) > body.limit:
        raise invalid(
            f"min_tokens: it is {body.min_tokens}, and the answer may have {body.limit} at most.",
            "min_tokens",
        )
    if body.stream_options is not None:
        check_supported(body.stream_options, "stream_options", "stream_options.")


def generate_message(body: GenerationBody, prompt: Prompt, max_tokens: int | None) -> Generate:
    """The message for a worker, without an id. The message always has a seed, so that another
    worker would give the same answer.
    """
    stops = (body.stop,) if isinstance(body.stop, str) else body.stop or ()
    seed = secrets.randbits(64) if body.seed is None else body.seed & (1 << 64) - 1
    return Generate(
        request_id="",
        prompt=prompt,
        sampling=Sampling(
            seed=seed,
            temperature=body.temperature,
            top_p=body.top_p,
            # vLLM's clients send -1 for "no limit". A worker reads a top_p of 0 as no limit.
            top_k=1 if body.top_p == 0 else 0 if body.top_k == -1 else body.top_k,
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
        stop=tuple(filter(None, stops)),
        include_stop=bool(body.include_stop_str_in_output),
        ignore_eos=bool(body.ignore_eos),
        repetition_stop=bool(body.repetition_stop),
    )


_MOST_CHARACTERS: Final = 1 << 18

_NAMES: Final = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)

Pattern = Annotated[str, Meta(min_length=1)]
Choices = Annotated[list[str], Meta(min_length=1)]


class JsonSchemaBody(Struct, rename={"schema_": "schema"}):
    name: str | None = None
    schema_: Raw = ABSENT
    strict: bool | None = None
    description: str | None = None


class ResponseFormatBody(Struct, rename={"schema_": "schema"}):
    """As in llama.cpp, `json_object` may have a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaBody | None = None
    schema_: Raw = ABSENT


class StructuredOutputs(Struct):
    """vLLM's newer names."""

    json: Raw = ABSENT
    regex: Pattern | None = None
    choice: Choices | None = None
    grammar: Pattern | None = None
    json_object: bool | None = None


class StructuredBody(GenerationBody, kw_only=True):
    """The fields that may have a constraint on the answer: OpenAI's, and vLLM's older and newer
    names.
    """

    response_format: ResponseFormatBody | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Raw = ABSENT
    guided_regex: Pattern | None = None
    guided_choice: Choices | None = None
    guided_grammar: Pattern | None = None

    @property
    def constraint_param(self) -> str:
        names = [name for name in _NAMES if getattr(self, name) not in (None, NOT_GIVEN)]
        return names[-1] if names else super().constraint_param


def constraint_of(body: StructuredBody) -> Constraint | None:
    """Raises: Refusal: there are several constraints, one is too large, or a schema is no JSON
    object.
    """
    constraints = {
        "response_format": _of_format(body.response_format),
        "structured_outputs": _of_outputs(body.structured_outputs),
        "guided_json": _schema(body.guided_json, "guided_json"),
        "guided_regex": body.guided_regex and Constraint("regex", body.guided_regex),
        "guided_choice": body.guided_choice and _choice(body.guided_choice),
        "guided_grammar": body.guided_grammar and Constraint("grammar", body.guided_grammar),
    }
    asked = [(name, constraint) for name, constraint in constraints.items() if constraint]
    if len(asked) > 1:
        raise invalid(f"{asked[0][0]} and {asked[1][0]}: send one of them.", asked[1][0])
    for name, constraint in asked:
        if len(constraint.source) > _MOST_CHARACTERS:
            raise invalid(
                f"{name} has {len(constraint.source):,} characters, of {_MOST_CHARACTERS:,} "
                "at most.",
                name,
            )
        return constraint
    return None


def _of_format(body: ResponseFormatBody | None) -> Constraint | None:
    match body:
        case ResponseFormatBody("json_object", schema_=schema):
            return _object(schema, "response_format.schema")
        case ResponseFormatBody("json_schema", JsonSchemaBody(schema_=schema)) if given(schema):
            return _schema(schema, "response_format.json_schema.schema")
        case ResponseFormatBody("json_schema"):
            raise invalid(
                "response_format.json_schema.schema is missing: send the schema.",
                "response_format.json_schema.schema",
            )
        case _:
            return None


def _object(raw: Raw, name: str) -> Constraint:
    """The constraint of `json_object`. A schema that has no type gets the type object."""
    schema = _schema(raw, name)
    if schema is None:
        return Constraint("json_object")
    try:
        fields = msgspec.json.decode(schema.source, type=dict[str, Raw])
    except msgspec.DecodeError as error:
        raise invalid(f"{name} can't be read: {error}.", name) from error
    fields.setdefault("type", Raw(b'"object"'))
    return Constraint("json_schema", msgspec.json.encode(fields).decode())


def _of_outputs(body: StructuredOutputs | None) -> Constraint | None:
    if body is None:
        return None
    constraints = [
        _schema(body.json, "structured_outputs.json"),
        Constraint("regex", body.regex) if body.regex else None,
        _choice(body.choice) if body.choice else None,
        Constraint("grammar", body.grammar) if body.grammar else None,
        Constraint("json_object") if body.json_object else None,
    ]
    asked = [constraint for constraint in constraints if constraint is not None]
    if len(asked) != 1:
        raise invalid(
            "structured_outputs: send one of json, regex, choice, grammar and json_object.",
            "structured_outputs",
        )
    return asked[0]


def _choice(texts: list[str]) -> Constraint:
    return Constraint("choice", msgspec.json.encode(texts).decode())


def _schema(raw: Raw, name: str) -> Constraint | None:
    """The constraint of a JSON schema. As in vLLM, the schema may be a text."""
    if not given(raw):
        return None
    text = bytes(raw).decode()
    if text.lstrip().startswith('"'):
        text = msgspec.json.decode(raw, type=str)
        try:
            msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise invalid(f"{name}: the text is not JSON: {error}.", name) from error
    if not text.lstrip().startswith("{"):
        raise invalid(f"{name}: send a JSON schema, which is an object.", name)
    return Constraint("json_schema", text)


_MOST_ARGUMENT_BYTES: Final = 1 << 16

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Verbosity = Literal["low", "medium", "high"]


class TemplateBody(StructuredBody, kw_only=True):
    reasoning_effort: Effort | None = None
    verbosity: Verbosity | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: Raw = ABSENT

    def template_arguments(self, defaults: Mapping[str, Any]) -> str:
        """The arguments for the chat template: `defaults`, replaced and completed by the body's.

        Raises:
            Refusal: chat_template_kwargs is no object, or too large.
        """
        arguments = dict(defaults)
        if self.verbosity is not None:
            arguments["verbosity"] = self.verbosity
        more = {}
        if given(self.chat_template_kwargs):
            more = _arguments_object(self.chat_template_kwargs)
        thinking = False if self.reasoning_effort == "none" else None
        if self.enable_thinking is not None:
            thinking = self.enable_thinking
        return encode_arguments(arguments, thinking, self.reasoning_effort, more)


def encode_arguments(
    defaults: Mapping[str, Any],
    thinking: bool | None,
    effort: str | None,
    more: Mapping[str, Any] = {},
) -> str:
    """The arguments for the chat template, as a JSON object; empty if there are none. `defaults`
    are the model's arguments. `more` replace all other arguments of the same names. `thinking` and
    `effort` are None if the request doesn't set them.

    Templates differ: gpt-oss has degrees of effort, most others only switch thinking on or off.
    """
    arguments = dict(defaults)
    if effort is not None:
        arguments["reasoning_effort"] = effort
    if thinking is not None:
        arguments["enable_thinking"] = thinking
    arguments |= more
    return msgspec.json.encode(arguments).decode() if arguments else ""


def thinks(arguments: str) -> bool:
    """Whether the arguments of the chat template let the model think."""
    decoded = msgspec.json.decode(arguments) if arguments else {}
    return decoded.get("enable_thinking") is not False and decoded.get("thinking") is not False


def _arguments_object(raw: Raw) -> dict[str, Any]:
    if len(raw) <= _MOST_ARGUMENT_BYTES and bytes(raw).lstrip().startswith(b"{"):
        try:
            return msgspec.json.decode(raw, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError):
            # msgspec has not checked the whole text of a Raw field, so it may be no JSON.
            pass
    raise invalid(
        f"chat_template_kwargs: send an object of {_MOST_ARGUMENT_BYTES >> 10} KiB at most.",
        "chat_template_kwargs",
    )
