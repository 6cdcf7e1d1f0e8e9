"""The prompt at which users type messages: with several lines, editing, history, completion."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.shortcuts import CompleteStyle

from gateway.cli.chat_commands import COMMANDS
from gateway.cli.conversation import NAMES
from gateway.system.state_file import make_folder

_PROMPT: Final = "> "
_CONTINUATION: Final = ". "
_QUOTES: Final = '"""'


class Keyboard:
    """Reads typed messages. `model_ids` returns the names that /model completes, on a thread."""

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
        """The next message, without triple quotes around it.

        Raises:
            KeyboardInterrupt: Ctrl-C.
            EOFError: Ctrl-D.
        """
        typed = self._session.prompt(_PROMPT)
        # Bytes that aren't UTF-8 become surrogates in `typed`, and surrogates can't be sent.
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

    # Alt-Enter, the key for a line break in most chat programs.
    @bindings.add("escape", "enter", filter=has_focus(DEFAULT_BUFFER))
    def break_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bindings


def _is_open(text: str) -> bool:
    """Whether the text begins with triple quotes and doesn't end with them."""
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
            known = (
                f"{chat_command.name} " if chat_command.argument else chat_command.name
                for chat_command in COMMANDS
            )
        elif command == "model":
            known = self._model_ids()
        elif command in ("set", "unset") and " " not in begun:
            known = NAMES
        for name in known:
            if name.startswith(begun):
                yield Completion(name, start_position=-len(begun))


# The longest history file, since a chat reads the whole file when it begins.
_MOST_BYTES: Final = 1 << 20
# prompt_toolkit begins each entry with a comment line, which has the time of the entry.
_ENTRY: Final = b"\n# "


def history(path: Path) -> History:
    """The history in a file. If the file can't be used: a history in memory, of this chat alone."""
    try:
        make_folder(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return InMemoryHistory()
            os.fchmod(file.fileno(), 0o600)
            if status.st_size > _MOST_BYTES:
                _shorten(path, file.read())
    except OSError:
        return InMemoryHistory()
    return _Tolerant(str(path))


def _shorten(path: Path, content: bytes) -> None:
    """Keep the newest half of `_MOST_BYTES`. An entry that another chat adds meanwhile is lost."""
    half = content[-_MOST_BYTES // 2 :]
    newest = half[max(0, half.find(_ENTRY)) :]
    aside = path.with_suffix(".new")
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(newest)
    aside.replace(path)


class _Tolerant(FileHistory):
    """A history that ignores errors of the disk: a full disk must not end a chat."""

    def store_string(self, string: str) -> None:
        # Pasted text may have surrogates, which can't be written.
        with contextlib.suppress(OSError):
            super().store_string(string.encode("utf-8", "replace").decode())
