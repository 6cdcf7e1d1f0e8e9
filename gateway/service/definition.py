"""The definition of the service: its account, its command line, the time for its end, its files.

Only the definition sets BULKHEAD_SERVICE, which tells the service's gateway from a gateway that was
started by hand. The interpreter in the definition must still exist after the next upgrade.
"""

from __future__ import annotations

import contextlib
import math
import os
import pwd
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Final

import psutil
from msgspec import Struct

from gateway.config.layers import ConfigError
from gateway.config.read import read_settings
from gateway.config.settings import Flags, GatewaySettings, Settings
from gateway.system.state_dir import StateDir, default_state_dir, lock_holder
from gateway.workers import shutdown_steps


class ServiceError(Exception):
    """An order on the service has failed. The text has the failure, its cause, and a remedy."""


class ServiceMisuseError(ServiceError):
    """The command line is wrong, such as `--system` without root."""


# In Homebrew an upgrade removes PREFIX/Cellar/NAME/VERSION, and PREFIX/opt/NAME links to the new
# version.
_CELLAR: Final = "Cellar"
_KEG_PARTS: Final = 3


def lasting(executable: str = sys.executable) -> str:
    """A path that leads to this interpreter, and after an upgrade to the new version of it."""
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
# The variable with the exit status of a gateway whose configuration has a mistake.
MISTAKE_STATUS: Final = "BULKHEAD_MISTAKE_STATUS"


def service_pid(state_dir: Path) -> int | None:
    """The pid of the service's gateway that uses a state folder; None: there is no such gateway."""
    pid = lock_holder(state_dir)
    try:
        if pid is not None and psutil.Process(pid).environ().get(MARK) == LABEL:
            return pid
    except psutil.Error:
        pass
    return None


class Owner(Struct, frozen=True):
    """An account of this machine."""

    name: str
    uid: int
    gid: int
    home: Path


def owner(environment: MutableMapping[str, str], *, system: bool) -> Owner:
    """The account that the gateway runs as. For a service of the system, `environment` gets the
    account's home instead of root's, and loses root's XDG folders.

    Raises:
        ServiceMisuseError: the command needs root, or must not have it.
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


# Seconds beyond drain and shutdown, to close connections and write records on a busy machine.
_MARGIN_S: Final = 15.0
_PATH: Final = (
    *("/opt/homebrew/bin", "/usr/local/bin"),
    *("/usr/bin", "/bin", "/usr/sbin", "/sbin"),
)
# Variables that change the folders and the hub of models. The service gets these variables, too.
_CARRIED: Final = ("HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT")


class ServiceDefinition(Struct, frozen=True):
    """The definition of a service. `arguments` is the whole command line, with absolute paths.
    `stop_s` is the longest time that an orderly end takes.
    """

    owner: Owner
    system: bool
    arguments: tuple[str, ...]
    environment: dict[str, str]
    state_dir: Path
    stop_s: int


class Installed(Struct, frozen=True):
    """The contents of an installed definition."""

    python: str
    config: Path | None
    state_dir: Path
    stop_s: int

    @classmethod
    def of(cls, arguments: Sequence[str], stop_s: int) -> Installed:
        """Raises: ValueError, IndexError: `define` has not made these arguments."""

        def path(option: str) -> Path:
            return Path(arguments[arguments.index(option) + 1])

        config = path("--config") if "--config" in arguments else None
        return cls(arguments[0], config, path("--state-dir"), stop_s)


def assumed() -> Installed:
    """The definition of a service without options, in place of a definition that can't be read."""
    return Installed(lasting(), None, default_state_dir(), stop_s(GatewaySettings().drain_s))


def stop_s(drain_s: float) -> int:
    """The longest time of an orderly end: drain, whole shutdown of the slowest worker, margin."""
    return math.ceil(drain_s + shutdown_steps.longest_s() + _MARGIN_S)


def define(
    owner: Owner,
    settings: Settings,
    config: Path | None,
    environment: Mapping[str, str],
    *,
    system: bool,
) -> ServiceDefinition:
    """The service of these settings, run by this interpreter."""
    state_dir = StateDir.of(settings.gateway.state_dir)
    serve = ["serve", "--state-dir", str(state_dir.path)]
    if config is not None:
        serve += ["--config", str(config.absolute())]
    python = lasting()
    folders = (str(Path(python).parent), *_PATH)
    return ServiceDefinition(
        owner,
        system,
        # -P keeps out a folder named gateway in the working directory: it is another program's.
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
    """The settings that the service reads at its next start.

    Raises:
        ServiceError: the configuration has mistakes.
    """
    flags = Flags(config=installed.config, state_dir=installed.state_dir)
    try:
        return read_settings(flags, {})
    except ConfigError as error:
        raise ServiceError(str(error)) from error


def unreadable(path: Path, why: object) -> ServiceError:
    """The error for a definition that can't be read, as after a change in an editor."""
    return ServiceError(
        f"{path} can't be read ({why}): `bulkhead service uninstall` removes it, then install "
        "again."
    )


def template(name: str) -> bytes:
    """A template beside this file."""
    return Path(__file__).with_name(name).read_bytes()


class DraftFile:
    """A new version of a file, written beside the file and then put in its place as a whole."""

    def __init__(self, path: Path, content: bytes) -> None:
        """Raises: ServiceError: the draft can't be written."""
        self._path = path
        self._draft = path.with_name(f".{path.name}.new")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._draft.write_bytes(content)
            self._draft.chmod(0o644)
        except OSError as error:
            raise ServiceError(f"{path} can't be written: {error.strerror}.") from error

    def put(self) -> None:
        """Raises: ServiceError: the file can't be replaced."""
        try:
            self._draft.replace(self._path)
        except OSError as error:
            raise ServiceError(f"{self._path} can't be written: {error.strerror}.") from error

    def discard(self) -> None:
        """Remove the draft, if it was not put in place of the file."""
        self._draft.unlink(missing_ok=True)


def make_private_folder(path: Path, owner: Owner) -> None:
    """Make a folder and its missing parents, owned by the account even if root makes them.

    Raises:
        ServiceError: the folder can't be made.
    """
    try:
        for folder in reversed([parent for parent in (path, *path.parents) if not parent.exists()]):
            folder.mkdir(mode=0o700)
            os.chown(folder, owner.uid, owner.gid)
    except OSError as error:
        raise ServiceError(f"The folder {path} can't be made: {error.strerror}.") from error


def make_private_file(path: Path, owner: Owner) -> None:
    """Make an empty file that the account owns, unless the file exists.

    Raises:
        ServiceError: the file can't be made.
    """
    try:
        if not path.exists():
            path.touch(mode=0o600)
            os.chown(path, owner.uid, owner.gid)
    except OSError as error:
        raise ServiceError(f"{path} can't be made: {error.strerror}.") from error
