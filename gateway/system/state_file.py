"""Files of the state folder: replaced as a whole, for this account alone whatever the umask, and
read only if no other account may have written them. Blocks.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

import msgspec
from msgspec import Struct

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=Struct)


def read_state(path: Path, kind: type[T]) -> T | None:
    """The content of a state file. None: it is missing, or can't be read, which is logged."""
    try:
        return msgspec.json.decode(read_file(path), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        logger.warning("%s is ignored: %s", path, error)
        return None


def write_state(path: Path, content: Struct) -> None:
    """Replace a state file. A failure is only logged: a full disk must not stop the gateway."""
    try:
        _replace(path, path.with_suffix(".new"), msgspec.json.encode(content), lasts=False)
    except OSError as error:
        logger.warning("%s can't be written: %s", path, error)


def make_folder(folder: Path) -> None:
    """Make a folder and its parent, for this account alone, if they are missing. Somebody may have
    removed them while the gateway runs.

    Raises OSError.
    """
    for path in (folder.parent, folder):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)


_PRIVATE: Final = 0o600


def write_secret(path: Path, content: bytes) -> None:
    """Replace a file: after a crash or a loss of power it has the old or the new content.

    Raises OSError.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    _replace(path, unfinished, content, lasts=True)
    _keep_name(path.parent)


def open_private(path: str, flags: int) -> int:
    """Opens a file for `open`; one that is made is for this account alone. Raises OSError."""
    return os.open(path, flags, _PRIVATE)


def _replace(path: Path, unfinished: Path, content: bytes, *, lasts: bool) -> None:
    # A file that an earlier process has left may have any mode.
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if os.geteuid() == 0:
                # The gateway that reads the file may run as the folder's owner.
                owner = path.parent.stat()
                os.fchown(descriptor, owner.st_uid, owner.st_gid)
            file.write(content)
            file.flush()
            if lasts:
                os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def read_file(path: Path) -> bytes:
    """Raises: OSError; PermissionError: other accounts may write to the file."""
    with _opened(path) as file:
        if (reason := written_by_others(path, os.fstat(file.fileno()))) is not None:
            raise PermissionError(errno.EACCES, reason, str(path))
        return file.read()


def written_by_others(path: Path, status: os.stat_result) -> str | None:
    """Why another account may have written a file, and what mends it; None: none has. Root may
    read what its users have written, as it does for the gateway of another account.
    """
    uid = os.geteuid()
    if uid != 0 and status.st_uid not in (0, uid):
        return f"it belongs to uid {status.st_uid}, and this process runs as uid {uid}: `chown` it"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may write to it (its mode is {_mode(status)}): `chmod go-w {path}`"
    return None


def read_secret(path: Path) -> bytes:
    """Raises: OSError; PermissionError: other accounts have rights to the file."""
    with _opened(path) as file:
        status = os.fstat(file.fileno())
        if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            reason = f"others have rights to it (its mode is {_mode(status)})"
            raise PermissionError(errno.EACCES, reason, str(path))
        return file.read()


def _mode(status: os.stat_result) -> str:
    return f"{stat.S_IMODE(status.st_mode):04o}"


def _opened(path: Path) -> BinaryIO:
    # Without O_NONBLOCK the open of a named pipe would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    file = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is no file", str(path))
    return file


def _keep_name(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_KINDS: Final = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFDIR: "a folder",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def untrusted(folder: Path) -> str | None:
    """Why other accounts could write to a folder, or why it is no folder; None: they can't, or it
    is missing. The gateway must trust its records there: it ends the processes that they name.
    """
    try:
        status = folder.stat()
    except OSError:
        return None
    if not stat.S_ISDIR(status.st_mode):
        return f"{folder} is no folder: move it away"
    if status.st_uid != os.geteuid():
        return (
            f"{folder} belongs to uid {status.st_uid} and the gateway runs as uid {os.geteuid()}: "
            "choose another folder, or give it to this account with chown"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may write to {folder} (its mode is {_mode(status)}): `chmod go-w` it"
    return None


def no_files(paths: Iterable[Path]) -> Iterator[str]:
    """A sentence for each path at which something other than a file is."""
    for path in paths:
        try:
            mode = path.stat().st_mode
        except OSError:
            continue
        if not stat.S_ISREG(mode):
            kind = _KINDS.get(stat.S_IFMT(mode), "something else")
            yield f"{path} is {kind} where a file belongs: remove it"
