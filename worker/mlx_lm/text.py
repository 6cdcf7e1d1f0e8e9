"""mlx-lm's wrapper of tokenizers, its parsers of calls, and its search for stop sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from mlx_lm.generate import TextStateMachine
from mlx_lm.tool_parsers import pythonic, qwen3_coder

# Text of a block of calls, and the definitions of the tools, to calls.
Parse: TypeAlias = Callable[[str, Any], Any]

parse_python: Final[Parse] = pythonic.parse_tool_call
parse_functions: Final[Parse] = qwen3_coder.parse_tool_call


class Renderer(NamedTuple):
    """What has `apply_chat_template`; with `is_program` it is one of mlx-lm's own programs, and no
    template in Jinja.
    """

    of: Any
    is_program: bool


def renderer_of(tokenizer: Any) -> Renderer:
    """mlx-lm's wrapper turns thinking on wherever a model can think. A template's own default is
    what its author meant, so the wrapper renders only where it carries the renderer itself.
    """
    is_program = tokenizer._chat_template is not None
    return Renderer(tokenizer if is_program else tokenizer._tokenizer, is_program)


def tokenizer_inside(tokenizer: Any) -> Any:
    """transformers' tokenizer in mlx-lm's wrapper."""
    return tokenizer._tokenizer


def parser_name(tokenizer: Any) -> str:
    """The one of mlx-lm's parsers that it chose for a tokenizer: the name of its module."""
    return str(tokenizer.tool_parser.__module__.rpartition(".")[2])


class StopTexts:
    """Looks for texts in a text that comes in pieces."""

    def __init__(self, texts: tuple[str, ...], *, include: bool) -> None:
        """With `include` the one that is found is given out, too."""
        # Its last part is the text that may be the beginning of one. None: there are none.
        self._state: Any = None
        if texts:
            machine = TextStateMachine({"normal": [(each, None) for each in texts]})
            self._state = machine.make_state()
        self._texts = texts
        self._include = include
        # The one that was found, and the end of all.
        self.found: str | None = None

    def take(self, text: str) -> str:
        """What is certain to come before any of them."""
        if self._state is None or not text:
            return text
        if self.found is not None:
            return ""
        held = self._state[-1]
        self._state, before, state = TextStateMachine.step(self._state, text)
        if state is not None:
            return str(before)
        seen = str((held + text).removesuffix(self._state[-1]))
        self.found = max(filter(seen.endswith, self._texts), key=len)
        return seen if self._include else str(before)

    def flush(self) -> str:
        """What was held back, once none of them follows."""
        if self._state is None or self.found is not None:
            return ""
        self._state, rest, _ = TextStateMachine.flush(self._state)
        return str(rest)
