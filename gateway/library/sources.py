"""The sources of a model's files: the hub, a mirror of the hub, and a folder of models."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, Final, Protocol

from msgspec import Struct

from gateway.library.description import describe
from gateway.library.hub_process import Candidate, HubError
from gateway.library.reference import Reference, matches
from gateway.system.notation import alike
from protocol.hub_cache import find_snapshot
from protocol.model_folder import TOKENIZERS, beside, check_names, opened, weight_files

# The files beside the weights that mlx-lm and mlx-vlm open (mlx_lm.utils.DEFAULT_ALLOW_PATTERNS),
# but no programs, as remote code is never run here. Encoders have their last layers in folders
# beside config.json.
_WANTED: Final = (
    "*.json",
    "*_Dense/model.safetensors",
    *TOKENIZERS,
    "*.tiktoken",
    "*.txt",
    "*.jsonl",
    "*.jinja",
)
# Files of other programs.
_UNWANTED: Final = ("onnx/*", "openvino/*", "coreml/*", "gguf/*", ".*")
DIGEST: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


class RemoteFile(Struct, frozen=True):
    """A file at the source. `digest` is a SHA-256 (64 digits), or git's SHA-1 of a blob (40). It is
    the hub's etag for the file, and the name of the file's blob in the cache.
    """

    name: str
    size_bytes: int
    digest: str


class Listing(Struct, frozen=True):
    """A repository at one commit. `dtypes` maps each type of the weights' elements to the number of
    these elements. It is empty if the source doesn't tell the numbers.
    """

    repository: str
    commit: str
    files: tuple[RemoteFile, ...]
    dtypes: dict[str, int]

    @property
    def weight_bytes(self) -> int:
        weights = opened(self.names)
        return sum(file.size_bytes for file in self.files if file.name in weights)

    @property
    def names(self) -> list[str]:
        return [file.name for file in self.files]


class Body(Struct):
    """The bytes of a file from `begin` on."""

    begin: int
    chunks: Iterator[bytes]


class FileSource(Protocol):
    def listing(self, repository: str) -> Listing:
        """Raises: HubError, TroubleError."""

    def alike(self, reference: Reference) -> list[str]:
        """Repositories with a similar name, for the message that `reference` is missing."""

    def read(self, listing: Listing, file: RemoteFile, begin: int) -> AbstractContextManager[Body]:
        """The bytes of a file from `begin` on, or from 0 on if the source can't send a part.

        Raises: HubError, TroubleError, ChangedError.
        """


class TroubleError(Exception):
    """An error that may pass. `retry_after_s` is the wait that the source has asked for."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UnreachableError(TroubleError):
    """The source doesn't answer."""


class MismatchError(TroubleError):
    """A file's size differs from the listed size, as when a proxy sends a page of its own."""


class ChangedError(Exception):
    """A file differs from the listed file, or its fetch was ended because another file does."""


class MissingError(HubError):
    """The source has no such repository, or the token may not read the repository."""


def checked(listing: Listing, indexed: Collection[str] = ()) -> Listing:
    """The listing with only the files that are wanted. Those that the index names are weights for
    pictures, if they have other names than weights for text.

    Raises:
        HubError: the name of a file is unsafe, a checksum is missing, or the repository is no
            model that MLX loads.
    """
    repository = listing.repository
    weights = opened(listing.names)
    taken = {*weights, *beside(indexed)}
    if not _COMMIT.fullmatch(listing.commit):
        raise HubError("broken", f"The hub names no commit of {repository}.")
    files = tuple(file for file in listing.files if file.name in taken or _is_wanted(file.name))
    for file in files:
        path = PurePosixPath(file.name)
        if path.is_absolute() or ".." in path.parts or "\\" in file.name or "\0" in file.name:
            raise HubError("broken", f"The hub has a file {file.name!r}, which is no safe name.")
        if not DIGEST.fullmatch(file.digest) or file.size_bytes < 0:
            raise HubError("broken", f"The hub doesn't say what is in {file.name} of {repository}.")
    names = [remote_file.name for remote_file in files]
    if "config.json" not in names or not weights:
        what = _kinds([file.name for file in listing.files])
        raise HubError(
            "no_model",
            f"{repository} is no model that MLX loads: it has no "
            f"{'weights (model*.safetensors)' if 'config.json' in names else 'config.json'}{what}. "
            f"Look for one at mlx-community, or add a quantization, as {repository}:4bit.",
        )
    try:
        check_names(names)
    except ValueError as error:
        raise HubError(
            "no_model", f"{repository} is not whole at its source: {error}. Look for another one."
        ) from error
    return Listing(repository, listing.commit, files, listing.dtypes)


def _is_wanted(name: str) -> bool:
    if any(fnmatchcase(name, pattern) for pattern in _UNWANTED):
        return False
    return any(fnmatchcase(name, pattern) for pattern in _WANTED)


def _kinds(names: list[str]) -> str:
    for suffix, what in ((".gguf", "GGUF"), (".bin", "PyTorch"), (".safetensors", "other")):
        if any(name.endswith(suffix) for name in names):
            return f", but {what} files"
    return ""


def element_bytes(listing: Listing, config: dict[str, Any]) -> int:
    """The size of the weights' most common floating-point type, in bytes. After the pull
    `gateway.memory.weights` reads the size from the headers of the files.
    """
    sizes = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
    counts = {name: count for name, count in listing.dtypes.items() if name in sizes}
    if counts:
        return sizes[max(counts, key=lambda name: counts[name])]
    nested = config.get("text_config")
    text = {**config, **(nested if isinstance(nested, dict) else {})}
    return 4 if (text.get("torch_dtype") or text.get("dtype")) == "float32" else 2


_SHA256_DIGITS: Final = 64


class Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


def new_digest(expected: str, size_bytes: int) -> Digest:
    """A new digest of the kind of `expected`: a SHA-256, or git's SHA-1 of a blob."""
    if len(expected) == _SHA256_DIGITS:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % size_bytes, usedforsecurity=False)


_CHUNK_BYTES: Final = 1 << 20
# The hub keeps larger files in its store of large files, which knows files by their SHA-256.
_LARGE_BYTES: Final = 10 << 20
_SHA1_DIGITS: Final = 40


class ModelFolder:
    """A folder with models, each in `OWNER/NAME` or in the form of a Hugging Face cache.

    `listing` reads all files once for their checksums. Each copy is checked by these, as a disk may
    err, too.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def listing(self, repository: str) -> Listing:
        folder, commit = self._find(repository)
        try:
            paths = sorted(path for path in folder.rglob("*") if path.is_file())
            files = tuple(_listed(folder, path) for path in paths)
        except OSError as error:
            raise TroubleError(f"{folder} can't be read: {error.strerror}") from error
        if commit is None:
            # The commit is made from the content, so the same files are the same revision.
            lines = "".join(f"{file.digest} {file.name}\n" for file in files)
            commit = hashlib.sha1(lines.encode(), usedforsecurity=False).hexdigest()
        return Listing(repository, commit, files, {})

    def alike(self, reference: Reference) -> list[str]:
        try:
            return alike(reference.repository, self._repositories())
        except OSError:
            # The message that the repository is missing doesn't need similar names.
            return []

    def search(self, words: tuple[str, ...]) -> list[Candidate]:
        """The repositories with each word in their names. Raises: HubError, TroubleError."""
        self._check_there()
        try:
            names = [
                repository for repository in self._repositories() if matches(words, repository)
            ]
            return [self._candidate(name) for name in names]
        except OSError as error:
            raise TroubleError(f"{self._folder} can't be read: {error.strerror}") from error

    def _candidate(self, repository: str) -> Candidate:
        folder, _ = self._find(repository)
        sizes = [weight_file.stat().st_size for weight_file in weight_files(folder)]
        described = describe(folder)
        return Candidate(
            repository=repository,
            weight_bytes=sum(sizes) or None,
            changed_at=folder.stat().st_mtime,
            mlx=True,
            embeds=not {"embeddings", "rerank"}.isdisjoint(described.abilities),
            problem=described.problem,
        )

    @contextmanager
    def read(self, listing: Listing, file: RemoteFile, begin: int) -> Iterator[Body]:
        folder, _ = self._find(listing.repository)
        try:
            with (folder / file.name).open("rb") as opened:
                opened.seek(begin)
                yield Body(begin, iter(lambda: opened.read(_CHUNK_BYTES), b""))
        except FileNotFoundError as error:
            raise TroubleError(f"{file.name} is gone from {folder}") from error

    def _check_there(self) -> None:
        if not self._folder.is_dir():
            raise HubError(
                "offline", f"There is no folder {self._folder}, which hub.folder names: mount it?"
            )

    def _repositories(self) -> list[str]:
        """All repositories, in both forms. Raises: OSError."""
        plain = [f"{path.parent.name}/{path.name}" for path in self._folder.glob("[!.]*/[!.]*/")]
        cached = [path.name.split("--", 2)[1:] for path in self._folder.glob("models--*--*/")]
        inside = (repository for repository in plain if not repository.startswith("models--"))
        return sorted((*inside, *map("/".join, cached)))

    def _find(self, repository: str) -> tuple[Path, str | None]:
        """The folder of a repository, and its commit; None: the commit isn't known.

        Raises: MissingError, HubError.
        """
        self._check_there()
        plain = self._folder / repository
        if plain.is_dir():
            return plain, None
        cached = self._folder / f"models--{repository.replace('/', '--')}"
        if not cached.is_dir():
            raise MissingError("not_found", f"There is no model {repository} in {self._folder}.")
        try:
            snapshot = find_snapshot(cached)
        except OSError as error:
            raise MissingError(
                "not_found", f"{repository} can't be copied from {self._folder}: {error}."
            ) from error
        return snapshot, snapshot.name if _COMMIT.fullmatch(snapshot.name) else None


def _listed(folder: Path, path: Path) -> RemoteFile:
    size_bytes = path.stat().st_size
    large = size_bytes > _LARGE_BYTES or path.suffix == ".safetensors"
    digest = new_digest("0" * (64 if large else _SHA1_DIGITS), size_bytes)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return RemoteFile(path.relative_to(folder).as_posix(), size_bytes, digest.hexdigest())
