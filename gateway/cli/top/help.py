"""What the keys and columns of `bulkhead top` mean."""

from __future__ import annotations

from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

_TEXT: Final = """\
Keys
  up, down     select a model
  l            load it; ends a hold, and tries again what has failed
  u            unload it; what runs has drain_s to end
  r            restart it: unload and load
  k            kill it: end its process without a drain
  y, n         answer the question that u, r and k ask first
  escape       take back the question, or the last message
  q, ctrl+c    quit

Bars
  Budget       what workers hold, what they were granted beyond that
  Machine      who holds its memory; stranded belongs to nobody

Columns
  holds        what the system would get back if the worker ended
  granted      what it may hold
  weights, caches, buffers
               of it: the model, its sequences, what MLX keeps
  active, age  requests that run; how long ago the oldest came
  waiting, age requests that wait; how long ago the oldest came
  tok/s        tokens per second, of all its requests
  step         how long ago it last produced something
  restarts     deaths of its workers that nobody ordered

Wider terminals show more columns. Escape, q or ? closes this.
"""


class Help(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape,q,question_mark", "dismiss"),
    ]

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(_TEXT, markup=False)
