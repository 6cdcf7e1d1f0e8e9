"""The state folder of one gateway: its lock, its paths, and the formats of its small files."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self
from urllib.parse import quote

import platformdirs
import psutil
from msgspec import Struct

from gateway.system.notation import url
from gateway.system.state_file import make_folder, no_files, read_state, untrusted, write_state
from protocol.message import EndpointError, endpoint

_LONGEST_SOCKET_NAME: Final = "9999999999.sock"
# Names of log files that no model can have.
_TAKEN_NAMES: Final = ("gateway", "crash")


class StateDirError(Exception):
    """The state folder can't be used; the text says why and what to do."""


def default_state_dir() -> Path:
    if sys.platform == "darwin":
        return platformdirs.user_data_path("Bulkhead")
    return platformdirs.user_state_path("bulkhead")


def lock_holder(path: Path) -> int | None:
    """The pid of the gateway that uses a state folder; None if none does, or it can't be read."""
    try:
        # To open a named pipe would wait for a writer.
        lock = os.open(path / "gateway.lock", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        pid = os.read(lock, 20).decode("ascii", "replace").strip()
        # The lock is tried only if the process exists: a gateway that is starting must not find
        # the lock taken by this look.
        if not pid.isdigit() or not psutil.pid_exists(int(pid)):
            return None
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return int(pid)
    except OSError:
        return None
    finally:
        os.close(lock)
    return None


def _entries(folder: Path) -> list[Path]:
    """The entries of a folder, none if it is missing."""
    with contextlib.suppress(OSError):
        return sorted(folder.iterdir())
    return []


class StateDir:
    """The state folder, which this process owns while it holds the lock."""

    @classmethod
    def at(cls, path: str | Path | None) -> Self:
        """The state folder of this path; without one, the default folder. Also if the path begins
        with the home of an unknown account, which is a mistake in the configuration.
        """
        try:
            return cls(Path(path or default_state_dir()))
        except RuntimeError:
            return cls(default_state_dir())

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().absolute()
        self.sockets = self.path / "run"
        self.logs = self.path / "logs"
        self.workers = self.path / "workers"
        self.prompts = self.path / "prompts"
        self.lock_path = self.path / "gateway.lock"
        self.longest_socket_path = self.sockets / _LONGEST_SOCKET_NAME
        self.gateway_log_path = self.logs / "gateway.log"
        # Where a service manager sends the gateway's stderr.
        self.crash_log_path = self.logs / "crash.log"
        # Ids of models are quoted in names of files, and quoted ids have no parentheses.
        self.spare_log_path = self.logs / "(spare).log"
        # Of ranks that an agent has started.
        self.ranks_log_path = self.logs / "(ranks).log"
        # `UncleanStarts`, `NextGateway` and `Address`.
        self.starts_path = self.path / "starts.json"
        self.successor_path = self.path / "successor.json"
        self.address_path = self.path / "address.json"
        # The memory that did not come back since the boot.
        self.stranded_path = self.path / "stranded.json"
        # How much memory models took, as measured.
        self.learned_path = self.path / "learned.json"
        # The pulls that have not ended.
        self.pulls_path = self.path / "pulls.json"
        # When models were last used.
        self.used_path = self.path / "used.json"
        # The lines that were typed in `bulkhead chat`.
        self.chat_history_path = self.path / "chat-history"
        # The API keys, as hashes, and the usage under each.
        self.keys_path = self.path / "keys.json"
        self.usage_path = self.path / "usage.json"
        # The operator's own key, as it is.
        self.admin_key_path = self.path / "admin.key"
        # The certificate that the gateway shows, without its key.
        self.served_path = self.path / "served.crt"
        self.mailbox_path = self.path / "mailbox.sqlite"
        self._lock: int | None = None

    def acquire(self) -> None:
        """Create the folder, take the lock, remove sockets of an earlier gateway.

        Raises:
            StateDirError: another gateway uses it, its path is too long or not UTF-8, it can't be
                written, others may write to it, or something other than a file is in a file's
                place.
        """
        try:
            endpoint(self.longest_socket_path)
            for obstacle in self.obstacles():
                raise self._unusable(obstacle)
            for folder in self.folders:
                make_folder(folder)
            # An account that may open a worker's socket sees when the worker starts and ends.
            self.sockets.chmod(0o700)
            self._take_lock()
            for stale in self.sockets.iterdir():
                stale.unlink()
        except EndpointError as error:
            raise self._unusable(str(error)) from error
        except OSError as error:
            raise self._unusable(error.strerror or str(error)) from error

    def inherit(self, lock: int) -> None:
        """Own the folder by the lock of the gateway that is being replaced."""
        self._lock = lock

    @property
    def lock(self) -> int:
        """The descriptor of the lock, while it is held."""
        assert self._lock is not None
        return self._lock

    def sign(self) -> None:
        """Write the pid of this process into the lock."""
        os.ftruncate(self.lock, 0)
        os.pwrite(self.lock, str(os.getpid()).encode(), 0)

    def obstacles(self) -> Iterator[str]:
        """Why the folder can't be used, besides missing rights, in sentences without full stop."""
        for folder in self.folders:
            if (reason := untrusted(folder)) is not None:
                yield reason
        kept = (
            self.starts_path,
            self.stranded_path,
            self.learned_path,
            self.address_path,
            self.pulls_path,
            self.used_path,
            self.successor_path,
        )
        secret = [self.keys_path, self.keys_path.with_suffix(".lock")]
        secret += [self.admin_key_path, self.usage_path, self.served_path]
        files = [self.lock_path, *secret, *kept, *(each.with_suffix(".new") for each in kept)]
        files += [*_entries(self.workers), *self.logs.glob("*.log"), *self.logs.glob("*.log.?")]
        # Everything else among the sockets is removed.
        files += [each for each in _entries(self.sockets) if each.is_dir()]
        yield from no_files(files)

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folder and those in it that exist while it is used."""
        return (self.path, self.sockets, self.logs, self.workers, self.prompts)

    def _unusable(self, reason: str) -> StateDirError:
        return StateDirError(f"The state folder {self.path} can't be used: {reason}.")

    def _take_lock(self) -> None:
        """Raises: OSError: it can't be made; StateDirError: another gateway has it."""
        lock = os.open(self.lock_path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(lock, 100).decode("ascii", "replace").strip() or "unknown"
            os.close(lock)
            raise StateDirError(
                f"Another gateway or agent (pid {holder}) uses the state folder {self.path}: stop "
                "it, or choose another folder with --state-dir."
            ) from None
        self.release()
        self._lock = lock
        os.ftruncate(lock, 0)
        os.write(lock, str(os.getpid()).encode())

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def socket_path(self, incarnation: int) -> Path:
        """The socket to which a worker that is started now connects. Folders that were removed
        meanwhile are made again.

        Raises:
            OSError: they can't be made again, or another gateway has taken them.
        """
        for folder in (self.path, self.sockets, self.logs, self.workers):
            make_folder(folder)
        if self._lock is not None and not self._holds_lock(self._lock):
            try:
                self._take_lock()
            except StateDirError as error:
                raise OSError(errno.EBUSY, str(error)) from error
        return self.sockets / f"{incarnation}.sock"

    def rank_socket_path(self, incarnation: int) -> Path:
        """The socket to which the other ranks of that worker connect. Call `socket_path` first."""
        return self.sockets / f"{incarnation}.rank"

    def _holds_lock(self, lock: int) -> bool:
        """Whether the lock is still the file that other gateways look for."""
        try:
            return os.path.samestat(os.fstat(lock), self.lock_path.stat())
        except FileNotFoundError:
            return False

    def log_path(self, model_id: str) -> Path:
        """The log of a model, whose id may contain `/`."""
        name = quote(model_id, safe=" ")
        # In any case, as file names on macOS ignore it.
        if name.lower() in _TAKEN_NAMES:
            name = f"%{ord(name[0]):02X}{name[1:]}"
        return self.logs / f"{name}.log"

    @property
    def own_logs(self) -> tuple[Path, ...]:
        """The logs that belong to no model."""
        return (
            self.gateway_log_path,
            self.crash_log_path,
            self.spare_log_path,
            self.ranks_log_path,
        )


class Address(Struct, frozen=True):
    """Where the gateway that has the lock is reached. `certificate` is a file with the certificate
    that it shows now, None for plain HTTP.
    """

    url: str
    pid: int
    certificate: str | None = None


class UncleanStarts(Struct, frozen=True):
    """Unix times, in seconds, of the starts since the last orderly end."""

    at: tuple[float, ...] = ()


class NextGateway(Struct, frozen=True):
    """`python` is the interpreter that starts the next gateway. No request can name it: only an
    account that may write to the state folder may have programs run as the gateway's account.
    """

    python: str | None = None


# A gateway may listen on all addresses, but a client needs one.
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104


def near_url(host: str, port: int, *, tls: bool) -> str:
    """The URL by which a program on this machine reaches a gateway that listens there."""
    return url(_EVERYWHERE.get(host, host), port, tls=tls)


def write_address(state_dir: StateDir, address: Address) -> None:
    write_state(state_dir.address_path, address)


def running_address(state_dir: StateDir) -> Address | None:
    """The address of the gateway that has the folder's lock; None if none has it."""
    holder = lock_holder(state_dir.path)
    if holder is None or not state_dir.address_path.exists():
        return None
    address = read_state(state_dir.address_path, Address)
    return address if address is not None and address.pid == holder else None
