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

import psutil
from msgspec import Struct
from platformdirs import user_data_path, user_state_path

from gateway.system.notation import url
from gateway.system.state_file import (
    make_folder,
    no_files,
    read_state,
    untrusted,
    write_state,
    written_by_others,
)
from protocol.message_base import EndpointError, endpoint

_LONGEST_SOCKET_NAME: Final = "9999999999.sock"
# Names of the gateway's own log files, which no model's log may have.
_TAKEN_NAMES: Final = ("gateway", "crash")


class StateDirError(Exception):
    """The state folder can't be used. The text says why and what to do."""


def default_state_dir() -> Path:
    on_mac = sys.platform == "darwin"
    return user_data_path("Bulkhead") if on_mac else user_state_path("bulkhead")


def lock_holder(path: Path) -> int | None:
    """The pid of the gateway that holds the lock; None: none does, or it can't be read."""
    try:
        # Without O_NONBLOCK the open of a named pipe would wait for a writer.
        lock = os.open(path / "gateway.lock", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        pid = os.read(lock, 20).decode("ascii", "replace").strip()
        # Try the lock only if the process exists: a gateway that is starting at this moment must
        # not find the lock taken by this look.
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
    def of(cls, path: str | Path | None) -> Self:
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
        # No model has a log of this name: ids are quoted, and quoted ids have no parentheses.
        self.spare_log_path = self.logs / "(spare).log"
        # The files with `UncleanStarts`, `NextGateway` and `Address`.
        self.starts_path = self.path / "starts.json"
        self.successor_path = self.path / "successor.json"
        self.address_path = self.path / "address.json"
        # The memory that is stranded since the boot.
        self.stranded_path = self.path / "stranded.json"
        # How much memory models took, by measurements.
        self.learned_path = self.path / "learned.json"
        # How often the prompt caches of models were found to be wrong.
        self.cache_failures_path = self.path / "cache-failures.json"
        # The pulls that have not ended.
        self.pulls_path = self.path / "pulls.json"
        # The reports of checks of models.
        self.checks_path = self.path / "checks.json"
        # Which of the models that were found on disks has which name.
        self.names_path = self.path / "names.json"
        # When models were last used.
        self.used_path = self.path / "used.json"
        # The last hour and day.
        self.history_path = self.path / "history.json"
        # The lines that were typed in `bulkhead chat`.
        self.chat_history_path = self.path / "chat-history"
        # The API keys, as hashes, and the usage under each.
        self.keys_path = self.path / "keys.json"
        self.usage_path = self.path / "usage.json"
        # The admin key, in plain text.
        self.admin_key_path = self.path / "admin.key"
        # Leads a browser to the page, with a code that works once.
        self.page_path = self.path / "page.html"
        # The certificate that the gateway shows, without its key.
        self.served_path = self.path / "served.crt"
        self.mailbox_path = self.path / "mailbox.sqlite"
        self._lock: int | None = None

    def acquire(self) -> None:
        """Create the folder, take the lock, remove sockets of an earlier gateway.

        Raises:
            StateDirError: another gateway uses the folder; its path is too long or not UTF-8; it
                can't be written; other accounts may write to it; or a folder, a pipe or the like is
                in the place of a file.
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
        """Own the folder with the descriptor `lock` of the gateway that this one replaces."""
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
        """Why the folder can't be used, except missing rights, in sentences without full stop."""
        for folder in self.folders:
            if (reason := untrusted(folder)) is not None:
                yield reason
        written = (
            self.starts_path,
            self.stranded_path,
            self.learned_path,
            self.cache_failures_path,
            self.address_path,
            self.pulls_path,
            self.checks_path,
            self.names_path,
            self.used_path,
            self.history_path,
            self.successor_path,
        )
        secret = [self.keys_path, self.keys_path.with_suffix(".lock")]
        secret += [self.admin_key_path, self.usage_path, self.served_path, self.page_path]
        files = [self.lock_path, *secret, *written, *(path.with_suffix(".new") for path in written)]
        files += [*_entries(self.workers), *self.logs.glob("*.log"), *self.logs.glob("*.log.?")]
        # `acquire` removes everything else in the folder of sockets.
        files += [entry for entry in _entries(self.sockets) if entry.is_dir()]
        yield from no_files(files)

    @property
    def folders(self) -> tuple[Path, ...]:
        """The state folder, and the folders in it that exist while it is used."""
        return (self.path, self.sockets, self.logs, self.workers, self.prompts)

    def _unusable(self, reason: str) -> StateDirError:
        return StateDirError(f"The state folder {self.path} can't be used: {reason}.")

    def _take_lock(self) -> None:
        """Raises: OSError: the lock can't be made; StateDirError: another process has it."""
        lock = os.open(self.lock_path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            # One that was there may have any mode.
            os.fchmod(lock, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(lock, 100).decode("ascii", "replace").strip() or "unknown"
            os.close(lock)
            raise StateDirError(
                f"Another gateway (pid {holder}) uses the state folder {self.path}: stop it, "
                "or choose another folder with --state-dir."
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
        """The socket for the worker of this incarnation, which is started now. Folders that were
        removed are made again.

        Raises:
            OSError: a folder can't be made again, or another gateway has taken the lock.
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
        """The socket for the other ranks of this incarnation. Call `socket_path` first."""
        return self.sockets / f"{incarnation}.rank"

    def _holds_lock(self, lock: int) -> bool:
        """Whether the open lock is still the file that other gateways would lock."""
        try:
            return os.path.samestat(os.fstat(lock), self.lock_path.stat())
        except FileNotFoundError:
            return False

    def log_path(self, model_id: str) -> Path:
        """The log of a model. Its name is the id, quoted, since ids may contain `/`."""
        name = quote(model_id, safe=" ")
        # Compare without case, since file names on macOS ignore case.
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
        )


class Address(Struct, frozen=True):
    """The address of the gateway that has the lock. `certificate` is the path of a file with the
    certificate that the gateway shows now; None for plain HTTP.
    """

    url: str
    pid: int
    certificate: str | None = None


class UncleanStarts(Struct, frozen=True):
    """Unix times, in seconds, of the latest starts since the last orderly end."""

    at: tuple[float, ...] = ()


class NextGateway(Struct, frozen=True):
    """`python` is the interpreter that starts the next gateway. No request can name it: only an
    account that may write to the state folder chooses what runs as the gateway's account.
    """

    python: str | None = None


# A gateway may listen on all addresses, but a client needs one of them.
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104


def near_url(host: str, port: int, *, tls: bool) -> str:
    """The URL for programs on this machine of a gateway that listens at `host` and `port`."""
    return url(_EVERYWHERE.get(host, host), port, tls=tls)


def write_address(state_dir: StateDir, address: Address) -> None:
    write_state(state_dir.address_path, address)


def running_address(state_dir: StateDir) -> Address | None:
    """The address of the gateway that has the folder's lock. None: no gateway has the lock, or its
    address isn't written yet.

    Raises:
        StateDirError: another account may have written the address, to get the admin key.
    """
    holder, path = lock_holder(state_dir.path), state_dir.address_path
    if holder is None or not path.exists():
        return None
    if (reason := written_by_others(path, path.stat())) is not None:
        raise StateDirError(f"{path} isn't read: {reason}.")
    address = read_state(path, Address)
    return address if address is not None and address.pid == holder else None
