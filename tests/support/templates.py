"""Tokenizers with a chat template and special tokens of one's own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlx_lm.utils import load_tokenizer

from protocol.requests import (
    CalledTool,
    ChatMessage,
    ChatPrompt,
    Tools,
)
from tests.support.shapes import DEMO
from worker.template.chat_template import ChatTemplate

_ADDED = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}

# With reasoning, two calls and a result.
HISTORY = (
    ChatMessage("user", "Hi"),
    ChatMessage(
        "assistant",
        "",
        reasoning="Hm",
        tool_calls=(
            CalledTool("call_one", "weather", '{"city":"Köln", "n": [1]}'),
            CalledTool("call_two", "now", "{}"),
        ),
    ),
    ChatMessage("tool", "warm", tool_call_id="call_one"),
)


def templated(
    folder: Path,
    template: str,
    tokens: Sequence[str] = (),
    model_type: str = "llama",
    **settings: str,
) -> Any:
    """mlx-lm's wrapper of the demo model's tokenizer with these `tokens` in place of its tags, as
    that of a model of this type; the `settings` go to tokenizer_config.json.
    """
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
    first = len(tokenizer["model"]["vocab"])
    special = [added_token for added_token in tokenizer["added_tokens"] if added_token["special"]]
    tokenizer["added_tokens"] = special + [
        {"id": first + index, "content": token, "special": True, **_ADDED}
        for index, token in enumerate(tokens)
    ]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((DEMO / "tokenizer_config.json").read_text())
    config |= {"chat_template": template, **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return load_tokenizer(folder)


class Templates:
    """Renders conversations; each template's tokenizer is made once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, tuple[Any, ChatTemplate]] = {}

    def render(
        self,
        template: str,
        messages: tuple[ChatMessage, ...] = HISTORY,
        tools: Tools | None = None,
        arguments: dict[str, Any] | None = None,
    ) -> str:
        if template not in self._made:
            tokenizer = templated(self._folder / str(len(self._made)), template)
            self._made[template] = tokenizer, ChatTemplate(tokenizer)
        tokenizer, chat = self._made[template]
        text = json.dumps(arguments) if arguments else ""
        return str(tokenizer.decode(chat.tokens(ChatPrompt(messages, text), tools)))
