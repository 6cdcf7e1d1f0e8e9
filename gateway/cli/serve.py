"""bulkhead serve"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NoReturn

import click

from gateway.access.key_file import KeyFileError
from gateway.access.keys import ApiKeys
from gateway.cli.options import log_level_option, log_to_option, takes_flags
from gateway.cli.output import printable
from gateway.config.machine_rules import Places, exposed, tls_files
from gateway.config.mistakes import ConfigError
from gateway.config.read import Configuration, read_configuration
from gateway.config.settings import Flags, GatewaySettings
from gateway.library.finder import Finder
from gateway.server import server
from gateway.server.takeover import Inheritance
from gateway.server.uvicorn_server import PortTakenError, bind
from gateway.service.definition import LABEL, MARK, MISTAKE_STATUS, service_pid
from gateway.service.status import ask_health_of
from gateway.system.logs import gateway_logs
from gateway.system.machine import give_large_buffers_back, raise_file_limit
from gateway.system.state_dir import StateDir, StateDirError, default_state_dir, near_url
from gateway.system.tls import CertificateError, Certificates

logger = logging.getLogger(__name__)


@click.command("serve")
@log_level_option
@log_to_option
@click.option(
    "--mistake-status",
    type=click.IntRange(0, 255),
    default=2,
    envvar=MISTAKE_STATUS,
    hidden=True,
    help="Exit status for a mistake in the configuration, which no further start heals.",
)
@takes_flags
def serve_command(flags: Flags, log_level: str, log_to: str, mistake_status: int) -> None:
    """Serve models until SIGTERM or Ctrl-C.

    Prints one line with the address once requests are taken. Logs go to stderr, and to the state
    folder: bulkhead logs.
    """
    try:
        inheritance = Inheritance.of(os.environ)
    except OSError as error:
        _fail([str(error)], status=1)
    # As they are now: the gateway takes some of its environment's variables out.
    finder, places, environment = Finder(), Places(), dict(os.environ)

    def read() -> Configuration:
        return finder.with_found(read_configuration(flags, environment, places))

    try:
        configuration = read()
    except ConfigError as error:
        if inheritance is not None:
            inheritance.fail("; ".join(map(str, error.mistakes)))
        _fail_for_good(error.mistakes, status=mistake_status)
    settings = configuration.settings
    if not settings.models and not settings.discovery.discover:
        _fail_for_good(
            ["No model was given. Try the one that comes along: bulkhead serve --model demo"],
            status=mistake_status,
        )
    state_dir = StateDir(Path(settings.gateway.state_dir or default_state_dir()))
    if inheritance is None:
        _leave_to_another_service(state_dir)
    try:
        if inheritance is None:
            state_dir.acquire()
        else:
            state_dir.inherit(inheritance.lock)
        keys = ApiKeys(state_dir, exposed=exposed(settings.gateway))
        files = tls_files(settings.gateway)
        certificates = None if files is None else Certificates(*files, state_dir.served_path)
        if inheritance is None:
            listener = bind(settings.gateway.host, settings.gateway.port)
        else:
            listener = inheritance.listener
    except PortTakenError as error:
        _fail([str(error), *_neighbour(settings.gateway)], status=1)
    except (StateDirError, KeyFileError, CertificateError) as error:
        _fail([str(error)], status=1)
    except OSError as error:
        _fail([f"The state folder {state_dir.path} can't be used: {error}."], status=1)
    with gateway_logs(state_dir, settings.models, log_level, to_stderr=log_to == "stderr"):
        _raise_file_limit()
        give_large_buffers_back()
        if not settings.models:
            logger.warning(
                "No model is configured, so those on the disks are served (`bulkhead models`). "
                "`bulkhead pull OWNER/NAME` gets another; --model demo serves the built-in one"
            )
        for mistake in configuration.absent.values():
            logger.warning("%s The others are served, and this one once it is there", mistake)
        departure = server.run(
            read, configuration, state_dir, listener, keys, certificates, finder, inheritance
        )
    if departure is not None:
        departure.become()


def _leave_to_another_service(state_dir: StateDir) -> None:
    """launchd may start an agent twice, in the background session and at the screen's login: with
    exit status 0 the second one isn't tried again and again.
    """
    pid = service_pid(state_dir.path) if os.environ.get(MARK) == LABEL else None
    if pid is not None:
        click.echo(f"bulkhead: The service runs already (pid {pid}).", err=True)
        sys.exit(0)


def _neighbour(settings: GatewaySettings) -> Iterator[str]:
    """A gateway that has the port already."""
    if (health := ask_health_of(settings)) is not None:
        at = near_url(settings.host, settings.port, tls=settings.tls)
        yield (
            f"A Bulkhead gateway (version {health.version}) has it, with another state folder: "
            f"`bulkhead status --url {at}` shows its models."
        )


def _raise_file_limit() -> None:
    try:
        raise_file_limit()
    except (OSError, ValueError) as error:
        logger.warning("The limit of open files stays as it is: %s", error)


def _fail_for_good(mistakes: Iterable[object], *, status: int) -> NoReturn:
    """A service manager doesn't start it again, as no further start heals this."""
    stays = ["The service stays down until `bulkhead service start`."]
    _fail([*mistakes, *(stays if os.environ.get(MARK) == LABEL else [])], status=status)


def _fail(mistakes: Iterable[object], *, status: int) -> NoReturn:
    for mistake in mistakes:
        click.echo(f"bulkhead: {printable(str(mistake))}", err=True)
    sys.exit(status)
