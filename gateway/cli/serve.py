"""bulkhead serve"""

from __future__ import annotations

import logging
import os
import resource
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NoReturn

import click
import psutil

from gateway import server
from gateway.cli.flags import takes_flags
from gateway.cli.printable import printable
from gateway.config.read import read_configuration
from gateway.config.settings import ConfigError, Flags, Settings
from gateway.config.sizes import parse_size
from gateway.memory.device import recommended_working_set_bytes
from gateway.state_dir import StateDir, StateDirError, default_state_dir
from gateway.supervise.model import Model

logger = logging.getLogger(__name__)

# macOS refuses more than OPEN_MAX (<sys/syslimits.h>).
_MOST_FILES: Final = 10240


@click.command("serve")
@takes_flags
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
)
def command(flags: Flags, log_level: str) -> None:
    """Serve models until SIGTERM or Ctrl-C.

    Prints one line with the address once requests are taken. Logs go to stderr.
    """
    logging.basicConfig(
        level=log_level.upper(),
        format="%(asctime)s %(levelname)s %(message)s",
        stream=sys.stderr,
    )
    try:
        configuration = read_configuration(flags, os.environ)
    except ConfigError as error:
        _fail(error.mistakes, status=2)
    settings = configuration.settings
    if not settings.models:
        _fail(
            ["No model was given. Try the one that comes along: bulkhead serve --model demo"],
            status=2,
        )
    models = [
        Model(model_id, configuration.located[model_id], model)
        for model_id, model in settings.models.items()
    ]
    _raise_file_limit()
    state_dir = StateDir(Path(settings.gateway.state_dir or default_state_dir()))
    try:
        state_dir.acquire()
        listener = server.bind(settings.gateway.host, settings.gateway.port)
    except (StateDirError, server.PortTakenError) as error:
        _fail([str(error)], status=1)
    server.run(models, settings, _budget_bytes(settings, state_dir), state_dir, listener)


def _raise_file_limit() -> None:
    """Each client and each worker takes descriptors, and macOS begins with 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(_MOST_FILES, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        logger.warning("The limit of open files stays at %d: %s", soft, error)


def _budget_bytes(settings: Settings, state_dir: StateDir) -> int:
    """An explicit budget is meant literally; the headroom is taken from the automatic one."""
    total_bytes = psutil.virtual_memory().total
    if settings.memory.budget != "auto":
        return parse_size(settings.memory.budget, total_bytes)
    recommended_bytes = recommended_working_set_bytes(state_dir.device_path) or total_bytes
    return max(0, min(total_bytes, recommended_bytes) - parse_size(settings.memory.headroom))


def _fail(mistakes: Iterable[object], *, status: int) -> NoReturn:
    for mistake in mistakes:
        click.echo(f"bulkhead: {printable(str(mistake))}", err=True)
    sys.exit(status)
