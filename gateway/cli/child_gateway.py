"""The gateways that commands start for themselves, each as a child that ends with its command.

1. `temporary_gateway` answers one command where no gateway runs (`serve --temporary`).
2. `session_gateway` serves a chat or an agent with the user's configuration and state folder.
3. `fresh_gateway` has nothing of the user's: for the demo and the doctor.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Concatenate, Final, ParamSpec

import click
from msgspec.structs import replace

import gateway
from gateway.cli.client import GatewayClient
from gateway.cli.failure import CommandError, NobodyListensError
from gateway.cli.gateway_access import find_gateway, local_settings
from gateway.cli.options import names_gateway, reaches_gateway
from gateway.config.layers import ConfigError
from gateway.config.read import read_settings
from gateway.config.settings import Flags
from gateway.system.child import Child
from gateway.system.log_lines import readable
from gateway.system.state_dir import StateDir
from protocol.message_base import EndpointError, endpoint

Arguments = ParamSpec("Arguments")

_START_S: Final = 60.0
_STOP_S: Final = 20.0
_LOG_LINES: Final = 20
# The working folder in which `python -m gateway` finds this package.
_IMPORT_ROOT: Final = Path(gateway.__file__).resolve().parent.parent
# The id under which a temporary gateway serves a folder or repository that has no table.
FOLDER_ID: Final = "a-folder"
_PREFIX: Final = "bh-"
_STATE: Final = "state"
# Every Unix has this folder (hier(7)).
_SHORT_FOLDER: Final = "/tmp"  # noqa: S108


class ChildGateway:
    """A process that runs `bulkhead serve`."""

    def __init__(self, child: Child, log_path: Path) -> None:
        self._child = child
        self._log_path = log_path

    @property
    def pid(self) -> int:
        return self._child.pid

    def address(self) -> str:
        """Wait for the line with the gateway's address, and return the address.

        Raises:
            CommandError: no such line came in time.
        """
        with contextlib.suppress(TimeoutError):
            line = self._child.next_line(_START_S).decode()
            if (address := re.search(r"https?://\S+", line)) is not None:
                return address[0]
        raise CommandError("The gateway did not start.")

    def log_tail(self) -> str:
        lines = self._log_path.read_text("utf-8", "replace").splitlines()
        return "\n".join(map(readable, lines[-_LOG_LINES:]))

    def stop(self) -> int:
        """End the gateway in order, or kill it if that takes too long. Return its exit status."""
        return self._child.stop(_STOP_S)

    def kill(self) -> int:
        return self._child.kill()


@contextlib.contextmanager
def _child(folder: Path, *arguments: str) -> Iterator[ChildGateway]:
    """Run `bulkhead serve` with these arguments until the context ends. Its stderr goes to a file
    in the folder. Its standard input ends with this process, however this process ends.
    """
    log_path = folder / "gateway.log"
    with log_path.open("wb") as log:
        child = Child(
            [sys.executable, "-m", "gateway", "serve", *arguments],
            "gateway",
            folder=_IMPORT_ROOT,
            stderr=log,
            # Ctrl-C must reach only the command, which then ends the gateway in order.
            own_session=True,
            # The workers may hold the pipe open.
            drain_s=0.0,
        )
    with child:
        try:
            yield ChildGateway(child, log_path)
        finally:
            child.stop(_STOP_S)


def _folder() -> tempfile.TemporaryDirectory[str]:
    """Make a folder in TMPDIR, or in /tmp if TMPDIR would make the paths of sockets too long."""
    folder = tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
    try:
        endpoint(StateDir(Path(folder.name) / _STATE).longest_socket_path)
    except EndpointError:
        folder.cleanup()
        return tempfile.TemporaryDirectory(
            prefix=_PREFIX, dir=_SHORT_FOLDER, ignore_cleanup_errors=True
        )
    return folder


@contextlib.contextmanager
def fresh_gateway(*arguments: str) -> Iterator[ChildGateway]:
    """Run a gateway on a free port. When the context ends, process and folder are removed."""
    with _folder() as name:
        folder = Path(name)
        # An empty file, so that the user's configuration isn't read.
        (folder / "config.toml").touch()
        unshared = ["--config", str(folder / "config.toml"), "--port", "0"]
        unshared += ["--state-dir", str(folder / _STATE)]
        with _child(folder, *arguments, *unshared) as child:
            yield child


@contextlib.contextmanager
def session_gateway(*flags: str) -> Iterator[tuple[GatewayClient, ChildGateway]]:
    """Run a gateway with the user's configuration and these flags until the context ends.

    Raises:
        CommandError: the gateway doesn't start.
    """
    settings, state_dir = local_settings(None)
    end_in_order()
    with (
        tempfile.TemporaryDirectory(prefix=_PREFIX) as folder,
        _child(Path(folder), *_places(Flags(state_dir=state_dir.path)), *flags) as child,
    ):
        address = _started(child)
        click.echo(
            f"No gateway ran: one serves at {address} until this command ends. `bulkhead serve` "
            "runs one for longer.",
            err=True,
        )
        with find_gateway(None, None, settings, state_dir).client() as client:
            client.ends_with_command = True
            yield client, child


@contextlib.contextmanager
def temporary_gateway(
    flags: Flags | None = None, *, counts_pinned: bool = False
) -> Iterator[GatewayClient]:
    """Run a gateway that answers this command alone: it loads no model, has a key of its own, and
    leaves the state folder to others. With `counts_pinned` it estimates as if pinned models were
    loaded.

    Raises:
        CommandError: the configuration has mistakes, or the gateway doesn't start.
    """
    flags = flags or Flags()
    try:
        settings = read_settings(flags, os.environ)
    except ConfigError as error:
        raise CommandError(str(error)) from error
    end_in_order()
    with _folder() as name:
        folder = Path(name)
        arguments = _places(flags)
        for model in flags.models:
            arguments += ["--model", model]
        if counts_pinned:
            arguments.append("--counts-pinned")
        with _child(folder, *arguments, "--temporary", str(folder / _STATE)) as child:
            _started(child)
            with find_gateway(None, None, settings, StateDir(folder / _STATE)).client() as client:
                client.ends_with_command = True
                yield client


@contextlib.contextmanager
def folder_gateway(
    source: str, flags: Flags | None = None, *, counts_pinned: bool = False
) -> Iterator[GatewayClient]:
    """As `temporary_gateway`, which serves the folder or repository `source` as `FOLDER_ID`: no
    gateway lists it.
    """
    models = (f"{source}={FOLDER_ID}",)
    flags = replace(flags or Flags(), models=models)
    with temporary_gateway(flags, counts_pinned=counts_pinned) as client:
        yield client


def _places(flags: Flags) -> list[str]:
    """The arguments for the configuration and the state folder. They are absolute, since the
    gateway has another working folder.
    """
    named = {
        "--config": flags.config or os.environ.get("BULKHEAD_CONFIG"),
        "--state-dir": flags.state_dir or os.environ.get("BULKHEAD_STATE_DIR"),
    }
    return [
        argument
        for option, path in named.items()
        if path
        for argument in (option, str(Path(path).expanduser().absolute()))
    ]


def _started(child: ChildGateway) -> str:
    """The child's address, once it serves. Raises: CommandError."""
    try:
        return child.address()
    except CommandError as error:
        raise CommandError(f"{error.message} Its log ends with:\n{child.log_tail()}") from error


def is_running(client: GatewayClient) -> bool:
    """Whether to ask this command's gateway: the user named it, or something listens there."""
    if names_gateway():
        return True
    try:
        client.get("/livez")
    except NobodyListensError:
        return False
    except CommandError:
        # The request of the command tells what is wrong.
        return True
    return True


def asks_gateway(
    verb: Callable[Concatenate[GatewayClient, Arguments], None],
) -> Callable[..., None]:
    """As `reaches_gateway`. If no gateway runs and none was named, a temporary one answers."""

    @reaches_gateway
    @functools.wraps(verb)
    def with_answering(
        client: GatewayClient, /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> None:
        if is_running(client):
            verb(client, *args, **kwargs)
            return
        with temporary_gateway() as temporary:
            verb(temporary, *args, **kwargs)

    return with_answering


def end_in_order() -> None:
    """Let SIGTERM and SIGHUP end this process by an exception, so that every context ends."""
    for signal_number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, _exit)


def _exit(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)
