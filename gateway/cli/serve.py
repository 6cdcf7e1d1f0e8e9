"""bulkhead serve"""

from __future__ import annotations

import faulthandler
import logging
import os
import resource
import sys
from pathlib import Path
from typing import Final, NoReturn

import click
import psutil

from gateway import server
from gateway.api.local_only import LOOPBACK_NAMES
from gateway.config.models import check_allowed, locate
from gateway.config.read import read_settings
from gateway.config.settings import ConfigError, Flags, Settings
from gateway.config.sizes import parse_size
from gateway.memory.device import recommended_working_set_bytes
from gateway.service.crash_log import bound
from gateway.service.mark import LABEL, MARK, service_pid
from gateway.state_dir import StateDir, StateDirError, crash_log_path, default_state_dir
from gateway.supervise.model import Model

logger = logging.getLogger(__name__)

# macOS refuses more than OPEN_MAX (<sys/syslimits.h>).
_MOST_FILES: Final = 10240


@click.command("serve")
@click.option("--config", type=click.Path(path_type=Path), help="TOML file [BULKHEAD_CONFIG].")
@click.option("--host", help="Loopback address to listen on [127.0.0.1].")
@click.option("--port", type=click.IntRange(0, 65535), help="Port; 0 takes a free one [8642].")
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    help="Folder for lock, sockets and logs [BULKHEAD_STATE_DIR].",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="PATH_OR_REPO[=ID]",
    help="A model folder, a repository in the Hugging Face cache, or demo. Repeatable.",
)
@click.option("--memory-budget", metavar="SIZE", help="Bytes, 12GB or 75%.")
@click.option("--spare", type=click.IntRange(0), help="Workers kept ready for the next load.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
)
def command(log_level: str, **flags: object) -> None:
    """Serve models until SIGTERM or Ctrl-C.

    Prints one line with the address once requests are taken. Logs go to stderr.
    """
    logging.basicConfig(
        level=log_level.upper(),
        format="%(asctime)s %(levelname)s %(message)s",
        stream=sys.stderr,
    )
    # systemd's watchdog ends a gateway whose loop is stuck by SIGABRT: the log will say where.
    faulthandler.enable(2)
    try:
        settings = read_settings(Flags(**flags), os.environ)  # type: ignore[arg-type]
    except ConfigError as error:
        _fail(error.mistakes, status=2)
    models = _models(settings)
    host = settings.gateway.host
    if host not in LOOPBACK_NAMES:
        _fail(
            [
                f"The host {host} is not loopback: without API keys the gateway listens on "
                "127.0.0.1, ::1 or localhost only."
            ],
            status=2,
        )
    _raise_file_limit()
    state_dir = StateDir(Path(settings.gateway.state_dir or default_state_dir()))
    bound(crash_log_path(state_dir.path))
    _leave_to_another_service(state_dir)
    try:
        state_dir.acquire()
        listener = server.bind(host, settings.gateway.port)
    except (StateDirError, server.PortTakenError) as error:
        _fail([str(error)], status=1)
    server.run(models, settings, _budget_bytes(settings, state_dir), state_dir, listener)


def _leave_to_another_service(state_dir: StateDir) -> None:
    """launchd may start an agent twice, in the background session and at the screen's login: with
    exit status 0 the second one isn't tried again and again.
    """
    pid = service_pid(state_dir.path) if os.environ.get(MARK) == LABEL else None
    if pid is not None:
        click.echo(f"bulkhead: The service runs already (pid {pid}).", err=True)
        sys.exit(0)


def _models(settings: Settings) -> list[Model]:
    if not settings.models:
        _fail(
            ["No model was given. Try the one that comes along: bulkhead serve --model demo"],
            status=2,
        )
    models = []
    mistakes = []
    for model_id, model in settings.models.items():
        try:
            located = locate(model.path)
            if settings.gateway.allow:
                check_allowed(located, settings.gateway.allow)
            models.append(Model(model_id, located, model))
        except ValueError as error:
            mistakes.append(f"{model_id}: {error}")
    if mistakes:
        _fail(mistakes, status=2)
    return models


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


def _fail(mistakes: list[str], *, status: int) -> NoReturn:
    for mistake in mistakes:
        click.echo(f"bulkhead: {mistake}", err=True)
    sys.exit(status)
