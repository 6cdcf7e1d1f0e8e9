"""A repository in the Hugging Face cache, in the layout that every tool of the hub shares."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from typing import Final

from gateway.library.hub.messages import PullError
from gateway.library.puller.source import DIGEST, Listing, RemoteFile

# As huggingface_hub named parts when it still resumed them.
PART: Final = ".incomplete"
_UNSUPPORTED: Final = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM, errno.ENOSYS)


class CachedRepository:
    """`blobs/DIGEST` has the files, `snapshots/COMMIT/NAME` links to them, and `refs/main` names
    the commit. That comes last, so that what is half there is never found.
    """

    def __init__(self, cache: Path, repository: str) -> None:
        self.folder = cache / f"models--{repository.replace('/', '--')}"
        self._repository = repository
        self._lock: int | None = None

    def acquire(self) -> None:
        """Make the folders, and keep others from pulling the same.

        The lock is on the folder itself, so no file of it stays; it goes with the process.

        Raises:
            PullError: somebody else pulls it.
            OSError: it can't be written.
        """
        for each in ("blobs", "snapshots", "refs"):
            (self.folder / each).mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PullError("busy", f"Another process pulls {self._repository} already.") from None
        except OSError:
            # Some shares know no locks; then two pulls would at worst spoil each other's part,
            # which the checksum finds.
            return

    def release(self) -> None:
        """Let others pull it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def has(self, listing: Listing, file: RemoteFile) -> bool:
        """Whether the file is there already; where links can't be made it is in the snapshot."""
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
        """Of a file, what was pulled before."""
        with contextlib.suppress(OSError):
            return min(self.part(file).stat().st_size, file.size_bytes)
        return 0

    def snapshot(self, listing: Listing) -> Path:
        return self.folder / "snapshots" / listing.commit

    def publish(self, listing: Listing) -> Path:
        """Have the product and every other tool find the files, all of which are there.

        Raises OSError.
        """
        snapshot = self.snapshot(listing)
        for file in listing.files:
            _link(self.blob(file), snapshot / file.name)
        ref = self.folder / "refs" / "main"
        unfinished = ref.with_name(f".main.{os.getpid()}")
        unfinished.write_text(listing.commit, "ascii")
        unfinished.replace(ref)
        for each in (self.folder / "blobs").glob(f"*{PART}"):
            # Of an earlier revision. Parts of other tools have longer names.
            if DIGEST.fullmatch(each.name.removesuffix(PART)):
                each.unlink(missing_ok=True)
        return snapshot


def _link(blob: Path, pointer: Path) -> None:
    """Where links can't be made, as on exFAT, the file itself goes there: huggingface_hub does the
    same.
    """
    if not blob.exists() and pointer.is_file():
        return
    pointer.parent.mkdir(parents=True, exist_ok=True)
    target = os.path.relpath(blob, pointer.parent)
    unfinished = pointer.with_name(f".{pointer.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    try:
        unfinished.symlink_to(target)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        blob.replace(pointer)
        return
    unfinished.replace(pointer)
