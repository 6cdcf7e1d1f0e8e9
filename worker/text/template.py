"""The chat template of a model: a conversation to token ids."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

from jinja2 import Environment, TemplateError, meta

from protocol.requests import ChatMessage, ChatPrompt, Tools
from worker.mlx_lm.text import renderer_of
from worker.system.errors import PromptError
from worker.text.history import Message, MessageWriter
from worker.transformers import template_parameters

# What transformers and mlx-lm give templates themselves, or take for something else.
_RESERVED: Final = template_parameters() | {
    "messages",
    "raise_exception",
    "strftime_now",
    "return_text",
}
# Clients send these to whatever model: where they mean nothing, they are left out.
_WISHES: Final = frozenset({"enable_thinking", "reasoning_effort", "verbosity"})
# DeepSeek's and Granite's word for the same.
_SYNONYMS: Final = {"enable_thinking": "thinking", "thinking": "enable_thinking"}
# transformers' own tag, which marks what an assistant said.
_GENERATION: Final = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")


class ChatTemplate:
    """Renders conversations. Calls may come from several threads."""

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer` is mlx-lm's wrapper."""
        self._tokenizer = tokenizer
        self._renderer, self._is_program = renderer_of(tokenizer)
        self._histories: dict[str, MessageWriter] = {}

    def tokens(
        self,
        prompt: ChatPrompt,
        tools: Tools | None = None,
        messages: Sequence[ChatMessage] | None = None,
        *,
        asking: bool = True,
    ) -> list[int]:
        """Token ids of a prompt's messages, or of others in their place; `asking` for an answer at
        the end. Tools are shown whatever the choice, so that it changes nothing of a prompt that is
        kept: "none" is about what becomes of the answer.

        Raises:
            PromptError: there is no template, or it refuses this.
        """
        conversation = prompt.messages if messages is None else messages
        rendered = self._apply(prompt, tools, conversation, None, asking=asking, tokenize=True)
        return list(rendered)

    def text(
        self,
        prompt: ChatPrompt,
        tools: Tools | None,
        content: Callable[[ChatMessage], Any],
    ) -> str:
        """A prompt as it is before it is tokenized. `content` says what a message's content is for
        this template: not only a text, where there are pictures. Errors as in `tokens`.
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
        history = self._history(template)
        messages = history.placed(messages)
        written = history.messages(messages)
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
            # A template is a program, and what it is given fails it in as many ways.
            raise _refused(f"{type(error).__name__}: {error}") from error

    def _text(self, definitions: list[Any] | None) -> str:
        if self._is_program or not self._tokenizer.chat_template:
            return ""
        try:
            return str(self._tokenizer.get_chat_template(tools=definitions))
        except ValueError as error:
            raise _refused(str(error)) from error

    def _history(self, template: str) -> MessageWriter:
        found = self._histories.get(template)
        if found is None:
            found = self._histories[template] = MessageWriter(template, self._try)
        return found

    def _try(self, conversation: list[Message]) -> str:
        return str(self._renderer.apply_chat_template(conversation, tokenize=False))


def template_arguments(text: str, template: str | None) -> dict[str, Any]:
    """The arguments for a Jinja template, from a JSON object as text, which may be empty. None: a
    template that is a program, of which mlx-lm has one; it can think or not.

    Raises:
        PromptError: it is no object, or has what the template doesn't know.
    """
    given = _object(text)
    known = frozenset({"enable_thinking"}) if template is None else known_arguments(template)
    arguments = {}
    for name, value in given.items():
        if name in _RESERVED:
            raise _error(f"{name!r} can't be given: it is not for a request to say.")
        synonym = _SYNONYMS.get(name)
        if name in known:
            arguments[name] = value
        elif synonym in known:
            arguments.setdefault(synonym, value)
        elif name not in _WISHES:
            has = f"It knows {', '.join(sorted(known))}." if known else "It knows none."
            raise _error(f"This model's chat template doesn't know {name!r}. {has}")
    return arguments


@lru_cache(maxsize=8)
def known_arguments(template: str) -> frozenset[str]:
    """The names that a Jinja template takes from outside, without those that aren't arguments."""
    environment = Environment(extensions=["jinja2.ext.loopcontrols"], autoescape=True)
    try:
        parsed = environment.parse(_GENERATION.sub("", template))
    except TemplateError:
        return frozenset()
    globals_ = environment.globals.keys()
    return frozenset(meta.find_undeclared_variables(parsed) - _RESERVED - globals_)


def _object(text: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _error(f"They are no JSON: {error}.") from error
    if not isinstance(value, dict):
        raise _error("Send a JSON object.")
    return value


def _error(why: str) -> PromptError:
    return PromptError(
        "invalid_request_error", f"Arguments of the chat template: {why}", "template_arguments"
    )


def _definitions(tools: Tools) -> list[Any]:
    try:
        definitions = json.loads(tools.definitions)
    except (ValueError, RecursionError) as error:
        raise _tools_error(f"They are no JSON: {error}.") from error
    if not isinstance(definitions, list) or not all(isinstance(each, dict) for each in definitions):
        raise _tools_error("Send a list of objects.")
    return definitions


def _tools_error(why: str) -> PromptError:
    return PromptError("invalid_request_error", f"Definitions of tools: {why}", "tools")


def _refused(why: str) -> PromptError:
    return PromptError(
        "invalid_request_error",
        f"The model's chat template refuses these messages: {why}",
        "prompt",
    )
