"""The types of Ollama's bodies. Turns these into the messages that a worker renders."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, Raw, Struct
from starlette.requests import Request as HttpRequest

from gateway.config.model import Model
from gateway.http.generation.conversation import ConversationBuilder, check_number
from gateway.http.generation.generation_body import (
    GenerationBody,
    Penalty,
    Probability,
    Stop,
    encode_arguments,
    with_defaults,
)
from gateway.http.generation.model_call import ModelCall
from gateway.http.generation.pictures import Source
from gateway.http.generation.supported_parameters import check_supported, refusing
from gateway.http.generation.tools import FunctionBody
from gateway.http.wire.bodies import ABSENT, BodyPart, given
from gateway.http.wire.errors import invalid
from gateway.models.roster import LATEST
from protocol.requests import CalledTool, Constraint

_LARGEST: Final = (1 << 31) - 1
_MOST_SEED: Final = (1 << 63) - 1

# The type is float since clients also write whole numbers as 40.0.
Count = Annotated[float, Meta(ge=-2, le=_LARGEST, multiple_of=1)]


@refusing("options")
class OllamaOptions(Struct, kw_only=True):
    """The options that are supported. `parameters` lists all."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Probability | None = None
    top_k: Count | None = None
    min_p: Probability | None = None
    seed: Annotated[int, Meta(ge=-_MOST_SEED, le=_MOST_SEED)] | None = None
    num_predict: Annotated[float, Meta(ge=-2, multiple_of=1)] | None = None
    stop: Stop = None
    repeat_penalty: Annotated[float, Meta(ge=0, le=10)] | None = None
    repeat_last_n: Count | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    # An addition of this gateway.
    repetition_stop: bool | None = None


def generation(
    options: OllamaOptions | None, model: Model, keep_alive: float | str | None
) -> GenerationBody:
    """The options of Ollama as parameters of the other APIs.

    Raises:
        Refusal: an option is not supported.
    """
    asked = options or OllamaOptions()
    check_supported(asked, "options", "options.")
    # 0 switches the repeat penalty off. With -1 the penalty covers the whole context.
    looks_back = None if asked.repeat_last_n is None else int(asked.repeat_last_n)
    if looks_back is not None and looks_back < 0:
        looks_back = model.settings.context_tokens
    parameters = GenerationBody(
        model=model.id,
        # Ollama reads 0 and negative numbers as no limit.
        max_tokens=max(0, int(asked.num_predict or 0)) or None,
        temperature=asked.temperature,
        # In Ollama 0 switches top_p off.
        top_p=1.0 if asked.top_p == 0 else asked.top_p,
        top_k=None if asked.top_k is None else max(0, int(asked.top_k)),
        min_p=asked.min_p,
        repetition_penalty=1.0 if looks_back == 0 else asked.repeat_penalty,
        repetition_context_size=looks_back or None,
        stop=asked.stop,
        seed=asked.seed,
        frequency_penalty=asked.frequency_penalty,
        presence_penalty=asked.presence_penalty,
        repetition_stop=asked.repetition_stop,
        keep_alive=keep_alive,
    )
    return with_defaults(parameters, model.settings)


Think: TypeAlias = bool | Literal["low", "medium", "high", "max"]
Pictures: TypeAlias = list[str]
Format = Annotated[
    Raw,
    Meta(
        extra_json_schema={
            "anyOf": [{"enum": [None, "", "json"]}, {"type": "object"}],
            "description": "json, or the schema that the answer must match.",
        }
    ),
]
ArgumentsObject = Annotated[Raw, Meta(extra_json_schema={"type": "object"})]


class OllamaCalledFunction(BodyPart):
    name: str
    arguments: ArgumentsObject = ABSENT


class OllamaToolCallBody(BodyPart):
    function: OllamaCalledFunction
    id: str | None = None


class OllamaMessageBody(BodyPart):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: Pictures | None = None
    tool_calls: list[OllamaToolCallBody] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaToolBody(BodyPart):
    function: FunctionBody
    type: Literal["function"] = "function"


class AnswerBody(Struct, kw_only=True):
    """The fields that chat and generate share."""

    model: str
    stream: bool | None = None
    options: OllamaOptions | None = None
    format: Format = ABSENT
    think: Think | None = None
    keep_alive: float | str | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None


class OllamaChatBody(AnswerBody, kw_only=True):
    """Without messages the model is loaded, or unloaded with a `keep_alive` of 0."""

    messages: list[OllamaMessageBody] | None = None
    tools: list[OllamaToolBody] | None = None


@refusing("generate")
class GenerateBody(AnswerBody, kw_only=True):
    """Without a prompt the model is loaded, or unloaded with a `keep_alive` of 0."""

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    raw: bool | None = None
    images: Pictures | None = None


def constraint_of(body: AnswerBody) -> Constraint | None:
    """Raises: Refusal: the format is neither "json" nor an object."""
    text = bytes(body.format).strip()
    if not given(body.format) or text == b'""':
        return None
    if text == b'"json"':
        return Constraint("json_object")
    if not text.startswith(b"{"):
        raise invalid(
            'format: send "json", or the JSON schema that the answer must match.', "format"
        )
    return Constraint("json_schema", text.decode())


def arguments_of(think: Think | None, defaults: Mapping[str, Any]) -> str:
    """The arguments for the chat template. `defaults` are the model's configured arguments."""
    thinking = None if think is None else think is not False
    return encode_arguments(defaults, thinking, think if isinstance(think, str) else None)


def sources(images: Sequence[str] | None, path: str) -> Iterator[Source]:
    """The addresses of the pictures in a message or a prompt. Clients send pictures in base64."""
    for place, image in enumerate(images or ()):
        url = image if image.startswith("data:") else f"data:;base64,{image}"
        yield Source(url, f"{path}images[{place}]")


def converse(bodies: Sequence[OllamaMessageBody], conversation: ConversationBuilder) -> None:
    """Add the messages to the conversation. Pictures stand before the text of their message.

    Raises:
        Refusal: a picture is not in a message of a user, the arguments of a call are no JSON
            object, or there are too many messages.
    """
    check_number(len(bodies))
    calls = _OllamaCallIds()
    for index, body in enumerate(bodies):
        conversation.start_turn(body.role)
        text = conversation.text(body.role, separator="\n")
        for source in sources(body.images, f"messages[{index}]."):
            text.show(source)
        text.add(body.content or "")
        is_result = body.role == "tool"
        conversation.add(
            body.role,
            text,
            reasoning=body.thinking or None,
            tool_calls=tuple(calls.calls(index, body)),
            tool_call_id=calls.answered(body) if is_result else None,
            name=body.tool_name if is_result else None,
        )


class _OllamaCallIds:
    """Gives ids to calls and tool results, since most of Ollama's clients send no ids. A result
    without an id belongs to the first call of its tool that has no result yet.
    """

    def __init__(self) -> None:
        self._number = 0
        # The calls without a result, in order: for the name of a tool the calls of this tool, and
        # for None the calls of all tools. The id of a call maps to the name of its tool.
        self._open: dict[str | None, OrderedDict[str, str]] = defaultdict(OrderedDict)

    def calls(self, index: int, body: OllamaMessageBody) -> Iterator[CalledTool]:
        for place, call in enumerate(body.tool_calls or ()):
            self._number += 1
            function, call_id = call.function, call.id or f"call_{self._number}"
            for tool in (None, function.name):
                self._open[tool][call_id] = function.name
            arguments = bytes(function.arguments).strip() if given(function.arguments) else b"{}"
            if not arguments.startswith(b"{") or not _is_json(arguments):
                param = f"messages[{index}].tool_calls[{place}].function.arguments"
                raise invalid(f"{param}: send a JSON object.", param)
            yield CalledTool(call_id, function.name, arguments.decode())

    def answered(self, body: OllamaMessageBody) -> str | None:
        """The id of the call whose result the message has. None: there is no such call."""
        call_id = body.tool_call_id
        if call_id is None:
            call_id = next(iter(self._open[body.tool_name]), None)
        if call_id is not None and (name := self._open[None].pop(call_id, None)) is not None:
            self._open[name].pop(call_id, None)
        return call_id


def _is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def call_of(request: HttpRequest, name: str | None) -> ModelCall:
    """The call to the model whose id or alias is `name`.

    Raises:
        Refusal: there is no such model, or the body names no model.
    """
    if not name:
        raise invalid("model is missing: name one of /api/tags.", "model")
    return ModelCall(request, name)


def tagged(model_id: str) -> str:
    """The id with a tag. Clients that compare names add `:latest` to a name without a tag."""
    return model_id if ":" in model_id.rpartition("/")[2] else model_id + LATEST
