"""The state folder: lock, sockets and logs of one gateway."""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path
from typing import Final
from urllib.parse import quote

import platformdirs
import psutil

from protocol.channel import EndpointError, endpoint

_LONGEST_SOCKET_NAME: Final = "9999999999.sock"
# Log files that are no model's.
_TAKEN_NAMES: Final = ("gateway", "crash")


class StateDirError(Exception):
    """The state folder can't be used; the text says why and what to do."""


def default_state_dir() -> Path:
    if sys.platform == "darwin":
        return platformdirs.user_data_path("Bulkhead")
    return platformdirs.user_state_path("bulkhead")


def lock_holder(path: Path) -> int | None:
    """The pid of the gateway that uses a state folder; None if none does, or it can't be told."""
    try:
        lock = os.open(path / "gateway.lock", os.O_RDONLY)
    except OSError:
        return None
    try:
        pid = os.read(lock, 20).decode("ascii", "replace").strip()
        # A lock is tried only against a process that exists: a gateway that starts just now must
        # not find the lock taken by whoever looks.
        if not pid.isdigit() or not psutil.pid_exists(int(pid)):
            return None
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return int(pid)
    finally:
        os.close(lock)
    return None


class StateDir:
    """Owns a folder while the lock is held."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().absolute()
        self.sockets = self.path / "run"
        self.logs = self.path / "logs"
        self.workers = self.path / "workers"
        self._lock: int | None = None

    def acquire(self) -> None:
        """Create the folder, take the lock, remove sockets of an earlier gateway.

        Raises:
            StateDirError: another gateway uses it, its path is too long, or it can't be written.
        """
        try:
            endpoint(self.longest_socket_path)
        except EndpointError as error:
            raise StateDirError(f"The state folder {self.path} can't be used: {error}.") from error
        try:
            for folder in (self.path, self.sockets, self.logs, self.workers):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Whoever may open a worker's socket may speak for the gateway.
            self.sockets.chmod(0o700)
            self._lock = os.open(self.lock_path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StateDirError(
                f"The state folder {self.path} can't be used: {error.strerror}."
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._lock, 100).decode("ascii", "replace").strip() or "unknown"
            raise StateDirError(
                f"Another gateway (pid {holder}) uses the state folder {self.path}: stop it, or "
                "choose another folder with --state-dir."
            ) from None
        os.ftruncate(self._lock, 0)
        os.write(self._lock, str(os.getpid()).encode())
        try:
            for stale in self.sockets.iterdir():
                stale.unlink()
        except OSError as error:
            raise StateDirError(
                f"The state folder {self.path} can't be used: {error.strerror}."
            ) from error

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def socket_path(self, incarnation: int) -> Path:
        """Raises OSError if its folder was removed and can't be made again."""
        self.sockets.mkdir(mode=0o700, exist_ok=True)
        return self.sockets / f"{incarnation}.sock"

    @property
    def longest_socket_path(self) -> Path:
        return self.sockets / _LONGEST_SOCKET_NAME

    @property
    def lock_path(self) -> Path:
        return self.path / "gateway.lock"

    def log_path(self, model_id: str) -> Path:
        """Ids may contain `/`."""
        name = quote(model_id, safe=" ")
        # Whatever their case, since macOS takes no notice of it.
        if name.lower() in _TAKEN_NAMES:
            name = f"%{ord(name[0]):02X}{name[1:]}"
        return self.logs / f"{name}.log"

    @property
    def gateway_log_path(self) -> Path:
        return self.logs / "gateway.log"

    @property
    def crash_log_path(self) -> Path:
        """Where a service manager sends the gateway's stderr."""
        return self.logs / "crash.log"

    @property
    def own_logs(self) -> tuple[Path, ...]:
        """The logs that are no model's."""
        return self.gateway_log_path, self.crash_log_path, self.spare_log_path

    @property
    def device_path(self) -> Path:
        """What MLX says of the device."""
        return self.path / "device.json"

    @property
    def starts_path(self) -> Path:
        """The starts since the last orderly end."""
        return self.path / "starts.json"

    @property
    def stranded_path(self) -> Path:
        """What did not come back since the boot."""
        return self.path / "stranded.json"

    @property
    def learned_path(self) -> Path:
        """What models took, as measured."""
        return self.path / "learned.json"

    @property
    def spare_log_path(self) -> Path:
        """No model's: quoted ids have no parentheses."""
        return self.logs / "(spare).log"
