"""The screen of `bulkhead top`, made with Textual. `gateway.cli.top_view` makes its text."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import ClassVar, Final

from rich.text import Text
from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.message import Message
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from gateway.cli.client import GatewayClient
from gateway.cli.output import one_line, wrapped
from gateway.cli.top_threads import (
    ASKED_FIRST,
    Feed,
    Orders,
    Outcome,
    Silence,
    Snapshot,
    Verb,
    question,
)
from gateway.cli.top_view import View

_TEXT: Final = """\
Keys
  up, down  select a model
  l         load; ends a hold, retries a failed model
  u         unload; running answers have drain_s to end
  r         restart: unload and load
  k         kill: end the process without a drain
  y, n      answer what u, r and k ask first
  escape    clear the question or the message
  q         quit

Bars
  Budget    memory that workers hold or were granted
  Machine   the holders of its memory; stranded: no holder

Columns
  holds     memory that the end of the worker would free
  floor     memory that it keeps while it is loaded
  lent      memory beyond the floor; can be called back
  wants     the most memory that it could use
  weights   held: the model itself
  caches    held: the caches of its sequences
  buffers   held: buffers that MLX keeps for later
  prompts   held among the caches: cached prompts
  on disk   prompts that outlive the worker
  cached    share of prompt tokens found in the cache
  guesses   share of guessed tokens that were right
  active    running requests, and the age of the oldest
  waiting   waiting requests, and the age of the oldest
  tok/s     tokens per second, of all its requests
  step      time since it last produced something
  restarts  unexpected ends of its worker

Wide terminals show all columns. Escape or q closes this.
"""


class Help(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape,q,question_mark", "dismiss"),
    ]

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(_TEXT, markup=False)


# `q quit` comes first, because a narrow terminal cuts off the end of the line.
_KEYS: Final = "q quit  ? help  l load  u unload  r restart  k kill"
_MESSAGE_LINES: Final = 3
# The line with the title of the events, and the line of keys.
_FIXED_LINES: Final = 2
# The events get a third of the lines, and the lines that the models don't need.
_EVENTS_SHARE: Final = 3


class News(Message):
    """The result of a thread, on its way to the screen."""

    def __init__(self, result: Snapshot | Silence | Outcome | Exception) -> None:
        super().__init__()
        self.result = result


class Events(Widget):
    """The widget with the last events, as many as fit."""

    def __init__(self, view: View) -> None:
        super().__init__()
        self._view = view

    def render(self) -> Text:
        lines = self._view.events(self.size.width, self.size.height)
        return _joined(lines, grey=self._view.lost)


class Models(OptionList, inherit_bindings=False):
    """The list of models, without Textual's page keys, which fail if no row fits."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "cursor_up"),
        Binding("down", "cursor_down"),
        Binding("home", "first"),
        Binding("end", "last"),
    ]


class Top(App[None]):
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { background: ansi_default; color: ansi_default; overflow: hidden; }
    Static { height: auto; }
    Models {
        border: none; padding: 0; background: ansi_default; scrollbar-size-vertical: 1;
        scrollbar-color: ansi_default; scrollbar-background: ansi_default;
    }
    Models > .option-list--option, Models > .option-list--option-highlighted,
    Models:focus > .option-list--option-highlighted {
        padding: 0; color: ansi_default; background: ansi_default; text-style: none;
    }
    Events { height: 1fr; }
    Help VerticalScroll { background: ansi_default; color: ansi_default; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("l", "order('load')"),
        Binding("u", "order('unload')"),
        Binding("r", "order('restart')"),
        Binding("k", "order('kill')"),
        Binding("y", "confirm"),
        Binding("n,escape", "take_back"),
        Binding("question_mark", "help"),
        Binding("q", "quit"),
        Binding("ctrl+c", "quit", priority=True),
    ]

    def __init__(self, gateway: GatewayClient) -> None:
        # The terminal's own colours suit its background, which some terminals don't report.
        super().__init__(ansi_color=True)
        self._view = View(gateway.url)
        self._feed = Feed(gateway, self._tell)
        self._orders = Orders(gateway, self._tell)
        # The order that the question on the screen is about.
        self._asked: tuple[Verb, str] | None = None
        self._message = Text()

    def compose(self) -> ComposeResult:
        self._notice, self._head, self._foot = Static(), Static(), Static()
        self._models = Models()
        self._events = Events(self._view)
        yield self._notice
        yield self._head
        yield self._models
        yield Static(Text("Events", "bold"))
        yield self._events
        yield self._foot
        yield Static(Text(_KEYS, "bold"))

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        for signal_number in (signal.SIGTERM, signal.SIGHUP):
            # Only an orderly exit restores the terminal.
            loop.add_signal_handler(signal_number, self.exit)
        self._feed.start()

    def on_unmount(self) -> None:
        self._feed.stop()

    def on_resize(self) -> None:
        self._draw()

    @on(OptionList.OptionHighlighted)
    def _mark(self) -> None:
        self._draw()

    @on(News)
    def _show_news(self, news: News) -> None:
        match news.result:
            case Snapshot(reading=reading, happenings=happenings):
                self._view.show(reading, happenings)
                if self._asked is not None and reading.model(self._asked[1]) is None:
                    self._asked = None
            case Silence(why=why):
                self._view.show_silence(why, time.monotonic())
            case Outcome(text=text, done=done):
                self._say(text, "green" if done else "bold red")
            case error:
                raise error
        self._draw()

    def action_order(self, verb: Verb) -> None:
        model_id = self._selected()
        if model_id is None:
            return
        if verb in ASKED_FIRST:
            self._asked = (verb, model_id)
        else:
            self._give(verb, model_id)
        self._draw()

    def action_confirm(self) -> None:
        if self._asked is not None:
            self._give(*self._asked)
            self._asked = None
            self._draw()

    def action_take_back(self) -> None:
        self._asked = None
        self._message = Text()
        self._draw()

    async def action_help(self) -> None:
        await self.push_screen(Help())

    def _tell(self, result: Snapshot | Silence | Outcome | Exception) -> None:
        """Pass a result to the screen. The threads of `_feed` and `_orders` call this method."""
        self.post_message(News(result))

    def _give(self, verb: Verb, model_id: str) -> None:
        name = one_line(model_id)
        if self._orders.give(verb, model_id):
            self._say(f"{name}: {verb} ordered.")
        else:
            self._say(f"{name}: the last {verb} is not over yet.", "yellow")

    def _say(self, text: str, style: str = "") -> None:
        """Show a message with its time, until the next message."""
        self._message = Text(f"{time.strftime('%H:%M:%S')} {text}", style)

    def _selected(self) -> str | None:
        index = self._models.highlighted
        return None if index is None else self._models.get_option_at_index(index).id

    def _draw(self) -> None:
        view, width = self._view, self.size.width
        notice, head = view.notice(width, time.monotonic()), view.head(width)
        rows, foot = view.rows(width), self._foot_lines(width)
        _show(self._notice, notice)
        _show(self._head, head, grey=view.lost)
        self._draw_models(rows)
        self._events.refresh()
        _show(self._foot, foot)
        room = self.size.height - len(notice) - len(head) - len(foot) - _FIXED_LINES
        needed = sum(1 + row.plain.count("\n") for row in rows)
        self._models.styles.height = max(1, min(needed, room - room // _EVENTS_SHARE))

    def _draw_models(self, rows: list[Text]) -> None:
        prompts = [_joined([row], grey=self._view.lost) for row in rows]
        ids = [model.id for model in self._view.models]
        selected = self._selected()
        if ids != [option.id for option in self._models.options]:
            self._models.set_options(map(Option, prompts, ids))
            if ids:
                self._models.highlighted = ids.index(selected) if selected in ids else 0
        for index, prompt in enumerate(prompts):
            if index == self._models.highlighted:
                # Textual's style of the highlighted option leaves "reverse" out.
                prompt.stylize("reverse", 0, len(prompt.plain.partition("\n")[0]))
            self._models.replace_option_prompt_at_index(index, prompt)

    def _foot_lines(self, width: int) -> list[Text]:
        """The lines at the bottom: the question, or without one the last message."""
        if self._asked is None or self._view.reading is None:
            return wrapped(self._message.plain, width, _MESSAGE_LINES, str(self._message.style))
        verb, model_id = self._asked
        model = self._view.reading.model(model_id)
        assert model is not None
        return wrapped(question(verb, model), width, _MESSAGE_LINES, "bold yellow")


def _show(widget: Static, lines: list[Text], *, grey: bool = False) -> None:
    widget.display = bool(lines)
    widget.update(_joined(lines, grey=grey))


def _joined(lines: list[Text], *, grey: bool) -> Text:
    text = Text("\n", no_wrap=True).join(lines)
    return Text(text.plain, "dim", no_wrap=True) if grey else text
