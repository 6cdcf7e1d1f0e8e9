"""bulkhead service"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import click

from gateway.cli import UncutGroup
from gateway.cli.failure import CommandError, NoGatewayError, WrongUseError
from gateway.cli.logs import LogPrinter, print_file
from gateway.cli.output import print_json, printable
from gateway.config.layers import ConfigError, chosen_file
from gateway.config.read import read_settings
from gateway.config.settings import Flags
from gateway.service.definition import (
    Owner,
    ServiceDefinition,
    ServiceError,
    ServiceMisuseError,
    define,
    owner,
)
from gateway.service.init_system import InitSystem
from gateway.service.service import Service, init_system
from gateway.service.status import ServiceStatus, guarded_remark

_WIDTH: Final = 79
_SYSTEM_LINES: Final = 20

system_option = click.option(
    "--system",
    is_flag=True,
    help="The service of the system, which runs without a login; needs root.",
)


@click.group("service", cls=UncutGroup)
def service_command() -> None:
    """Run Bulkhead as a service: of launchd on macOS, of systemd on Linux."""


@service_command.command("install")
@click.option("--config", type=click.Path(path_type=Path), help="TOML file [BULKHEAD_CONFIG].")
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    help="Folder for lock, sockets and logs [BULKHEAD_STATE_DIR].",
)
@click.option("--dry-run", is_flag=True, help="Print the definition and the commands instead.")
@system_option
def install(*, config: Path | None, state_dir: Path | None, dry_run: bool, system: bool) -> None:
    """Write the service's definition and start the service.

    An older service is ended in order and replaced, so this is also right after an upgrade. If a
    step fails, the older service is restored.
    """
    with _failures():
        account = _reader(system=system) if dry_run else owner(os.environ, system=system)
        flags = Flags(config=config, state_dir=state_dir)
        try:
            settings = read_settings(flags, os.environ)
        except ConfigError as error:
            raise WrongUseError(str(error)) from error
        path, _ = chosen_file(flags, os.environ)
        if not settings.models and not settings.discovery.discover:
            raise WrongUseError(
                f"The service would have no model to serve: name one in {path}, as in\n"
                '  [models."demo"]\n  path = "demo"'
            )
        file = path if path.exists() else None
        definition = define(account, settings, file, os.environ, system=system)
        if dry_run:
            _rehearse(init_system(account, _say, system=system), definition)
        else:
            # Said first, since it may be why the service can't start.
            remark = guarded_remark(settings, definition, file)
            if sys.platform == "darwin" and remark is not None:
                _say(remark)
            _service(account, system=system).install(definition, settings)


def _verb(name: str, act: Callable[[Service], None], text: str) -> None:
    @service_command.command(name, help=text)
    @system_option
    def verb(*, system: bool) -> None:
        with _failures():
            act(_service(owner(os.environ, system=system), system=system))


_verb("uninstall", Service.uninstall, "End the service and remove its definition.")
_verb("start", Service.start, "Start the installed service.")
_verb("stop", Service.stop, "End the service in order, until the next start, boot or login.")
_verb("restart", Service.restart, "End the service in order and start it, as after an upgrade.")


@service_command.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@system_option
def status(*, as_json: bool, system: bool) -> None:
    """Show the installed service, and whether it runs. Exit status 3: it doesn't run."""
    with _failures():
        reading = _service(_reader(system=system), system=system).status()
    if as_json:
        print_json(reading)
    else:
        _print(reading)
    if reading.pid is None:
        sys.exit(NoGatewayError.exit_code)


@service_command.command("logs")
@click.option("-f", "--follow", is_flag=True, help="Go on with new lines until Ctrl-C.")
@click.option("-n", "--lines", type=click.IntRange(0), default=200, show_default=True)
@system_option
def logs(*, follow: bool, lines: int, system: bool) -> None:
    """Show the system's log of the service (crashes, starts and ends), then the gateway's log.

    `bulkhead logs` prints the gateway's log, too.
    """
    with _failures():
        service = _service(_reader(system=system), system=system)
        log = service.gateway_log()
        for line in service.system_log(_SYSTEM_LINES).splitlines():
            click.echo(f"| {printable(line)}")
        if follow or log.exists():
            print_file(log, LogPrinter(None, as_json=False), lines, None, follow=follow)


def _rehearse(init: InitSystem, definition: ServiceDefinition) -> None:
    click.echo(f"# {init.path}")
    click.echo(init.render(definition).decode().rstrip("\n"))
    click.echo("\n# Then:")
    for line in init.start_commands():
        click.echo(line)


def _service(account: Owner, *, system: bool) -> Service:
    return Service(init_system(account, _say, system=system), _say)


def _reader(*, system: bool) -> Owner:
    """The account for a command that only reads, and so needs no root, even with --system."""
    return owner(os.environ, system=system and os.geteuid() == 0)


def _say(text: str) -> None:
    for line in text.splitlines():
        click.echo(click.wrap_text(printable(line), _WIDTH, subsequent_indent="  "))


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except ServiceMisuseError as error:
        raise WrongUseError(str(error)) from error
    except ServiceError as error:
        raise CommandError(str(error)) from error


def _print(reading: ServiceStatus) -> None:
    if not reading.installed:
        _say(f"No service is installed ({reading.path} doesn't exist).")
        _print_jobs(reading)
        return
    _say(f"Installed: version {reading.installed_version or 'unknown'}, {reading.path}")
    if reading.pid is None:
        doubt = "It doesn't run, or not yet: `bulkhead service logs` tells more."
        _say(doubt if reading.loaded else "It is stopped: `bulkhead service start` starts it.")
    else:
        version = reading.running_version or "unknown"
        _say(f"Running:   version {version}, pid {reading.pid}, {reading.url}")
    _say(f"Its end gets {reading.stop_s} s.")
    _print_jobs(reading)


def _print_jobs(reading: ServiceStatus) -> None:
    """Print all jobs, unless the installed service is the only one. Then print all warnings."""
    if len(reading.jobs) > 1 or (reading.jobs and not reading.installed):
        for job in reading.jobs:
            _say(f"Job:       {job.domain}, {job.path or 'its definition is gone'}")
    for warning in reading.warnings:
        _say(f"Warning: {warning}")
