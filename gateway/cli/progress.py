"""What a model goes through while a command waits for it."""

from __future__ import annotations

import threading
import time
from typing import Final

from rich.text import Text

from gateway.cli.bodies import ModelReading
from gateway.cli.client import GatewayClient
from gateway.cli.console import stderr_console
from gateway.cli.failure import CommandError
from gateway.cli.printable import printable

_POLL_S: Final = 0.25
# States that last: the command's own last line tells of them.
_SETTLED: Final = ("ready", "unloaded", "held", "failed")


class Progress:
    """Shown on stderr: one line that changes on a terminal, elsewhere a line for each state."""

    def __init__(self, gateway: GatewayClient, model_id: str) -> None:
        self._gateway = gateway
        self._model_id = model_id
        self._console = stderr_console()
        self._spinner = self._console.status(Text(f"{printable(model_id)}: asking"))
        self._shown = ""
        self._began_at = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def __enter__(self) -> None:
        if self._console.is_terminal:
            self._spinner.start()
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._spinner.stop()

    def _watch(self) -> None:
        while not self._over.wait(_POLL_S):
            try:
                model = self._gateway.status().model(self._model_id)
            except CommandError:
                # The command's own request meets the same failure, and reports it.
                return
            if model is not None:
                self._show(model)

    def _show(self, model: ModelReading) -> None:
        name = printable(model.id)
        if self._console.is_terminal:
            seconds = time.monotonic() - self._began_at
            self._spinner.update(Text(f"{name}: {_stage(model)}, {seconds:.0f} s"))
        elif model.state != self._shown and model.state not in _SETTLED:
            self._shown = model.state
            self._console.print(f"{name}: {_stage(model)}", soft_wrap=True)


def _stage(model: ModelReading) -> str:
    if model.reason is None:
        return model.state
    # Some reasons begin with the state: "loading: 1.2 GB of 3.2 GB".
    told = model.reason.startswith(model.state)
    return printable(model.reason if told else f"{model.state}: {model.reason}")
