"""The payloads of blocks in files, one for each block. A file is complete, or it isn't there."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import secrets
import stat
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import xxhash
from msgspec import Struct

KEY_BYTES: Final = 16


class Entry(Struct, frozen=True):
    """A block without its payload. The block's tokens, which follow those of its parent, are
    `token_ids`, packed by `protocol.message_base`.

    The keys of block and parent have `KEY_BYTES` bytes. A key is a digest of all that the payload
    depends on: model, format, and every token up to the end of the block. A parent need not be
    stored: the parent of the first block is the root, which stands for the model alone. Only
    workers know the meaning of `kind` and payload.
    """

    key: bytes
    parent: bytes
    token_ids: bytes
    payload_bytes: int
    kind: str


MAGIC: Final = b"BHPROMPT"
FORMAT_VERSION: Final = 1

# The magic number, the version, the key, the payload's length, the checksum.
_HEADER: Final = struct.Struct("<8sI16sQ16s")
# The block's row in the index is part of the checksum. So a row that is damaged, or belongs to
# another block, doesn't match the payload.
_CHECKED: Final = struct.Struct("<8sI16s16sQII")
# Calls on macOS that read or write 2 GiB fail.
_CHUNK_BYTES: Final = 1 << 30
# APFS and ext4 allocate blocks of this size.
_DISK_BLOCK_BYTES: Final = 4096
_UNFIT_ERRORS: Final = {
    errno.ENOENT: "it is missing",
    errno.ENOTDIR: "it is missing",
    errno.ELOOP: "it is a link",
    errno.EMLINK: "it is a link",
    errno.ENXIO: "it is no file",
    errno.EOPNOTSUPP: "it is no file",
    errno.EACCES: "it may not be read",
}


class UnfitError(Exception):
    """A file doesn't hold the payload of its block. The text says why."""


class AlteredError(UnfitError):
    """A file has the length of its block's payload, but other bytes."""


def disk_bytes(payload_bytes: int) -> int:
    """The size of a payload's file, in whole blocks of the disk."""
    return blocks_of(_HEADER.size + payload_bytes)


def blocks_of(file_bytes: int) -> int:
    return -(-file_bytes // _DISK_BLOCK_BYTES) * _DISK_BLOCK_BYTES


class Payloads:
    """The files below one folder. They are in 256 folders, which are named by the first byte of
    keys, and in a folder for unfinished files.

    With 200,000 files each of the 256 folders has about 780.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._unfinished = folder / "unfinished"
        self._numbers = itertools.count()

    def path(self, key: bytes) -> Path:
        name = key.hex()
        return self._folder / name[:2] / name

    def read(self, entry: Entry) -> bytes:
        """A block's payload.

        Raises:
            UnfitError: the file is missing, torn, foreign, of another version or another block's.
            OSError: the file can't be read for another reason.
        """
        path = self.path(entry.key)
        _require_folder(path.parent)
        try:
            # Without O_NONBLOCK, opening a named pipe would wait for a writer.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in _UNFIT_ERRORS:
                raise UnfitError(_UNFIT_ERRORS[error.errno]) from error
            raise
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                raise UnfitError("it is no file of this account")
            if status.st_size != _HEADER.size + entry.payload_bytes:
                raise UnfitError("its length is wrong")
            header = os.pread(descriptor, _HEADER.size, 0)
            _require(len(header) == _HEADER.size, "it is torn")
            magic, version, key, length, checksum = _HEADER.unpack(header)
            _require(magic == MAGIC, "it is foreign")
            _require(version == FORMAT_VERSION, f"its version is {version}")
            _require(key == entry.key, "it is another block's")
            _require(length == entry.payload_bytes, "its length is wrong")
            chunks = list(_read_chunks(descriptor, _HEADER.size, length))
        finally:
            os.close(descriptor)
        _require(sum(map(len, chunks)) == length, "it is torn")
        if _checksum(entry, chunks) != checksum:
            raise AlteredError("its checksum is wrong")
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    @contextlib.contextmanager
    def unfinished(self, entry: Entry, parts: Sequence[memoryview]) -> Iterator[Path]:
        """A file with a block's payload. It has a temporary name until `place` renames it.

        Raises OSError, and leaves no file behind then.
        """
        _make_folder(self._unfinished)
        name = f"{os.getpid()}-{next(self._numbers)}-{secrets.token_hex(4)}"
        path = self._unfinished / name
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        try:
            # The lock marks the file as in use, at most until the process ends, in whatever way.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            header = _HEADER.pack(
                MAGIC, FORMAT_VERSION, entry.key, entry.payload_bytes, _checksum(entry, parts)
            )
            for part in (memoryview(header), *parts):
                _write(descriptor, part)
            yield path
        finally:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                path.unlink()

    def place(self, unfinished: Path, key: bytes) -> None:
        """Rename an unfinished file to the file of its block. Raises OSError."""
        path = self.path(key)
        _make_folder(path.parent)
        unfinished.replace(path)

    def rename(self, key: bytes, new_key: bytes) -> None:
        """Give a block's file the name of another key, if there is such a file. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            self.place(self.path(key), new_key)

    def remove(self, key: bytes) -> bool:
        """Remove a block's file. Return False if there was no file; a folder of that name stays.

        Raises:
            OSError: the file can't be removed.
        """
        path = self.path(key)
        try:
            _require_folder(path.parent)
            path.unlink()
        except UnfitError:
            return False
        except OSError as error:
            # If the path is a folder, macOS says EPERM.
            if isinstance(error, FileNotFoundError | IsADirectoryError) or path.is_dir():
                return False
            raise
        return True

    def identity(self, key: bytes) -> tuple[int, int] | None:
        """The identity of a block's file, which a later file of the block doesn't share; None:
        there is no file.
        """
        with contextlib.suppress(OSError):
            status = self.path(key).lstat()
            return status.st_dev, status.st_ino
        return None

    def folders(self) -> Iterator[tuple[int, Path]]:
        """The folders that exist, each with the first byte of its keys."""
        for first in range(256):
            path = self._folder / f"{first:02x}"
            with contextlib.suppress(UnfitError):
                _require_folder(path)
                yield first, path

    def remove_abandoned(self) -> int:
        """Remove unfinished files whose writers have ended. Returns how many bytes on disk were
        freed.

        Raises OSError.
        """
        freed = 0
        with contextlib.suppress(UnfitError):
            _require_folder(self._unfinished)
            for path in list(self._unfinished.iterdir()):
                with contextlib.suppress(FileNotFoundError):
                    if path.is_symlink() or not (path.is_dir() or _in_use(path)):
                        taken = blocks_of(path.lstat().st_size)
                        path.unlink()
                        freed += taken
        return freed


def key_of(name: str) -> bytes | None:
    """The key of the block whose file has this name; None for any other file."""
    with contextlib.suppress(ValueError):
        key = bytes.fromhex(name)
        if len(key) == KEY_BYTES and key.hex() == name:
            return key
    return None


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise UnfitError(otherwise)


def _require_folder(path: Path) -> None:
    """Raises UnfitError if the path isn't a folder. A link to a folder is no folder."""
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise UnfitError("it is missing") from None
    _require(stat.S_ISDIR(mode), "its folder is none")


def _make_folder(path: Path) -> None:
    """Raises OSError."""
    try:
        _require_folder(path)
    except UnfitError:
        path.mkdir(mode=0o700, exist_ok=True)
        _require_folder(path)


def _in_use(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _checksum(entry: Entry, payload: Sequence[bytes | memoryview]) -> bytes:
    kind = entry.kind.encode()
    digest = xxhash.xxh3_128()
    digest.update(
        _CHECKED.pack(
            MAGIC,
            FORMAT_VERSION,
            entry.key,
            entry.parent,
            entry.payload_bytes,
            len(entry.token_ids),
            len(kind),
        )
    )
    digest.update(entry.token_ids)
    digest.update(kind)
    for part in payload:
        digest.update(part)
    return digest.digest()


def _read_chunks(descriptor: int, offset: int, length: int) -> Iterator[bytes]:
    """Read `length` bytes from `offset` on, or fewer if the file ends before."""
    end = offset + length
    while offset < end:
        chunk = os.pread(descriptor, min(end - offset, _CHUNK_BYTES), offset)
        if not chunk:
            return
        yield chunk
        offset += len(chunk)


def _write(descriptor: int, part: memoryview) -> None:
    written = 0
    while written < part.nbytes:
        written += os.write(descriptor, part[written : written + _CHUNK_BYTES])
