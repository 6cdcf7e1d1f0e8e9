"""The chat template of a model, which turns a conversation into token ids."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from itertools import takewhile
from typing import Any, Final

import msgspec
from jinja2 import Environment, TemplateError, meta

from protocol.answers import RequestField
from protocol.requests import CalledTool, ChatMessage, ChatPrompt, Tools
from worker.mlx_lm.text import renderer_of
from worker.system.errors import PromptError, one_sentence
from worker.template.writer import NO_MESSAGE, Message, MessageWriter
from worker.text.families import find_format
from worker.text.format import Tags
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

# Stands for the text in which an answer goes on. No template trims it.
_OPEN: Final = "[the-answer-goes-on-here]"


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
        if prompt.goes_on and messages is None:
            text = self._opened(prompt, tools, None)
            return list(self._tokenizer.encode(text, add_special_tokens=False))
        conversation = prompt.messages if messages is None else messages
        rendered = self._apply(prompt, tools, conversation, None, asking=asking, tokenize=True)
        return list(rendered)

    def message_starts(self, token_ids: Sequence[int]) -> list[int]:
        """The places of the special token behind which a user's content begins. In most templates
        each message has this token; in the others only messages of users have it.
        """
        mark = self._message_mark
        return (
            []
            if mark is None
            else [place for place, token_id in enumerate(token_ids) if token_id == mark]
        )

    @cached_property
    def _message_mark(self) -> int | None:
        """The last special token before a user's content; None: there is none."""
        prompts = [ChatPrompt((ChatMessage("user", content),)) for content in ("1", "2")]
        try:
            one, other = (self.tokens(prompt, asking=False) for prompt in prompts)
        except PromptError:
            return None
        added = set(self._tokenizer.get_added_vocab().values())
        alike = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
        return next((token_id for token_id, _ in reversed(list(alike)) if token_id in added), None)

    def text(
        self,
        prompt: ChatPrompt,
        tools: Tools | None,
        content: Callable[[ChatMessage], Any],
    ) -> str:
        """The text of a prompt, before it is tokenized. `content` makes the content of a message: a
        message with pictures has more than text. Raises as `tokens` does.
        """
        if prompt.goes_on:
            return self._opened(prompt, tools, content)
        return str(
            self._apply(prompt, tools, prompt.messages, content, asking=True, tokenize=False)
        )

    def _opened(
        self,
        prompt: ChatPrompt,
        tools: Tools | None,
        content: Callable[[ChatMessage], Any] | None,
    ) -> str:
        """The text of a prompt up to the end of the text of its last message, which stays open. A
        message that has reasoning alone is open in its reasoning.
        """
        *before, last = prompt.messages

        def render(messages: Sequence[ChatMessage], *, asking: bool) -> str:
            return str(self._apply(prompt, tools, messages, content, asking=asking, tokenize=False))

        tags = self._reasoning
        begins = tags is not None and last.content.lstrip().startswith(tags.start)
        if begins or not (last.content or last.reasoning):
            rendered = render(before or [NO_MESSAGE], asking=True)
            # The message opens the reasoning itself, where the template would.
            return (_without(tags, rendered) if tags and begins else rendered) + last.content
        field, text = "content", last.content
        if not text:
            field, text = "reasoning", last.reasoning or ""
        marked = msgspec.structs.replace(last, **{field: _OPEN})
        rendered, mark, _ = render([*before, marked], asking=False).rpartition(_OPEN)
        if not mark:
            raise PromptError(
                "invalid_request_error",
                f"The model's chat template leaves out the {field} of the last message, so the "
                "answer can't go on in it: end with a user's message.",
                "prompt",
            )
        return rendered + text

    @cached_property
    def _reasoning(self) -> Tags | None:
        return find_format(self._tokenizer).reasoning

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
        if not self._is_program:
            arguments["return_dict"] = False
        writer = self._writer(template)

        def render(conversation: Sequence[ChatMessage]) -> Any:
            repaired = writer.order.repaired(conversation)
            written = writer.messages(repaired)
            if content is not None:
                for message, chat_message in zip(written, repaired, strict=True):
                    message["content"] = content(chat_message)
            return self._renderer.apply_chat_template(
                written,
                tools=definitions,
                add_generation_prompt=asking,
                tokenize=tokenize,
                **arguments,
            )

        try:
            return render(messages)
        except Exception as error:
            # A template is a program, which fails in any way that programs do.
            raise _refused(one_sentence(error), advice_about(messages, render)) from error

    def _text(self, definitions: list[Any] | None) -> str:
        if self._is_program or not self._tokenizer.chat_template:
            return ""
        try:
            return str(self._tokenizer.get_chat_template(tools=definitions))
        except ValueError as error:
            raise _refused(str(error)) from error

    def _writer(self, template: str) -> MessageWriter:
        writer = self._writers.get(template)
        if writer is None:

            def render(conversation: list[Message]) -> str:
                # A tokenizer may have several templates, of which this is one.
                template_option = {"chat_template": template} if template else {}
                apply = self._renderer.apply_chat_template
                return str(apply(conversation, tokenize=False, **template_option))

            writer = self._writers[template] = MessageWriter(template, render)
        return writer


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
    if not isinstance(definitions, list) or not all(
        isinstance(definition, dict) for definition in definitions
    ):
        raise _invalid("tools", "Send a list of objects.")
    return definitions


def _without(tags: Tags, rendered: str) -> str:
    """A rendered prompt without reasoning that it opens, or opens and closes, at its end."""
    start, end = map(re.escape, tags)
    return re.sub(rf"{start}\s*(?:{end}\s*)?\Z", "", rendered)


def _parsed(text: str | bytes, field: RequestField) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _invalid(field, f"They are no JSON: {error}.") from error


def _invalid(field: RequestField, why: str) -> PromptError:
    subject = "Definitions of tools" if field == "tools" else "Arguments of the chat template"
    return PromptError("invalid_request_error", f"{subject}: {why}", field)


def _refused(why: str, advice: str = "") -> PromptError:
    message = f"The model's chat template refuses these messages: {why}"
    if advice:
        message = f"{message.rstrip('.')}. {advice}"
    return PromptError("invalid_request_error", message, "prompt")


def advice_about(
    messages: Sequence[ChatMessage], render: Callable[[list[ChatMessage]], Any]
) -> str:
    """Advice about the message that makes `render` fail: with another text it would be taken."""
    plain = [
        ChatMessage(
            chat_message.role,
            "x",
            tool_calls=tuple(
                CalledTool(call.id, call.name, "{}") for call in chat_message.tool_calls
            ),
            tool_call_id=chat_message.tool_call_id,
        )
        for chat_message in messages
    ]

    def renders(count: int) -> bool:
        try:
            render([*plain[:count], *messages[count:]])
        except Exception:
            return False
        return True

    # With this many plain messages the template refuses, and takes the conversation.
    refuses, takes = 0, len(messages)
    if not renders(takes):
        return (
            "It does so whatever they say: check their roles, the tools and chat_template_kwargs."
        )
    while takes - refuses > 1:
        middle = (refuses + takes) // 2
        refuses, takes = (refuses, middle) if renders(middle) else (middle, takes)
    message = messages[takes - 1]
    begins = f" that begins {message.content[:40]!r}" if message.content else ""
    place = f"message {takes} of {len(messages)} ({message.role})"
    return f"Change or leave out {place}{begins}."
