"""What a request may tell a chat template beside its messages."""

from __future__ import annotations

import inspect
import json
import re
from functools import lru_cache
from typing import Any, Final

from jinja2 import Environment, TemplateError, meta
from transformers import PreTrainedTokenizerBase

from worker.system.errors import PromptError

# What transformers and mlx-lm give templates themselves, or take for something else.
_RESERVED: Final = frozenset(
    inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters
) | {
    "messages",
    "raise_exception",
    "strftime_now",
    "return_text",
    *PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES,
}
# Clients send these to whatever model: where they mean nothing, they are left out.
_WISHES: Final = frozenset({"enable_thinking", "reasoning_effort", "verbosity"})
# DeepSeek's and Granite's word for the same.
_SYNONYMS: Final = {"enable_thinking": "thinking", "thinking": "enable_thinking"}
# transformers' own tag, which marks what an assistant said.
_GENERATION: Final = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")


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
