"""Messages as people type them: several lines, editing, history, completion."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus
from prompt_toolkit.history import History
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.shortcuts import CompleteStyle

from gateway.cli.chat import slash
from gateway.cli.parameters import NAMES

_PROMPT: Final = "> "
_CONTINUATION: Final = ". "
_QUOTES: Final = '"""'


class Keyboard:
    """`model_ids` is asked when a model's name is completed, on a thread."""

    def __init__(self, history: History, model_ids: Callable[[], Iterable[str]]) -> None:
        self._session: PromptSession[str] = PromptSession(
            history=history,
            completer=_Completer(model_ids),
            complete_while_typing=False,
            complete_in_thread=True,
            complete_style=CompleteStyle.READLINE_LIKE,
            key_bindings=_bindings(),
            prompt_continuation=_CONTINUATION,
            reserve_space_for_menu=0,
        )

    def message(self) -> str:
        """What was typed, without quotes around it.

        Raises:
            KeyboardInterrupt: Ctrl-C.
            EOFError: Ctrl-D.
        """
        typed = self._session.prompt(_PROMPT)
        # Bytes that are no text come as halves of characters, which can't be sent.
        text = typed.encode("utf-8", "replace").decode().strip()
        if text.startswith(_QUOTES):
            text = text.removeprefix(_QUOTES).removesuffix(_QUOTES).strip("\n")
        return text


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter", filter=has_focus(DEFAULT_BUFFER))
    def end_line(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if _is_open(buffer.text):
            buffer.insert_text("\n")
        elif buffer.document.is_cursor_at_the_end and buffer.text.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    # As most programs with a line to type in have it.
    @bindings.add("escape", "enter", filter=has_focus(DEFAULT_BUFFER))
    def break_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bindings


def _is_open(text: str) -> bool:
    """Whether it begins with quotes that have no end yet."""
    text = text.strip()
    return text.startswith(_QUOTES) and not (
        text.endswith(_QUOTES) and len(text) >= 2 * len(_QUOTES)
    )


class _Completer(Completer):
    def __init__(self, model_ids: Callable[[], Iterable[str]]) -> None:
        self._model_ids = model_ids

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterator[Completion]:
        before = document.text_before_cursor
        if not before.startswith("/") or "\n" in before:
            return
        command, space, begun = before[1:].partition(" ")
        known: Iterable[str] = ()
        if not space:
            begun = command
            known = (f"{each.name} " if each.argument else each.name for each in slash.COMMANDS)
        elif command == "model":
            known = self._model_ids()
        elif command in ("set", "unset") and " " not in begun:
            known = NAMES
        for each in known:
            if each.startswith(begun):
                yield Completion(each, start_position=-len(begun))
