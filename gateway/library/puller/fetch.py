"""One file: what is missing of it is read until all is there, and right."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import BinaryIO, Final

from gateway.library.hub.messages import Order, PullError
from gateway.library.puller.digests import Digest, new_digest
from gateway.library.puller.patience import Patience
from gateway.library.puller.source import (
    ChangedError,
    Listing,
    MismatchError,
    RemoteFile,
    Source,
    TroubleError,
)

_CHUNK_BYTES: Final = 1 << 20
# A whole file with a wrong sum is read once more: memory and disks err, too. Not for ever.
_WRONG_BEFORE: Final = 2
_MISMATCHES: Final = 8


class Fetch:
    """`have_bytes` of the file are there, and `trouble` is why no more come at present. Once it is
    `over` it ends with the next bytes.
    """

    def __init__(
        self,
        source: Source,
        listing: Listing,
        file: RemoteFile,
        part: Path,
        blob: Path,
        order: Order,
    ) -> None:
        self.have_bytes = 0
        self.trouble: str | None = None
        self.over = False
        self._source = source
        self._listing = listing
        self._file = file
        self._part = part
        self._blob = blob
        self._patience = Patience(order.pause_s, order.patience_s, time.monotonic())
        self._mismatches = 0
        self._digest: Digest = new_digest(file.digest, file.size_bytes)

    def run(self) -> None:
        """Blocks until the blob is there.

        Raises:
            PullError: it can't be had.
            ChangedError: it is another file by now.
            OSError: it can't be written.
        """
        wrong = 0
        if self.over:
            raise ChangedError("it is not wanted any more")
        with self._opened() as part:
            self._read_back(part)
            while not self._is_right(part):
                if self.have_bytes == self._file.size_bytes:
                    wrong += 1
                    self._begin_anew(part)
                    if wrong >= _WRONG_BEFORE:
                        raise ChangedError(f"{self._file.name} has a wrong checksum")
                self._attempt(part)
            # A blob with a name is trusted by everybody, also after a power failure.
            part.flush()
            os.fsync(part.fileno())
        self._part.replace(self._blob)

    def _opened(self) -> BinaryIO:
        # Not for appending: what comes may replace what is there.
        return os.fdopen(os.open(self._part, os.O_RDWR | os.O_CREAT, 0o666), "r+b")

    def _read_back(self, part: BinaryIO) -> None:
        """What an earlier process has written counts in the checksum, too."""
        if os.fstat(part.fileno()).st_size > self._file.size_bytes:
            part.truncate(0)
        while chunk := part.read(_CHUNK_BYTES):
            self._digest.update(chunk)
            self.have_bytes += len(chunk)

    def _is_right(self, part: BinaryIO) -> bool:
        if self.have_bytes != self._file.size_bytes:
            return False
        return self._digest.hexdigest() == self._file.digest

    def _begin_anew(self, part: BinaryIO) -> None:
        part.seek(0)
        part.truncate()
        self._digest = new_digest(self._file.digest, self._file.size_bytes)
        self.have_bytes = 0

    def _attempt(self, part: BinaryIO) -> None:
        """Read on; returns when a piece is over, or after a pause."""
        retry_after_s = None
        before = self.have_bytes
        try:
            with self._source.read(self._listing, self._file, self.have_bytes) as body:
                if body.begin == 0 and self.have_bytes:
                    self._begin_anew(part)
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
            raise PullError(
                "unreachable",
                f"{self._file.name} of {self._listing.repository} does not come: {trouble}. What "
                "is there is kept: pull again to go on.",
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


def explained(error: OSError, folder: Path) -> PullError:
    """What a failed write means."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return PullError(
            "disk_full",
            f"The disk of {folder} is full. What is there is kept: free some, then pull again.",
        )
    return PullError("broken", f"{error.filename or folder} can't be written: {error.strerror}.")
