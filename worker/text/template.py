"""The chat template of a model."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from jinja2 import TemplateError

from protocol.prompts import ChatMessage, ChatPrompt
from protocol.requests import Tools
from worker.system.errors import PromptError
from worker.text.arguments import template_arguments
from worker.text.history import History, Message


class ChatTemplate:
    """Renders conversations. Calls may come from several threads."""

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer` is mlx-lm's wrapper.

        That turns thinking on wherever a model can think. The template's own default is what its
        author meant, so the wrapper renders only where it carries the renderer itself.
        """
        self._tokenizer = tokenizer
        self._is_program = tokenizer._chat_template is not None
        self._renderer = tokenizer if self._is_program else tokenizer._tokenizer
        self._histories: dict[str, History] = {}

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

    def _history(self, template: str) -> History:
        found = self._histories.get(template)
        if found is None:
            found = self._histories[template] = History(template, self._try)
        return found

    def _try(self, conversation: list[Message]) -> str:
        return str(self._renderer.apply_chat_template(conversation, tokenize=False))


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
