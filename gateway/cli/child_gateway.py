"""A gateway of the demo's own: its process, its folder, its log."""

from __future__ import annotations

import contextlib
import re
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import gateway
from gateway.cli.failure import CommandError
from gateway.system.log_lines import readable
from gateway.system.state_dir import StateDir
from protocol.message import EndpointError, endpoint

_START_S: Final = 60.0
_STOP_S: Final = 20.0
_LOG_LINES: Final = 20
_PREFIX: Final = "bh-"
_STATE: Final = "state"
# Every Unix has it (hier(7)).
_SHORT_FOLDER: Final = "/tmp"  # noqa: S108
# Where `python -m gateway` finds this package and not one of the current folder.
_IMPORT_ROOT: Final = Path(gateway.__file__).resolve().parent.parent


class ChildGateway:
    """A running `bulkhead serve`."""

    def __init__(self, process: subprocess.Popen[str], log_path: Path) -> None:
        self._process = process
        self._log_path = log_path

    @property
    def pid(self) -> int:
        return self._process.pid

    def address(self) -> str:
        """Wait for the line that tells it.

        Raises:
            CommandError: there was none.
        """
        stdout = self._process.stdout
        if stdout is not None and select.select([stdout], [], [], _START_S)[0]:
            found = re.search(r"https?://\S+", stdout.readline())
            if found is not None:
                return found[0]
        raise CommandError("The gateway did not start.")

    def log_tail(self) -> str:
        lines = self._log_path.read_text("utf-8", "replace").splitlines()
        return "\n".join(map(readable, lines[-_LOG_LINES:]))

    def stop(self) -> int:
        """End it as its operator would, by force if it takes too long; returns its exit status."""
        self._process.terminate()
        try:
            return self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        self._process.kill()
        return self._process.wait()


def _folder() -> tempfile.TemporaryDirectory[str]:
    """Where TMPDIR is, unless sockets would have paths that are too long there."""
    made = tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
    try:
        endpoint(StateDir(Path(made.name) / _STATE).longest_socket_path)
    except EndpointError:
        made.cleanup()
        return tempfile.TemporaryDirectory(
            prefix=_PREFIX, dir=_SHORT_FOLDER, ignore_cleanup_errors=True
        )
    return made


@contextlib.contextmanager
def child_gateway(*arguments: str) -> Iterator[ChildGateway]:
    """A gateway on a free port that is gone, with its folder, when the context ends."""
    with _folder() as folder:
        config_path, log_path = Path(folder) / "config.toml", Path(folder) / "gateway.log"
        # Instead of the user's configuration.
        config_path.touch()
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "gateway", "serve", *arguments),
                    *("--config", str(config_path)),
                    *("--port", "0"),
                    *("--state-dir", str(Path(folder) / _STATE)),
                ],
                cwd=_IMPORT_ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                # Ctrl-C is for the demo, which then ends the gateway in order.
                start_new_session=True,
            )
        child = ChildGateway(process, log_path)
        try:
            yield child
        finally:
            try:
                child.stop()
            finally:
                child.kill()
