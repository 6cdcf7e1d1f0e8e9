"""bulkhead demo"""

from __future__ import annotations

import contextlib
import os
import signal
import textwrap
import threading
import time
from collections.abc import Generator
from typing import Final

import click
import psutil
from msgspec import Struct

from gateway.cli.child_gateway import ChildGateway, end_in_order, fresh_gateway
from gateway.cli.client import GatewayClient
from gateway.cli.conversation import Parameters, StreamedPiece, TextMessage, stream_answer
from gateway.cli.failure import CommandError
from gateway.cli.transcript import Paragraph
from gateway.http.wire.command_bodies import ModelStatus, OrderOptions, WorkerStatus
from gateway.system.memory import footprint
from gateway.system.memory_reading import FootprintError
from gateway.system.notation import format_size

_EVERY_S: Final = 0.05


class Pulse:
    """Asks the gateway on a thread, again and again, whether it lives. The thread ends with the
    context, or with the first failed request, whose error is `missed`. `beats` counts the answers.
    """

    def __init__(self, url: str) -> None:
        self.beats = 0
        self.slowest_s = 0.0
        self.missed: str | None = None
        self._url = url
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="pulse", daemon=True)

    def __enter__(self) -> Pulse:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _ask(self) -> None:
        with GatewayClient(self._url) as gateway:
            while not self._over.wait(_EVERY_S):
                began_at = time.monotonic()
                try:
                    gateway.get("/livez")
                except CommandError as error:
                    self.missed = error.message
                    return
                self.beats += 1
                self.slowest_s = max(self.slowest_s, time.monotonic() - began_at)


_MODEL: Final = "demo"
_SHORT_QUESTION: Final = "What is Bulkhead?"
_LONG_QUESTION: Final = "What happens if a worker dies?"
# On a fast machine the whole answer may be sent before the signal: then the demo tries again.
_KILL_ATTEMPTS: Final = 5
_WORDS_BEFORE_KILL: Final = 5
_INDENT: Final = "   "
_WIDTH: Final = 79


class MemoryNote(Struct, frozen=True):
    """The memory of the model's worker at one moment of the demo, which `when` names. The memory
    of the machine would show other programs too, whose changes are larger than this model.
    """

    when: str
    footprint_bytes: int | None

    def __str__(self) -> str:
        if self.footprint_bytes is None:
            return f"{self.when:<7} {'0 B':>7}, since there is no process"
        return f"{self.when:<7} {format_size(self.footprint_bytes):>7}, held by its process"


@click.command("demo")
def demo_command() -> None:
    """Show the purpose of Bulkhead, in a few seconds and without downloads.

    Starts a gateway of its own with the built-in model, and kills the model's process in the middle
    of an answer, which a new process completes. Then unloads the model, and prints the memory
    before, loaded and after.
    """
    end_in_order()
    with fresh_gateway("--model", _MODEL) as child:
        try:
            _perform(child)
        except CommandError as error:
            raise CommandError(
                f"The demo failed. {error.message}\nThe gateway's log ends with:\n"
                f"{child.log_tail()}"
            ) from error


def _perform(child: ChildGateway) -> None:
    click.echo("Bulkhead gives every model a process of its own. This shows the use of that.")
    _title("A gateway starts. It loads no model before the first question.")
    address = child.address()
    _say(f"It serves on {address} (pid {child.pid}).")
    with GatewayClient(address) as gateway:
        notes = _converse(gateway, address, child.pid)
    _title("The gateway stops.")
    status = child.stop()
    _expect(status == 0, f"The gateway ended with status {status}.")
    _say("It ended with status 0.")
    _title("The model's memory:")
    for note in notes:
        _say(str(note))


def _converse(gateway: GatewayClient, address: str, gateway_pid: int) -> tuple[MemoryNote, ...]:
    before = _memory_note(gateway, "before")
    _say(str(before))

    _title("The first question loads the model into a worker.")
    _ask(gateway, _SHORT_QUESTION)
    loaded = _memory_note(gateway, "loaded")
    _say(str(loaded))

    with Pulse(address) as pulse:
        _title("The worker is killed in the middle of an answer. Another one carries it on.")
        killed_pid, answer = _kill_in_mid_answer(gateway)
        new_pid = _worker(gateway).pid
        _show_last_exit(gateway)
        _say(f"The rest came from another worker (pid {new_pid}), after {killed_pid} had died.")
        undisturbed = "".join(_answer(gateway, _LONG_QUESTION))
        _expect(answer == undisturbed, "Asked again without a kill, the answer is another one.")
        _say(
            f"Asked again without a kill: the same {len(answer):,} characters. Nothing was lost, "
            "nothing came twice."
        )
    _show_pulse(gateway, pulse, gateway_pid)

    _title("The model is unloaded.")
    _unload(gateway, new_pid)
    after = _memory_note(gateway, "after")
    _say(str(after))
    return before, loaded, after


def _ask(gateway: GatewayClient, question: str) -> None:
    """Ask the demo model, and print its answer while it streams."""
    _say(f"> {question}")
    with contextlib.closing(Paragraph(_INDENT, _WIDTH)) as paragraph:
        for piece in _answer(gateway, question):
            paragraph.write(piece)
    _expect(paragraph.words > 0, "The answer was empty.")


def _kill_in_mid_answer(gateway: GatewayClient) -> tuple[int, str]:
    """Kill the worker in the middle of an answer. Return the killed pid and the whole answer."""
    for _ in range(_KILL_ATTEMPTS):
        _say(f"> {_LONG_QUESTION}")
        pid, answer = _kill_after_first_words(gateway)
        worker = _model(gateway).worker
        if worker is not None and worker.pid != pid:
            return pid, answer
        _say("The answer was faster than the signal. Once more:")
    raise CommandError("No answer was slow enough to be interrupted.")


def _kill_after_first_words(gateway: GatewayClient) -> tuple[int, str]:
    pid: int | None = None
    answer = ""
    with contextlib.closing(Paragraph(_INDENT, _WIDTH)) as paragraph:
        for piece in _answer(gateway, _LONG_QUESTION):
            paragraph.write(piece)
            answer += piece
            if pid is None and paragraph.words >= _WORDS_BEFORE_KILL:
                pid = _worker(gateway).pid
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                paragraph.end_line()
                click.secho(
                    f"{_INDENT}*** SIGKILL to the worker (pid {pid}) ***", fg="red", bold=True
                )
    if pid is None:
        raise CommandError(f"The answer has fewer than {_WORDS_BEFORE_KILL} words.")
    return pid, answer


def _show_last_exit(gateway: GatewayClient) -> None:
    last_exit = _model(gateway).last_exit
    if last_exit is None or last_exit.signal != "SIGKILL":
        raise CommandError(f"The gateway took the worker's end for {last_exit}.")
    _say(f"The gateway has noted: {last_exit.reason} ({last_exit.signal}).")


def _show_pulse(gateway: GatewayClient, pulse: Pulse, pid: int) -> None:
    _expect(pulse.missed is None, f"The gateway was away: {pulse.missed}")
    _expect(pulse.beats > 0, "The gateway gave no sign of life.")
    _expect(gateway.status().pid == pid, "Another gateway answers.")
    _say(
        f"Meanwhile the gateway (pid {pid}) was asked {pulse.beats} times whether it lives, and "
        f"said so every time, within {pulse.slowest_s * 1000:.0f} ms."
    )


def _unload(gateway: GatewayClient, pid: int) -> None:
    unloaded = gateway.order("unload", _MODEL, OrderOptions())
    _expect(unloaded.worker is None, f"The model is {unloaded.state} and has a worker.")
    _expect(not psutil.pid_exists(pid), f"The process {pid} is still there.")
    _say(f"It is {unloaded.state}, and no process {pid} exists any more.")


def _answer(gateway: GatewayClient, question: str) -> Generator[str, None, None]:
    messages = (TextMessage("user", question),)
    for piece in stream_answer(gateway, _MODEL, messages, Parameters(temperature=0.0)):
        if isinstance(piece, StreamedPiece):
            yield piece.text


def _model(gateway: GatewayClient) -> ModelStatus:
    model = gateway.status().model(_MODEL)
    if model is None:
        raise CommandError("The gateway doesn't know the demo's model.")
    return model


def _worker(gateway: GatewayClient) -> WorkerStatus:
    model = _model(gateway)
    if model.worker is None:
        raise CommandError(f"The model is {model.state} and has no worker.")
    return model.worker


def _memory_note(gateway: GatewayClient, when: str) -> MemoryNote:
    reading = gateway.status()
    model = reading.model(_MODEL)
    worker = None if model is None else model.worker
    try:
        # The footprint is read here, since the one in the gateway's status may be a second old.
        held = None if worker is None else footprint(worker.pid).current_bytes
    except FootprintError as error:
        raise CommandError(f"The worker's footprint can't be read: {error}.") from error
    return MemoryNote(when, held)


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise CommandError(otherwise)


def _title(text: str) -> None:
    click.echo(f"\n{text}")


def _say(text: str) -> None:
    click.echo(textwrap.fill(text, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT))
