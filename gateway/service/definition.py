"""What the service runs, and the time that its end gets."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from gateway.config.mistakes import ConfigError
from gateway.config.read import read_settings
from gateway.config.settings import Flags, GatewaySettings, Settings
from gateway.service.failure import ServiceError
from gateway.service.interpreter import lasting
from gateway.service.mark import LABEL, MARK
from gateway.service.owner import Owner
from gateway.system.state_dir import StateDir, default_state_dir
from gateway.workers import ladder

# Beyond drain and ladder: closing connections, writing records, a busy machine.
_MARGIN_S: Final = 15.0
_PATH: Final = (
    *("/opt/homebrew/bin", "/usr/local/bin"),
    *("/usr/bin", "/bin", "/usr/sbin", "/sbin"),
)
# Where models are looked for differs with these.
_CARRIED: Final = ("HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT")


class Definition(Struct, frozen=True):
    """`arguments` is the whole command line, all paths absolute; `stop_s` how long an orderly end
    may take.
    """

    owner: Owner
    system: bool
    arguments: tuple[str, ...]
    environment: dict[str, str]
    state_dir: Path
    stop_s: int


class Installed(Struct, frozen=True):
    """What an installed definition says."""

    python: str
    config: Path | None
    state_dir: Path
    stop_s: int


def assumed() -> Installed:
    """What a definition says that can't be read, if it was written without options."""
    return Installed(lasting(), None, default_state_dir(), stop_s(GatewaySettings().drain_s))


def stop_s(drain_s: float) -> int:
    """The longest orderly end: the drain, then the slowest worker's whole ladder."""
    return math.ceil(drain_s + ladder.longest_s() + _MARGIN_S)


def define(
    owner: Owner,
    settings: Settings,
    config: Path | None,
    environment: Mapping[str, str],
    *,
    system: bool,
) -> Definition:
    """The service of these settings, run by the interpreter that runs this."""
    state_dir = StateDir(Path(settings.gateway.state_dir or default_state_dir()))
    serve = ["serve", "--state-dir", str(state_dir.path)]
    if config is not None:
        serve += ["--config", str(config.absolute())]
    python = lasting()
    folders = (str(Path(python).parent), *_PATH)
    return Definition(
        owner,
        system,
        # -P: a folder called gateway in the working directory is none of ours.
        (python, "-P", "-m", "gateway", *serve),
        {
            "HOME": str(owner.home),
            "PATH": os.pathsep.join(folders),
            MARK: LABEL,
            "BULKHEAD_LOG": "file",
            **{name: environment[name] for name in _CARRIED if environment.get(name)},
        },
        state_dir.path,
        stop_s(settings.gateway.drain_s),
    )


def settings_of(installed: Installed) -> Settings:
    """As the service will read them.

    Raises:
        ServiceError: they have mistakes.
    """
    flags = Flags(config=installed.config, state_dir=installed.state_dir)
    try:
        return read_settings(flags, {})
    except ConfigError as error:
        raise ServiceError(str(error)) from error


def option(arguments: list[str], name: str) -> Path | None:
    """The value of an option in a command line of `define`."""
    return Path(arguments[arguments.index(name) + 1]) if name in arguments else None
