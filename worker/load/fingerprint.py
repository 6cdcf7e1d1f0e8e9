"""Whether two loads of a folder gave the same model."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from worker.load.adapter import CONFIG, WEIGHTS

# Configuration, tokenizer and template; the largest, tokenizer.json, has some ten megabytes.
_READ_WHOLE: Final = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken", "*.py")
_HEADER_LENGTH_BYTES: Final = 8
_LONGEST_HEADER_BYTES: Final = 100_000_000


def fingerprint(folder: Path, adapter: Path | None = None) -> str:
    """A hash that changes when weights, tokenizer, template, configuration or adapter change.

    Of weights it takes the safetensors header, size and time of change: reading tens of gigabytes
    would take as long as the load. Symbolic links, which a Hugging Face cache is made of, are
    followed.

    Raises:
        OSError: a file can't be read.
    """
    digest = hashlib.sha256()
    for path in sorted({each for pattern in _READ_WHOLE for each in folder.glob(pattern)}):
        _take(digest, path.name.encode(), path.read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        _take_weights(digest, path)
    if adapter is not None:
        # These alone: training leaves its earlier states beside them.
        _take(digest, CONFIG.encode(), (adapter / CONFIG).read_bytes())
        _take_weights(digest, adapter / WEIGHTS)
    return digest.hexdigest()


def _take_weights(digest: hashlib._Hash, path: Path) -> None:
    status = path.stat()
    _take(digest, path.name.encode(), _header(path))
    _take(digest, str(status.st_size).encode(), str(status.st_mtime_ns).encode())


def _take(digest: hashlib._Hash, *parts: bytes) -> None:
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)


def _header(path: Path) -> bytes:
    """The JSON header behind its length (github.com/huggingface/safetensors, "Format")."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_HEADER_LENGTH_BYTES), "little")
        return file.read(min(length, _LONGEST_HEADER_BYTES))
