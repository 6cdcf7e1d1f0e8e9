"""The messages of a conversation, from a body to what a worker renders."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from gateway.http.bodies import ABSENT, BodyPart, given
from gateway.http.errors import invalid
from gateway.http.generation import StructuredBody
from gateway.http.parameters import check_supported, refusing
from gateway.http.pictures import UNSEEN, Source, newest
from protocol.requests import CalledTool, ChatMessage, Picture, ToolChoice, Tools

_PICTURES: Final = ("image_url", "input_image")


class ImageUrl(BodyPart):
    """Its detail is for OpenAI's models."""

    url: str


@refusing("part")
class ContentPart(BodyPart):
    """Pictures are of type image_url; of type input_image, as in OpenAI's Responses, the address
    stands alone.
    """

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: ImageUrl | str | None = None

    @property
    def picture(self) -> str | None:
        """The address of one."""
        if self.type not in _PICTURES:
            return None
        return self.image_url.url if isinstance(self.image_url, ImageUrl) else self.image_url


class ChatCalledFunction(BodyPart):
    name: str
    arguments: str | None = None


class ChatToolCallBody(BodyPart):
    function: ChatCalledFunction
    id: str | None = None
    type: Literal["function"] = "function"


@refusing("message")
class ChatMessageBody(BodyPart):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ChatToolCallBody] | None = None
    tool_call_id: str | None = None


def left_out(bodies: list[ChatMessageBody]) -> set[str]:
    """What a model that can't look at pictures isn't given."""
    parts = chain.from_iterable(each.content for each in bodies if isinstance(each.content, list))
    return {"image"} if any(each.type in _PICTURES for each in parts) else set()


def picture_sources(bodies: list[ChatMessageBody], *, looks: bool = True) -> list[Source]:
    """Where the pictures of all messages are, in order; those of the newest, if nobody `looks`.

    Raises:
        Refusal: one is where none can be.
    """
    found = []
    new = newest([each.role for each in bodies])
    for index, body in enumerate(bodies):
        for place, part in enumerate(body.content if isinstance(body.content, list) else ()):
            if part.type not in _PICTURES:
                continue
            name = f"messages[{index}].content[{place}].image_url"
            if part.picture is None:
                raise invalid(f"{name} is missing: send an object with a url.", name)
            if body.role != "user":
                raise invalid(f"{name}: only a user's message may have pictures.", name)
            if looks or index in new:
                found.append(Source(part.picture, name))
    return found


def chat_messages(
    bodies: list[ChatMessageBody], pictures: Sequence[bytes] = (), *, looks: bool = True
) -> tuple[ChatMessage, ...]:
    """`pictures` are those of `picture_sources`. A model that doesn't look at any is told of them.

    Raises:
        Refusal: one of them can't be understood.
    """
    left = iter(pictures) if looks else None
    return tuple(_message(index, each, left) for index, each in enumerate(bodies))


def _message(index: int, body: ChatMessageBody, pictures: Iterator[bytes] | None) -> ChatMessage:
    path = f"messages[{index}]."
    check_supported(body, "message", path)
    if body.content is None and body.role != "assistant":
        raise invalid(
            f"{path}content is missing or null: only an assistant's message may have none. Send a "
            "text, which may be empty.",
            f"{path}content",
        )
    if body.tool_calls and body.role != "assistant":
        raise invalid(
            f"{path}tool_calls: only an assistant's message has calls.", f"{path}tool_calls"
        )
    content, shown = _content(path, body, pictures)
    return ChatMessage(
        # Templates know the role by its older name.
        "system" if body.role == "developer" else body.role,
        content,
        reasoning=body.reasoning_content or body.reasoning or None,
        tool_calls=tuple(
            CalledTool(each.id or "", each.function.name, _arguments(each.function))
            for each in body.tool_calls or ()
        ),
        tool_call_id=body.tool_call_id,
        name=body.name,
        pictures=shown,
    )


def _arguments(body: ChatCalledFunction) -> str:
    return (body.arguments or "").strip() or "{}"


def _content(
    path: str, body: ChatMessageBody, pictures: Iterator[bytes] | None
) -> tuple[str, tuple[Picture, ...]]:
    """Texts, and the pictures between them; a refusal is what the assistant said instead of one."""
    if not isinstance(body.content, list):
        return body.content or body.refusal or "", ()
    texts: list[str] = []
    shown = []
    length = 0
    for place, part in enumerate(body.content):
        check_supported(part, "part", f"{path}content[{place}].")
        match part.type, part.text, part.refusal:
            case "text", str() as text, _:
                texts.append(text)
            case "refusal", _, str() as text:
                texts.append(text)
            case "text", None, _:
                raise invalid(
                    f"{path}content[{place}].text is missing: send a text, which may be empty.",
                    f"{path}content[{place}].text",
                )
            case (("image_url" | "input_image"), _, _) if pictures is not None:
                shown.append(Picture(next(pictures), length, f"{path}content[{place}].image_url"))
                continue
            case (("image_url" | "input_image"), _, _):
                text = f"\n{UNSEEN}\n"
                texts.append(text)
            case _:
                raise invalid(
                    f"A content part of type {part.type!r}: only text and image_url are supported.",
                    f"{path}content[{place}]",
                )
        length += len(text)
    return "".join(texts), tuple(shown)


_MOST_BYTES: Final = 1 << 16

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

Verbosity = Literal["low", "medium", "high"]


class TemplateBody(StructuredBody, kw_only=True):
    reasoning_effort: Effort | None = None
    verbosity: Verbosity | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: Raw = ABSENT


def template_arguments(body: TemplateBody, defaults: Mapping[str, Any]) -> str:
    """A JSON object as text; empty if there is nothing to tell. `defaults` are the model's.

    Templates have no common word for effort: gpt-oss knows its degrees, most others know thinking
    to be on or off.

    Raises:
        Refusal: they are no object.
    """
    arguments = dict(defaults)
    if body.reasoning_effort is not None:
        arguments["reasoning_effort"] = body.reasoning_effort
        if body.reasoning_effort == "none":
            arguments["enable_thinking"] = False
    if body.verbosity is not None:
        arguments["verbosity"] = body.verbosity
    if body.enable_thinking is not None:
        arguments["enable_thinking"] = body.enable_thinking
    if given(body.chat_template_kwargs):
        arguments |= _object(body.chat_template_kwargs)
    return msgspec.json.encode(arguments).decode() if arguments else ""


def thinks(arguments: str) -> bool:
    """Whether the model may think, by what its template is told."""
    told = msgspec.json.decode(arguments) if arguments else {}
    return told.get("enable_thinking") is not False and told.get("thinking") is not False


def _object(raw: Raw) -> dict[str, Any]:
    if len(raw) <= _MOST_BYTES and bytes(raw).lstrip().startswith(b"{"):
        try:
            return msgspec.json.decode(raw, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError):
            # Raw text may be broken beneath its beginning.
            pass
    raise invalid(
        f"chat_template_kwargs: send an object of {_MOST_BYTES >> 10} KiB at most.",
        "chat_template_kwargs",
    )


# OpenAI's rule, with room for names that MCP servers give.
_NAME: Final = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
# Of one request. OpenAI has 128; clients of many MCP servers send hundreds.
_MOST_FUNCTIONS: Final = 1024
# Of all schemas together: what a prompt could still hold, and is decoded within milliseconds.
_MOST_SCHEMA_BYTES: Final = 1 << 20

Schema = Annotated[Raw, Meta(extra_json_schema={"type": ["object", "null"]})]


class FunctionBody(BodyPart):
    """`parameters` is a JSON schema; it stays as it was written."""

    name: str
    description: str | None = None
    parameters: Schema = ABSENT
    strict: bool | None = None


class ToolBody(BodyPart):
    function: FunctionBody
    type: Literal["function"]


class Written(Struct, omit_defaults=True):
    """A function as templates see it: without what wasn't given."""

    name: str
    description: str | None = None
    parameters: Raw | None = None
    strict: bool | None = None


class NamedFunction(Struct):
    name: str


class AllowedTool(Struct):
    function: NamedFunction
    type: Literal["function"]


class AllowedTools(Struct):
    mode: Literal["auto", "required"]
    tools: list[AllowedTool]


class ChosenTool(Struct):
    """One function, or a choice among some."""

    type: Literal["function", "allowed_tools"]
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None


ToolChoiceBody = ToolChoice | ChosenTool


def tools_of(
    bodies: Sequence[ToolBody] | None,
    choice: ToolChoiceBody | None,
    *,
    parallel: bool,
    mentioned: Collection[str] = (),
) -> Tools | None:
    """None: there are none. Of those that were `mentioned` the conversation itself tells.

    Raises:
        Refusal: a name can't be one, or a choice is of what isn't there.
    """
    if not bodies:
        if choice in (None, "none", "auto"):
            return None
        raise invalid("tool_choice: there are no tools to choose from: send tools.", "tool_choice")
    _check_amount(bodies)
    names = [_name(index, each) for index, each in enumerate(bodies)]
    for index, each in enumerate(bodies):
        _check_schema(f"tools[{index}].function.parameters", each.function.parameters)
    if len(set(names)) < len(names):
        twice = next(each for each in names if names.count(each) > 1)
        raise invalid(f"tools: two functions are named {twice!r}.", "tools")
    mode, name, allowed = _choice(choice, names)
    offered = [each for each in bodies if each.function.name in allowed]
    return Tools(
        definitions=_definitions(e for e in offered if e.function.name not in mentioned),
        mentioned=_definitions(e for e in offered if e.function.name in mentioned),
        choice=mode,
        name=name,
        parallel=parallel,
    )


def _definitions(bodies: Iterable[ToolBody]) -> str:
    found = [{"function": written(each.function), "type": each.type} for each in bodies]
    return msgspec.json.encode(found).decode()


def _check_amount(bodies: Sequence[ToolBody]) -> None:
    if len(bodies) > _MOST_FUNCTIONS:
        raise invalid(
            f"tools has {len(bodies):,} functions, of {_MOST_FUNCTIONS:,} at most.", "tools"
        )
    schema_bytes = sum(len(bytes(each.function.parameters)) for each in bodies)
    if schema_bytes > _MOST_SCHEMA_BYTES:
        raise invalid(
            f"tools: the parameters of all functions take {schema_bytes:,} bytes, of "
            f"{_MOST_SCHEMA_BYTES:,} at most.",
            "tools",
        )


def written(body: FunctionBody) -> Written:
    """As a model is told of it."""
    parameters = body.parameters if given(body.parameters) else None
    return Written(body.name, body.description, parameters, body.strict)


def _name(index: int, body: ToolBody) -> str:
    name = body.function.name
    if _NAME.fullmatch(name) is None:
        raise invalid(
            f"tools[{index}].function.name is {name[:100]!r}: use 1 to 128 letters, digits, or any "
            "of _-.:/ .",
            f"tools[{index}].function.name",
        )
    return name


def _check_schema(param: str, schema: Raw) -> None:
    if given(schema) and not bytes(schema).lstrip().startswith(b"{"):
        raise invalid(f"{param}: a JSON schema of an object is expected.", param)
    try:
        msgspec.json.decode(schema)
    except (msgspec.DecodeError, RecursionError) as error:
        # Raw text may be broken beneath its beginning.
        raise invalid(f"{param} can't be read: {error}.", param) from error


def _choice(
    choice: ToolChoiceBody | None, names: list[str]
) -> tuple[ToolChoice, str | None, set[str]]:
    """The mode, the function that must be called if it is one, and those that may be."""
    everything = set(names)
    match choice:
        case None:
            return "auto", None, everything
        case "auto" | "none" | "required":
            return choice, None, everything
        case ChosenTool("function", NamedFunction(name)):
            _check_known([name], everything)
            return "required", name, everything
        case ChosenTool("allowed_tools", _, AllowedTools(mode, tools)):
            allowed = [each.function.name for each in tools]
            _check_known(allowed, everything)
            return mode, None, set(allowed)
    raise invalid(
        "tool_choice: with type function send function, with allowed_tools send allowed_tools.",
        "tool_choice",
    )


def _check_known(names: list[str], known: set[str]) -> None:
    unknown = next((each for each in names if each not in known), None)
    if unknown is not None or not names:
        raise invalid(f"tool_choice: there is no function {unknown!r} in tools.", "tool_choice")
