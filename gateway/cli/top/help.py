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
  up, down  select a model
  l         load; ends a hold, tries again what failed
  u         unload; what runs has drain_s to end
  r         restart: unload and load
  k         kill: end the process without a drain
  y, n      answer what u, r and k ask first
  escape    take back the question, or the message
  q         quit

Bars
  Budget    what workers hold, what is granted beyond it
  Machine   who holds its memory; stranded: nobody

Columns
  holds     what comes back when the worker ends
  floor     its own as long as it is loaded
  lent      what it may hold beyond; can be called back
  wants     all that it could use
  weights   it holds: the model itself
  caches    it holds: the caches of its sequences
  buffers   it holds: what MLX keeps for later
  prompts   among its caches: prompts that are kept
  on disk   prompts that outlive its worker
  cached    share of prompts' tokens not computed anew
  active    requests that run, and the age of the oldest
  waiting   requests that wait, and the age of the oldest
  tok/s     tokens per second, of all its requests
  step      how long ago it last produced something
  restarts  unexpected ends of its worker

Wide terminals have all columns. Escape or q closes this.
"""


class Help(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape,q,question_mark", "dismiss"),
    ]

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(_TEXT, markup=False)
