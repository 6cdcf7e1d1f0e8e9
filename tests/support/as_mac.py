"""A Mac as far as Linux can show one: `pytest -p tests.support.as_mac`.

Temporary folders lie behind links and have long paths, `/proc` isn't there for the tests and their
helpers, nor are Linux's functions of `os`, `resource` and `psutil`, nor GNU's programs, and zombies
take no signal. Gateways and workers are Linux's still, as are programs that a test starts: those
meet paths and programs alone. What is Linux's own is skipped, and the documents' commands are run
as typed into zsh.
"""

from __future__ import annotations

import atexit
import builtins
import io
import os
import resource
import shutil
import socket
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any, Final

import psutil
import pytest

from protocol import message_base
from tests.support import folders, platforms

_TESTS: Final = tuple(f"{Path(__file__).parents[2] / room}/" for room in ("tests", "bench"))
_OURSELVES: Final = str(Path(__file__))
_LIBRARY: Final = (sysconfig.get_path("stdlib"), "<frozen")
_PACKAGES: Final = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib")})

# 60 characters, as /var/folders has on a Mac, of which /var is a link to /private/var.
_LONG: Final = 60
_SOCKET_PATH: Final = 103
# By name, what a Mac has no program for. /usr/bin has the rest as well, so it is linked anew.
_NO_PROGRAMS: Final = (
    *("timeout", "setsid", "setpriv", "nproc", "prlimit", "taskset", "ionice", "chrt", "unshare"),
    *("numfmt", "stdbuf", "tac", "flock", "strace", "ip", "ss", "free", "systemctl", "journalctl"),
    *("loginctl", "systemd-run", "systemd-analyze"),
)
_READS: Final = (
    *((builtins, "open"), (io, "open"), (os, "open"), (os, "listdir"), (os, "scandir")),
    *((os, "stat"), (os, "lstat"), (os, "readlink")),
)
_LINUX: Final = (
    *((os, name) for name in ("waitid", "pidfd_open", "eventfd", "memfd_create", "pipe2")),
    *((os, name) for name in ("posix_fadvise", "posix_fallocate", "copy_file_range", "getresuid")),
    *((os, name) for name in ("sched_getaffinity", "sched_setaffinity", "sched_setscheduler")),
    (resource, "prlimit"),
    *((psutil.Process, name) for name in ("rlimit", "cpu_affinity", "io_counters", "ionice")),
    *((psutil.Process, name) for name in ("cpu_num", "memory_maps")),
)


# By name, and why.
_MACS_ALONE: Final = {
    "test_zeromq_binds_the_longest_path_and_no_longer_one": "ZeroMQ's bound here is Linux's",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if reason := _MACS_ALONE.get(item.name):
            item.add_marker(pytest.mark.skip(reason=f"only a Mac shows this: {reason}"))


def pytest_configure() -> None:
    base = Path(tempfile.mkdtemp(prefix="m", dir="/tmp"))
    base.chmod(0o755)
    # Behind what others register later, which may lie in it.
    atexit.register(shutil.rmtree, base, ignore_errors=True)
    folders.SHORT = str(_behind_link(base, "tmp"))  # type: ignore[misc]
    room = _LONG - len(str(base / "var" / "folders" / "T")) - 1
    temporary = _behind_link(base, "var") / "folders" / ("x" * room) / "T"
    temporary.mkdir(parents=True)
    assert len(str(temporary)) == _LONG
    os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
    os.environ["PATH"] = _path_of_a_mac(base / "bin")


def _behind_link(base: Path, name: str) -> Path:
    (base / "private" / name).mkdir(parents=True)
    (base / name).symlink_to(base / "private" / name)
    return base / name


def _path_of_a_mac(links: Path) -> str:
    """PATH, where folders that have programs of Linux are taken place of by links to the rest."""
    path = []
    for number, folder in enumerate(map(Path, os.environ["PATH"].split(os.pathsep))):
        if any((folder / name).exists() for name in _NO_PROGRAMS):
            rest = links / str(number)
            rest.mkdir(parents=True)
            for program in folder.iterdir():
                if program.name not in _NO_PROGRAMS:
                    (rest / program.name).symlink_to(program)
            folder = rest
        path.append(str(folder))
    return os.pathsep.join(path)


def _by_tests() -> bool:
    """Whether the caller, the standard library aside, is a test or a helper of one."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file != _OURSELVES and (not file.startswith(_LIBRARY) or file.startswith(_PACKAGES)):
            return file.startswith(_TESTS)
        frame = frame.f_back
    return False


def _without_proc(read: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(read)
    def checked(*arguments: Any, **named: Any) -> Any:
        path = arguments[0] if arguments else None
        asked = os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""
        if f"{asked}/".startswith("/proc/") and _by_tests():
            raise FileNotFoundError(2, "A Mac has no /proc", asked)
        return read(*arguments, **named)

    return checked


def _short(use: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(use)
    def checked(bound: socket.socket, address: Any) -> Any:
        if bound.family == socket.AF_UNIX and len(os.fsencode(address)) > _SOCKET_PATH:
            raise OSError(f"A Mac's paths of sockets have at most {_SOCKET_PATH} bytes: {address}")
        return use(bound, address)

    return checked


def _absent(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def checked(*arguments: Any, **named: Any) -> Any:
        if _by_tests():
            raise AttributeError(f"A Mac has no {function.__name__}")
        return function(*arguments, **named)

    return checked


def _is_zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _of_the_living(kill: Callable[[int, int], None]) -> Callable[[int, int], None]:
    @wraps(kill)
    def checked(pid: int, number: int) -> None:
        if _by_tests() and pid > 0 and _is_zombie(pid):
            raise ProcessLookupError(3, "A Mac's zombies can't be signalled")
        kill(pid, number)

    return checked


platforms.LINUX = False
os.kill = _of_the_living(os.kill)
message_base.MAX_SOCKET_PATH_BYTES = _SOCKET_PATH  # type: ignore[misc]
for owner, name in _READS:
    setattr(owner, name, _without_proc(getattr(owner, name)))
for name in ("bind", "connect"):
    setattr(socket.socket, name, _short(getattr(socket.socket, name)))
for owner, name in _LINUX:
    if hasattr(owner, name):
        setattr(owner, name, _absent(getattr(owner, name)))
