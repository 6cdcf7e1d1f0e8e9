"""The chat template of a model, which turns a conversation into token ids.

Agents send system messages in mid-conversation. For a template that refuses them there, they become
parts of the user's messages. If a system message were moved to the front instead, all messages
behind it would be computed anew in every turn.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import takewhile
from typing import Any, Final, TypeAlias

import msgspec
from jinja2 import Environment, TemplateError, meta

from protocol.answers import RequestField
from protocol.requests import CalledTool, ChatMessage, ChatPrompt, Picture, Tools
from worker.mlx_lm.text import renderer_of
from worker.system.errors import PromptError
from worker.transformers import template_parameters

# Arguments that transformers and mlx-lm give to templates themselves, or use for other purposes.
_RESERVED: Final = template_parameters() | {
    "messages",
    "raise_exception",
    "strftime_now",
    "return_text",
}
# Arguments that clients send to any model. A template that doesn't know them doesn't get them.
_WISHES: Final = frozenset({"enable_thinking", "reasoning_effort", "verbosity"})
# DeepSeek and Granite call enable_thinking "thinking".
_SYNONYMS: Final = {"enable_thinking": "thinking", "thinking": "enable_thinking"}
# A tag that only transformers knows, and that marks the text of an assistant.
_GENERATION: Final = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")
_PROBE: Final[list[dict[str, Any]]] = [
    {"role": "system", "content": "probed 1"},
    {"role": "user", "content": "probed 2"},
    {"role": "system", "content": "probed 3"},
    {"role": "assistant", "content": "probed 4"},
    {"role": "user", "content": "probed 5"},
    {"role": "system", "content": "probed 6"},
]
_IN_PLACE: Final = re.compile(".*".join(re.escape(each["content"]) for each in _PROBE), re.DOTALL)
_BETWEEN: Final = "\n\n"
_MISTRALS_ID: Final = re.compile(r"[A-Za-z0-9]{9}")
_LENGTH_OF_NINE: Final = re.compile(r"length\s*[!=]=\s*9")
_PROBED_ID: Final = "probe1234"
Message: TypeAlias = dict[str, Any]
RenderText: TypeAlias = Callable[[list[Message]], str]


class ChatTemplate:
    """Renders conversations. Calls may come from several threads."""

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer` is mlx-lm's wrapper."""
        self._tokenizer = tokenizer
        self._renderer, self._is_program = renderer_of(tokenizer)
        self._writers: dict[str, MessageWriter] = {}

    def tokens(
        self,
        prompt: ChatPrompt,
        tools: Tools | None = None,
        messages: Sequence[ChatMessage] | None = None,
        *,
        asking: bool = True,
    ) -> list[int]:
        """The token ids of a prompt's messages, or of `messages` in their place. With `asking` they
        end where the model's answer begins. The tools are written whatever `tools.choice` is, so
        that another choice can use the same cached prompt.

        Raises:
            PromptError: the model has no template, or the template refuses the messages.
        """
        conversation = prompt.messages if messages is None else messages
        rendered = self._apply(prompt, tools, conversation, None, asking=asking, tokenize=True)
        return list(rendered)

    def message_starts(self, token_ids: Sequence[int]) -> list[int]:
        """The places of the special token behind which a user's content begins. In most templates
        each message has this token; in the others only messages of users have it.
        """
        mark = self._message_mark
        return [] if mark is None else [at for at, each in enumerate(token_ids) if each == mark]

    @cached_property
    def _message_mark(self) -> int | None:
        """The last special token before a user's content; None: there is none."""
        prompts = [ChatPrompt((ChatMessage("user", content),)) for content in ("1", "2")]
        try:
            one, other = (self.tokens(each, asking=False) for each in prompts)
        except PromptError:
            return None
        added = set(self._tokenizer.get_added_vocab().values())
        alike = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
        return next((each for each, _ in reversed(list(alike)) if each in added), None)

    def text(
        self,
        prompt: ChatPrompt,
        tools: Tools | None,
        content: Callable[[ChatMessage], Any],
    ) -> str:
        """The text of a prompt, before it is tokenized. `content` makes the content of a message: a
        message with pictures has more than text. Raises as `tokens` does.
        """
        return str(
            self._apply(prompt, tools, prompt.messages, content, asking=True, tokenize=False)
        )

    def _apply(
        self,
        prompt: ChatPrompt,
        tools: Tools | None,
        messages: Sequence[ChatMessage],
        content: Callable[[ChatMessage], Any] | None,
        *,
        asking: bool,
        tokenize: bool,
    ) -> Any:
        if not self._tokenizer.has_chat_template:
            raise PromptError(
                "invalid_request_error",
                "This model has no chat template: use /v1/completions with a plain prompt.",
            )
        definitions = None if tools is None else _definitions(tools)
        template = self._text(definitions)
        arguments = template_arguments(
            prompt.template_arguments, None if self._is_program else template
        )
        writer = self._writer(template)
        messages = writer.placed(messages)
        written = writer.messages(messages)
        if content is not None:
            for message, each in zip(written, messages, strict=True):
                message["content"] = content(each)
        if not self._is_program:
            arguments["return_dict"] = False
        try:
            return self._renderer.apply_chat_template(
                written,
                tools=definitions,
                add_generation_prompt=asking,
                tokenize=tokenize,
                **arguments,
            )
        except TemplateError as error:
            raise _refused(str(error)) from error
        except Exception as error:
            # A template is a program, which fails in any way that programs do.
            raise _refused(f"{type(error).__name__}: {error}") from error

    def _text(self, definitions: list[Any] | None) -> str:
        if self._is_program or not self._tokenizer.chat_template:
            return ""
        try:
            return str(self._tokenizer.get_chat_template(tools=definitions))
        except ValueError as error:
            raise _refused(str(error)) from error

    def _writer(self, template: str) -> MessageWriter:
        found = self._writers.get(template)
        if found is None:
            found = self._writers[template] = MessageWriter(template, self._try)
        return found

    def _try(self, conversation: list[Message]) -> str:
        return str(self._renderer.apply_chat_template(conversation, tokenize=False))


def template_arguments(text: str, template: str | None) -> dict[str, Any]:
    """The arguments for a Jinja template, from `text`, which is a JSON object or empty. `template`
    None: a program of mlx-lm renders, which knows only enable_thinking.

    Raises:
        PromptError: the text is no object, or has arguments that are reserved or unknown.
    """
    given = _parsed(text, "template_arguments") if text else {}
    if not isinstance(given, dict):
        raise _invalid("template_arguments", "Send a JSON object.")
    known = frozenset({"enable_thinking"}) if template is None else _known_arguments(template)
    arguments = {}
    for name, value in given.items():
        if name in _RESERVED:
            raise _invalid(
                "template_arguments", f"{name!r} can't be given: it is not for a request to say."
            )
        synonym = _SYNONYMS.get(name)
        if name in known:
            arguments[name] = value
        elif synonym in known:
            arguments.setdefault(synonym, value)
        elif name not in _WISHES:
            has = f"It knows {', '.join(sorted(known))}." if known else "It knows none."
            raise _invalid(
                "template_arguments", f"This model's chat template doesn't know {name!r}. {has}"
            )
    return arguments


@lru_cache(maxsize=8)
def _known_arguments(template: str) -> frozenset[str]:
    """The arguments of a Jinja template: variables that it doesn't set, without reserved names."""
    environment = Environment(extensions=["jinja2.ext.loopcontrols"], autoescape=True)
    try:
        parsed = environment.parse(_GENERATION.sub("", template))
    except TemplateError:
        return frozenset()
    globals_ = environment.globals.keys()
    return frozenset(meta.find_undeclared_variables(parsed) - _RESERVED - globals_)


def _definitions(tools: Tools) -> list[Any]:
    definitions = _parsed(tools.definitions, "tools")
    if not isinstance(definitions, list) or not all(isinstance(each, dict) for each in definitions):
        raise _invalid("tools", "Send a list of objects.")
    return definitions


def _parsed(text: str | bytes, field: RequestField) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _invalid(field, f"They are no JSON: {error}.") from error


def _invalid(field: RequestField, why: str) -> PromptError:
    subject = "Definitions of tools" if field == "tools" else "Arguments of the chat template"
    return PromptError("invalid_request_error", f"{subject}: {why}", field)


def _refused(why: str) -> PromptError:
    return PromptError(
        "invalid_request_error",
        f"The model's chat template refuses these messages: {why}",
        "prompt",
    )


class MessageWriter:
    """Writes messages in the form of one chat template.

    Most templates take the arguments of a call as an object, and write it as JSON themselves. Other
    templates take the arguments as text. Arguments that are no JSON object are always text.
    """

    def __init__(self, template: str, render: RenderText) -> None:
        """`render` renders messages by the template, to find out what the template takes. It is
        called when that is first needed.
        """
        self._template = template
        self._render = render

    def placed(self, messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
        """The conversation, with system messages only where the template takes them."""
        late = any(each.role == "system" for each in messages[1:])
        return as_users(messages) if late and not self._takes_late else messages

    def messages(self, messages: Iterable[ChatMessage]) -> list[Message]:
        ids = _CallIds(self._template)
        return [self._message(each, ids) for each in messages]

    def _message(self, message: ChatMessage, ids: _CallIds) -> Message:
        written: Message = {"role": message.role, "content": message.content}
        if message.name is not None:
            written["name"] = message.name
        if message.tool_call_id is not None:
            written["tool_call_id"] = ids.known(message.tool_call_id)
            name = ids.name_of(message.tool_call_id)
            if name is not None:
                written.setdefault("name", name)
        if message.tool_calls:
            written["tool_calls"] = [self._call(each, ids) for each in message.tool_calls]
        # transformers copies reasoning_content to the other names that templates have for it.
        if message.reasoning is not None and not self._refuses_reasoning(message):
            written["reasoning_content"] = message.reasoning
        return written

    def _refuses_reasoning(self, message: ChatMessage) -> bool:
        """Whether the template refuses the message with its reasoning. gpt-oss's template takes
        reasoning or text beside a call, not both. The text stays, since the user saw it.
        """
        return (
            bool(message.tool_calls and message.content) and "<|channel|>analysis" in self._template
        )

    def _call(self, call: CalledTool, ids: _CallIds) -> Message:
        arguments: Any = call.arguments
        if not self._wants_text:
            arguments = _object(call.arguments)
        function = {"name": call.name, "arguments": arguments}
        return {"id": ids.new(call), "type": "function", "function": function}

    @cached_property
    def _wants_text(self) -> bool:
        """Whether the template copies arguments into its text as they are."""
        function = {"name": "probe", "arguments": {"probed": "x"}}
        call = {"id": _PROBED_ID, "type": "function", "function": function}
        conversation: list[Message] = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "b", "name": "probe", "tool_call_id": _PROBED_ID},
        ]
        try:
            # Python's form of an object, which no template writes on purpose.
            return "'probed'" in self._render(conversation)
        except TypeError:
            # The template joins texts, and the object isn't a text.
            return True
        except Exception:
            # The template refuses the conversation for another reason.
            return False

    @cached_property
    def _takes_late(self) -> bool:
        """Whether the template writes system messages where they stand."""
        try:
            return _IN_PLACE.search(self._render(_PROBE)) is not None
        except Exception:
            # The template refuses such messages, in whatever way.
            return False


def as_users(messages: Iterable[ChatMessage]) -> list[ChatMessage]:
    """The conversation with at most one system message, at the beginning.

    Each later system message is marked, and joins the message of the user or tool before it. Many
    templates want users and assistants to alternate. And a new message of the user behind a tool's
    result would end a turn: some templates drop the reasoning of earlier turns.
    """
    # Each group becomes one message. A group is joined once, as it may have thousands of messages.
    groups: list[list[ChatMessage]] = []
    # Whether the last group has nothing but marked messages.
    alone = False
    for each in messages:
        before = groups[-1][0].role if groups else None
        if each.role == "system" and before not in (None, "system"):
            each = ChatMessage("user", f"<system_message>\n{each.content}\n</system_message>")
            joins = before in ("user", "tool")
            alone = alone or not joins
        else:
            joins = (alone and each.role == "user") or each.role == before == "system"
            alone = False
        if joins:
            groups[-1].append(each)
        else:
            groups.append([each])
    return [_joined(each) if len(each) > 1 else each[0] for each in groups]


def _joined(group: list[ChatMessage]) -> ChatMessage:
    begin = 0
    pictures: list[Picture] = []
    for each in group:
        pictures += (
            msgspec.structs.replace(picture, at=picture.at + begin) for picture in each.pictures
        )
        begin += len(each.content) + len(_BETWEEN)
    content = _BETWEEN.join(each.content for each in group)
    return msgspec.structs.replace(group[0], content=content, pictures=tuple(pictures))


def _object(arguments: str) -> Any:
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


class _CallIds:
    """The ids of calls, in the form that a template wants. Mistral's ids have nine letters or
    digits. Kimi's ids have the function's name and the call's number: Kimi's template writes the
    name nowhere else.
    """

    def __init__(self, template: str) -> None:
        self._nine = _LENGTH_OF_NINE.search(template) is not None
        self._kimi = "<|tool_call_argument_begin|>" in template
        self._count = 0
        self._known: dict[str, tuple[str, str]] = {}

    def new(self, call: CalledTool) -> str:
        written = f"functions.{call.name}:{self._count}" if self._kimi else self._shortened(call.id)
        self._count += 1
        self._known[call.id] = written, call.name
        return written

    def known(self, call_id: str) -> str:
        return self._known[call_id][0] if call_id in self._known else self._shortened(call_id)

    def name_of(self, call_id: str) -> str | None:
        return self._known[call_id][1] if call_id in self._known else None

    def _shortened(self, call_id: str) -> str:
        if not self._nine or _MISTRALS_ID.fullmatch(call_id):
            return call_id
        return hashlib.blake2s(call_id.encode()).hexdigest()[:9]
