"""What the service is: whose it is, what it runs, how long its end may take, and its files.

A variable that only the definition sets tells the service's gateway from one that was started by
hand. The interpreter that it names has to be there after the next upgrade, too.
"""

from __future__ import annotations

import contextlib
import math
import os
import pwd
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Final

import psutil
from msgspec import Struct

from gateway.config.layers import ConfigError
from gateway.config.read import read_settings
from gateway.config.settings import Flags, GatewaySettings, Settings
from gateway.service.command import ServiceError, ServiceMisuseError
from gateway.system.state_dir import StateDir, default_state_dir, lock_holder
from gateway.workers import ladder

# Homebrew: PREFIX/Cellar/NAME/VERSION goes with an upgrade, and PREFIX/opt/NAME leads to the new.
_CELLAR: Final = "Cellar"
_KEG_PARTS: Final = 3


def lasting(executable: str = sys.executable) -> str:
    """A path to this interpreter, or to the one that takes its place."""
    parts = Path(executable).parts
    if _CELLAR not in parts:
        return executable
    at = parts.index(_CELLAR)
    keg, within = parts[: at + _KEG_PARTS], parts[at + _KEG_PARTS :]
    link = Path(*parts[:at], "opt", *parts[at + 1 : at + 2])
    with contextlib.suppress(OSError):
        if within and link.samefile(Path(*keg)):
            return str(link.joinpath(*within))
    return executable


LABEL: Final = "io.bulkhead.gateway"
MARK: Final = "BULKHEAD_SERVICE"
# With what exit status a gateway ends that has a mistake in its configuration.
MISTAKE_STATUS: Final = "BULKHEAD_MISTAKE_STATUS"


def service_pid(state_dir: Path) -> int | None:
    """The pid of the gateway that uses a state folder, if the service manager has started it."""
    pid = lock_holder(state_dir)
    try:
        if pid is not None and psutil.Process(pid).environ().get(MARK) == LABEL:
            return pid
    except psutil.Error:
        pass
    return None


class Owner(Struct, frozen=True):
    """An account."""

    name: str
    uid: int
    gid: int
    home: Path


def owner(environment: MutableMapping[str, str], *, system: bool) -> Owner:
    """The account that the gateway runs as. Its folders go before those of root from here on.

    Raises:
        ServiceMisuseError: the order needs root, or must not have it.
    """
    root = os.geteuid() == 0
    caller = environment.get("SUDO_USER")
    if not system:
        if root and caller not in (None, "root"):
            raise ServiceMisuseError(
                "With sudo this would become root's own service: leave sudo out, or add --system "
                "for one that runs without anybody logged in."
            )
        return _account(pwd.getpwuid(os.geteuid()), Path.home())
    if not root:
        raise ServiceMisuseError(
            "A service of the system needs root: call it as `sudo bulkhead service ... --system` "
            "(with the whole path of bulkhead, if sudo doesn't find it)."
        )
    entry = pwd.getpwnam(caller) if caller else pwd.getpwuid(0)
    account = _account(entry, Path(entry.pw_dir))
    environment["HOME"] = str(account.home)
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"):
        environment.pop(name, None)
    return account


def _account(entry: pwd.struct_passwd, home: Path) -> Owner:
    return Owner(entry.pw_name, entry.pw_uid, entry.pw_gid, home)


# Beyond drain and ladder: closing connections, writing records, a busy machine.
_MARGIN_S: Final = 15.0
_PATH: Final = (
    *("/opt/homebrew/bin", "/usr/local/bin"),
    *("/usr/bin", "/bin", "/usr/sbin", "/sbin"),
)
# Where models are looked for differs with these.
_CARRIED: Final = ("HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT")


class ServiceDefinition(Struct, frozen=True):
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
) -> ServiceDefinition:
    """The service of these settings, run by the interpreter that runs this."""
    state_dir = StateDir(Path(settings.gateway.state_dir or default_state_dir()))
    serve = ["serve", "--state-dir", str(state_dir.path)]
    if config is not None:
        serve += ["--config", str(config.absolute())]
    python = lasting()
    folders = (str(Path(python).parent), *_PATH)
    return ServiceDefinition(
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


def template(name: str) -> bytes:
    """A file of deploy/."""
    return Path(__file__).with_name(name).read_bytes()


class DraftFile:
    """A file that is written already, and takes its place later, whole."""

    def __init__(self, path: Path, content: bytes) -> None:
        """Raises: ServiceError if it can't be written."""
        self._path = path
        self._draft = path.with_name(f".{path.name}.new")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._draft.write_bytes(content)
            self._draft.chmod(0o644)
        except OSError as error:
            raise ServiceError(f"{path} can't be written: {error.strerror}.") from error

    def put(self) -> None:
        """Raises: ServiceError if it can't take its place."""
        try:
            self._draft.replace(self._path)
        except OSError as error:
            raise ServiceError(f"{self._path} can't be written: {error.strerror}.") from error

    def discard(self) -> None:
        """Unless it has taken its place."""
        self._draft.unlink(missing_ok=True)


def make_private_folder(path: Path, owner: Owner) -> None:
    """With what is missing above it: the account's own, also if root makes it.

    Raises:
        ServiceError: it can't be made.
    """
    try:
        for folder in reversed([each for each in (path, *path.parents) if not each.exists()]):
            folder.mkdir(mode=0o700)
            os.chown(folder, owner.uid, owner.gid)
    except OSError as error:
        raise ServiceError(f"The folder {path} can't be made: {error.strerror}.") from error


def make_private_file(path: Path, owner: Owner) -> None:
    """Empty, unless it is there; the account's own.

    Raises:
        ServiceError: it can't be made.
    """
    try:
        if not path.exists():
            path.touch(mode=0o600)
            os.chown(path, owner.uid, owner.gid)
    except OSError as error:
        raise ServiceError(f"{path} can't be made: {error.strerror}.") from error
