"""Fetches the files of a repository, checks their content, and puts them into the Hugging Face
cache.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections import deque
from pathlib import Path
from typing import BinaryIO, Final

from gateway.library.hub_process import HubError, PullJob
from gateway.library.sources import (
    DIGEST,
    ChangedError,
    Digest,
    FileSource,
    Listing,
    MismatchError,
    RemoteFile,
    TroubleError,
    new_digest,
)

_LONGEST_PAUSE_S: Final = 60.0
_LONGEST_ASKED_S: Final = 600.0


class Patience:
    """The pauses between attempts. The first is `first_s`, and each is twice the one before, until
    bytes arrive. After `patience_s` without bytes there are no more attempts.
    """

    def __init__(self, first_s: float, patience_s: float, now: float) -> None:
        self._first_s = first_s
        self._patience_s = patience_s
        self._failures = 0
        self._since = now

    def progressed(self, now: float) -> None:
        self._failures = 0
        self._since = now

    def failed(self, now: float, asked_s: float | None = None) -> float | None:
        """Seconds until the next attempt; None: give up. `asked_s` is the pause that the source has
        asked for; up to a bound the result isn't shorter.
        """
        pause_s: float = min(self._first_s * 2**self._failures, _LONGEST_PAUSE_S)
        self._failures = min(self._failures + 1, 30)
        pause_s = max(pause_s, min(asked_s or 0.0, _LONGEST_ASKED_S))
        return None if now + pause_s - self._since > self._patience_s else pause_s


class Pace:
    """Bytes per second over the last seconds."""

    _WINDOW_S: Final = 15.0
    _LEAST_S: Final = 1.0

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, now: float, done_bytes: int) -> None:
        """Record how many bytes are done. There are fewer than before if a file had to start again;
        then earlier records are dropped.
        """
        if self._seen and done_bytes < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((now, done_bytes))
        while len(self._seen) > 2 and now - self._seen[1][0] >= self._WINDOW_S:
            self._seen.popleft()

    @property
    def bytes_per_s(self) -> float | None:
        """The present rate; None: the rate isn't known yet."""
        if not self._seen:
            return None
        (began, first), (ended, last) = self._seen[0], self._seen[-1]
        if ended - began < self._LEAST_S:
            return None
        return (last - first) / (ended - began)

    def seconds_left(self, remaining_bytes: int) -> float | None:
        rate = self.bytes_per_s
        return remaining_bytes / rate if rate else None


_CHUNK_BYTES: Final = 1 << 20
# A complete file with a wrong checksum is fetched once more, as memory and disks err, too.
_WRONG_BEFORE: Final = 2
_MISMATCHES: Final = 8


class FileFetch:
    """Fetches one file. `have_bytes` of the file have arrived. `trouble` says why no more bytes
    arrive now. If another thread sets `over`, the fetch ends at the next bytes.
    """

    def __init__(
        self,
        source: FileSource,
        listing: Listing,
        file: RemoteFile,
        part: Path,
        blob: Path,
        job: PullJob,
    ) -> None:
        self.have_bytes = 0
        self.trouble: str | None = None
        self.over = False
        self._source = source
        self._listing = listing
        self._file = file
        self._part = part
        self._blob = blob
        self._patience = Patience(job.pause_s, job.patience_s, time.monotonic())
        self._mismatches = 0
        self._digest: Digest = new_digest(file.digest, file.size_bytes)

    def run(self) -> None:
        """Fetch the file, and rename the part to the blob. Blocks until the blob is complete.

        Raises:
            HubError: the file doesn't arrive.
            ChangedError: the file has changed at its source, or `over` is set.
            OSError: the file can't be written.
        """
        wrong = 0
        if self.over:
            raise ChangedError("it is not wanted any more")
        with self._opened() as part:
            self._read_back(part)
            while not self._is_right(part):
                if self.have_bytes == self._file.size_bytes:
                    wrong += 1
                    self._restart(part)
                    if wrong >= _WRONG_BEFORE:
                        raise ChangedError(f"{self._file.name} has a wrong checksum")
                self._attempt(part)
            # All tools trust a blob by its name, so its bytes must outlast a power failure.
            part.flush()
            os.fsync(part.fileno())
        self._part.replace(self._blob)

    def _opened(self) -> BinaryIO:
        # The part is not opened for appending, as it may have to be written from its start.
        return os.fdopen(os.open(self._part, os.O_RDWR | os.O_CREAT, 0o666), "r+b")

    def _read_back(self, part: BinaryIO) -> None:
        """Add the bytes that an earlier process has fetched to the checksum."""
        if os.fstat(part.fileno()).st_size > self._file.size_bytes:
            part.truncate(0)
        while chunk := part.read(_CHUNK_BYTES):
            self._digest.update(chunk)
            self.have_bytes += len(chunk)

    def _is_right(self, part: BinaryIO) -> bool:
        if self.have_bytes != self._file.size_bytes:
            return False
        return self._digest.hexdigest() == self._file.digest

    def _restart(self, part: BinaryIO) -> None:
        part.seek(0)
        part.truncate()
        self._digest = new_digest(self._file.digest, self._file.size_bytes)
        self.have_bytes = 0

    def _attempt(self, part: BinaryIO) -> None:
        """Fetch more bytes of the file. Return after one answer of the source, or after a pause."""
        retry_after_s = None
        before = self.have_bytes
        try:
            with self._source.read(self._listing, self._file, self.have_bytes) as body:
                if body.begin == 0 and self.have_bytes:
                    self._restart(part)
                for chunk in body.chunks:
                    self._write(part, chunk)
            if self.have_bytes > before or self.have_bytes == self._file.size_bytes:
                return
            trouble = "nothing came"
        except TroubleError as error:
            trouble, retry_after_s = str(error), error.retry_after_s
            self._mismatches += isinstance(error, MismatchError)
            if self._mismatches > _MISMATCHES:
                raise ChangedError(trouble) from error
        pause_s = self._patience.failed(time.monotonic(), retry_after_s)
        if pause_s is None:
            raise HubError(
                "unreachable",
                f"{self._file.name} of {self._listing.repository} does not come: {trouble}. The "
                "bytes that have come stay: pull again to go on.",
            )
        self.trouble = trouble
        time.sleep(pause_s)

    def _write(self, part: BinaryIO, chunk: bytes) -> None:
        if self.over:
            raise ChangedError("it is not wanted any more")
        if self.have_bytes + len(chunk) > self._file.size_bytes:
            raise MismatchError(f"{self._file.name} has more than {self._file.size_bytes} bytes")
        part.write(chunk)
        self._digest.update(chunk)
        self.have_bytes += len(chunk)
        self.trouble = None
        self._patience.progressed(time.monotonic())


def explained(error: OSError, folder: Path) -> HubError:
    """The error that ends a pull after a failed write."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return HubError(
            "disk_full",
            f"The disk of {folder} is full. The bytes that have come stay: free some space, "
            "then pull again.",
        )
    return HubError("broken", f"{error.filename or folder} can't be written: {error.strerror}.")


# The suffix of a part, as huggingface_hub named parts when it still resumed downloads.
PART: Final = ".incomplete"
_UNSUPPORTED: Final = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM, errno.ENOSYS)


class CachedRepository:
    """A repository in the Hugging Face cache. `blobs/DIGEST` are the files, `snapshots/COMMIT/NAME`
    are links to them, and `refs/main` names the commit. `refs/main` is written last, so that no
    search finds a repository before it is complete.
    """

    def __init__(self, cache: Path, repository: str) -> None:
        self.folder = cache / f"models--{repository.replace('/', '--')}"
        self._repository = repository
        self._lock: int | None = None

    def acquire(self) -> None:
        """Make the folders, and keep other processes from pulling the same repository.

        The lock is on the folder itself, so there is no lock file. The lock ends with the process.

        Raises:
            HubError: another process pulls the repository.
            OSError: the folders can't be made or opened.
        """
        for name in ("blobs", "snapshots", "refs"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HubError("busy", f"Another process pulls {self._repository} already.") from None
        except OSError:
            # Some network shares have no locks. Two pulls could then spoil each other's parts, but
            # the checksum shows that.
            return

    def release(self) -> None:
        """Let other processes pull the repository."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def has(self, listing: Listing, file: RemoteFile) -> bool:
        """Whether a file has been fetched. The file is a blob, or in the snapshot if the disk can't
        have links.
        """
        for path in (self.blob(file), self.snapshot(listing) / file.name):
            with contextlib.suppress(OSError):
                if path.stat().st_size == file.size_bytes:
                    return True
        return False

    def blob(self, file: RemoteFile) -> Path:
        return self.folder / "blobs" / file.digest

    def part(self, file: RemoteFile) -> Path:
        return self.folder / "blobs" / f"{file.digest}{PART}"

    def part_bytes(self, file: RemoteFile) -> int:
        """The bytes of a file that an earlier pull has fetched."""
        with contextlib.suppress(OSError):
            return min(self.part(file).stat().st_size, file.size_bytes)
        return 0

    def snapshot(self, listing: Listing) -> Path:
        return self.folder / "snapshots" / listing.commit

    def publish(self, listing: Listing) -> Path:
        """Make the repository visible to the gateway and to all other tools. All files must be
        fetched. Return the folder of the snapshot.

        Raises OSError.
        """
        snapshot = self.snapshot(listing)
        for file in listing.files:
            _link(self.blob(file), snapshot / file.name)
        ref = self.folder / "refs" / "main"
        unfinished = _unfinished(ref)
        unfinished.write_text(listing.commit, "ascii")
        unfinished.replace(ref)
        for path in (self.folder / "blobs").glob(f"*{PART}"):
            # A part with such a name is of an earlier revision. Other tools give longer names.
            if DIGEST.fullmatch(path.name.removesuffix(PART)):
                path.unlink(missing_ok=True)
        return snapshot


def _unfinished(path: Path) -> Path:
    """The name of `path` until it is complete. The name is the same in each process, so a pull
    takes away what a killed pull has left.
    """
    return path.with_name(f".{path.name}{PART}")


def _link(blob: Path, pointer: Path) -> None:
    """Make `pointer` a link to a blob. If the disk can't have links, as with exFAT, move the blob
    itself to `pointer`, as huggingface_hub does.
    """
    if not blob.exists() and pointer.is_file():
        return
    pointer.parent.mkdir(parents=True, exist_ok=True)
    target = os.path.relpath(blob, pointer.parent)
    unfinished = _unfinished(pointer)
    unfinished.unlink(missing_ok=True)
    try:
        unfinished.symlink_to(target)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        blob.replace(pointer)
        return
    unfinished.replace(pointer)
