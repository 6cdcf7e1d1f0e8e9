"""bulkhead serve"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NoReturn

import click
from msgspec.structs import replace

from gateway.access.key_file import KeyFileError
from gateway.access.keys import ApiKeys
from gateway.cli.failure import CommandError
from gateway.cli.options import LogFlags, takes_flags, takes_log_flags
from gateway.cli.output import printable
from gateway.config.layers import ConfigError
from gateway.config.machine_rules import Places, exposed, tls_files
from gateway.config.read import Configuration, read_configuration
from gateway.config.settings import Flags, GatewaySettings
from gateway.library.finder import Finder
from gateway.server import process
from gateway.server.upgrade.takeover import Inheritance
from gateway.server.uvicorn_server import PortTakenError, bind
from gateway.service.definition import LABEL, MARK, MISTAKE_STATUS, service_pid
from gateway.service.status import ask_health_of
from gateway.system.log_lines import gateway_logs
from gateway.system.process_limits import give_large_buffers_back, raise_file_limit
from gateway.system.state_dir import StateDir, StateDirError, lock_holder, near_url
from gateway.system.state_file import make_folder, write_secret
from gateway.system.tls import CertificateError, Certificates

logger = logging.getLogger(__name__)

_NO_MODEL: Final = "No model was given. Try the built-in one: bulkhead serve --model demo"


@click.command("serve")
@click.option(
    "--mistake-status",
    type=click.IntRange(0, 255),
    default=2,
    envvar=MISTAKE_STATUS,
    hidden=True,
    help="Exit status for a mistake in the configuration, which no further start heals.",
)
@click.option(
    "--temporary",
    type=click.Path(path_type=Path),
    hidden=True,
    help="Answer the command that has started this gateway, with this folder in place of the state "
    "folder, until the standard input ends.",
)
@click.option("--counts-pinned", is_flag=True, hidden=True, help="Estimate beside pinned models.")
@takes_flags
@takes_log_flags
def serve_command(
    log: LogFlags,
    flags: Flags,
    *,
    mistake_status: int,
    temporary: Path | None,
    counts_pinned: bool,
) -> None:
    """Serve models until SIGTERM or Ctrl-C.

    Prints one line with the address once requests are taken. Logs go to stderr, and to the state
    folder, where `bulkhead logs` finds them.
    """
    try:
        inheritance = Inheritance.of(os.environ)
    except OSError as error:
        raise CommandError(str(error)) from error
    # A reload reads this copy, since the gateway removes some variables from its environment.
    finder, places, environment = Finder(), Places(), dict(os.environ)

    def read() -> Configuration:
        configured = read_configuration(flags, environment, places)
        finder.read_names(StateDir.of(configured.settings.gateway.state_dir).names_path)
        complete = finder.with_found(configured)
        return complete if temporary is None else _for_one_command(complete)

    try:
        configuration = read()
    except ConfigError as error:
        if inheritance is not None:
            inheritance.fail("; ".join(map(str, error.mistakes)))
        _fail_for_good(error.mistakes, status=mistake_status)
    settings = configuration.settings
    state_dir = StateDir.of(settings.gateway.state_dir)
    if temporary is not None:
        state_dir = _borrowed(state_dir, temporary)
        threading.Thread(target=_end_with_input, name="command", daemon=True).start()
    elif not settings.models and not settings.discovery.discover:
        _fail_for_good([_NO_MODEL], status=mistake_status)
    elif inheritance is None:
        _yield_to_another_service(state_dir)
    keys, certificates, listener = _opened(configuration, state_dir, inheritance)
    if temporary is None:
        finder.store_names()
    with gateway_logs(state_dir, settings.models, log.log_level, to_stderr=log.to_stderr):
        try:
            raise_file_limit()
        except (OSError, ValueError) as error:
            logger.warning("The limit of open files stays as it is: %s", error)
        give_large_buffers_back()
        if temporary is None:
            _warn_of_absent_models(configuration)
            for sentence in configuration.news:
                logger.warning("%s", sentence)
        departure = process.run(
            process.GatewaySetup(
                read,
                configuration,
                state_dir,
                listener,
                keys,
                certificates,
                finder,
                inheritance,
                counts_pinned,
            )
        )
    if departure is not None:
        departure.end_process()


def _for_one_command(configuration: Configuration) -> Configuration:
    """The configuration of a gateway that loads no model, and that other machines can't reach."""
    settings = configuration.settings
    models = {name: replace(model, preload=False) for name, model in settings.models.items()}
    near = replace(settings.gateway, host="127.0.0.1", port=0, tls_certificate=None, tls_key=None)
    workers = replace(settings.workers, spare=0)
    settings = replace(settings, models=models, gateway=near, workers=workers)
    return replace(configuration, settings=settings)


def _borrowed(state_dir: StateDir, folder: Path) -> StateDir:
    """A state folder with copies of what earlier gateways have measured. Its requests need a key:
    the admin key.
    """
    borrowed = StateDir(folder)
    make_folder(borrowed.path)
    for name in ("learned_path", "stranded_path", "used_path"):
        with contextlib.suppress(OSError):
            shutil.copyfile(getattr(state_dir, name), getattr(borrowed, name))
    if lock_holder(state_dir.path) is None:
        # Later gateways tell the result of a check that a command has made.
        borrowed.checks_path = state_dir.checks_path
    write_secret(borrowed.keys_path, b'{"keys": []}')
    return borrowed


def _end_with_input() -> None:
    """End in order once the standard input ends, as it does with the process of the command."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _opened(
    configuration: Configuration, state_dir: StateDir, inheritance: Inheritance | None
) -> tuple[ApiKeys, Certificates | None, socket.socket]:
    """Lock the state folder, read the API keys and the certificate, and listen at the address.

    Raises:
        CommandError: one of these steps failed.
    """
    settings = configuration.settings.gateway
    try:
        if inheritance is None:
            state_dir.acquire()
        else:
            state_dir.inherit(inheritance.lock)
        keys = ApiKeys(state_dir, exposed=exposed(settings))
        files = tls_files(settings)
        certificates = None if files is None else Certificates(*files, state_dir.served_path)
        if inheritance is not None:
            return keys, certificates, inheritance.listener
        return keys, certificates, bind(settings.host, settings.port)
    except PortTakenError as error:
        raise CommandError("\n".join([str(error), *_neighbour(settings)])) from error
    except StateDirError as error:
        origin = configuration.source(("gateway", "state_dir"))
        by = f" It is named by {origin}." if origin.kind == "environment" else ""
        raise CommandError(f"{error}{by}") from error
    except (KeyFileError, CertificateError) as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(f"The state folder {state_dir.path} can't be used: {error}.") from error


def _warn_of_absent_models(configuration: Configuration) -> None:
    if not configuration.settings.models:
        logger.warning(
            "No model is configured, so those on the disks are served (`bulkhead models`). "
            "`bulkhead pull OWNER/NAME` gets another; --model demo serves the built-in one"
        )
    for mistake in configuration.absent.values():
        logger.warning("%s The other models are served, and this one once it is there", mistake)


def _yield_to_another_service(state_dir: StateDir) -> None:
    """End with status 0 if this process is a second start of the service. launchd may start a
    LaunchAgent twice: in the background session, and at the login on the screen. If a start ends
    with another status than 0, launchd repeats the start.
    """
    pid = service_pid(state_dir.path) if os.environ.get(MARK) == LABEL else None
    if pid is not None:
        click.echo(f"bulkhead: The service runs already (pid {pid}).", err=True)
        sys.exit(0)


def _neighbour(settings: GatewaySettings) -> Iterator[str]:
    """A sentence about the Bulkhead gateway that has the port; none if another program has it."""
    if (health := ask_health_of(settings)) is not None:
        at = near_url(settings.host, settings.port, tls=settings.tls)
        yield (
            f"A Bulkhead gateway (version {health.version}) with another state folder has the "
            f"port: `bulkhead status --url {at}` shows its models."
        )


def _fail_for_good(mistakes: Iterable[object], *, status: int) -> NoReturn:
    """Print the mistakes, and end with `status`: launchd and systemd don't repeat such a start."""
    stays = ["The service stays down until `bulkhead service start`."]
    for mistake in (*mistakes, *(stays if os.environ.get(MARK) == LABEL else [])):
        click.echo(f"bulkhead: {printable(str(mistake))}", err=True)
    sys.exit(status)
