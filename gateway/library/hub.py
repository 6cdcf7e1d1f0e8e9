"""The Hugging Face hub, or a mirror with its API. Only `hub_program` imports this module, and no
other module imports huggingface_hub.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final, Never, TypeVar

import httpx
import msgspec
from huggingface_hub import constants, get_token, hf_hub_url
from huggingface_hub.utils import build_hf_headers
from msgspec import Struct

from gateway.library.description import problem_of
from gateway.library.hub_process import Candidate, HubError
from gateway.library.reference import COMMUNITY, Reference, parse_reference
from gateway.library.sources import (
    DIGEST,
    Body,
    ChangedError,
    Listing,
    MismatchError,
    MissingError,
    RemoteFile,
    TroubleError,
    UnreachableError,
)
from gateway.system.notation import without_number
from protocol.encoders import encoder_of

# The hub's CDN sends files of more than 50 GB only in parts (huggingface_hub.constants).
_PIECE_BYTES: Final = 8 << 30
_CONTENT_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_FOR_A_WHILE: Final = (408, 409, 421, 425, 429)
_LISTED: Final = 200
_SHOWN: Final = 12
# No answer about models is nearly as large.
_MOST_BYTES: Final = 32 << 20
_FOUND: Final = 100
# Each search asks for the most used repositories for MLX, for the newest, and for others that MLX
# may load.
_SEARCHES: Final = (("mlx", "downloads"), ("mlx", "lastModified"), ("safetensors", "downloads"))
_EXPANDED: Final = (
    "config",
    "downloads",
    "gated",
    "lastModified",
    "safetensors",
    "tags",
    "usedStorage",
)
_TYPE_BYTES: Final = {
    **dict.fromkeys(("F64", "I64", "U64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
}


class _Lfs(Struct):
    sha256: str


class _Sibling(Struct):
    rfilename: str
    size: int = -1
    blobId: str = ""  # noqa: N815 - the hub's names
    lfs: _Lfs | None = None


class _Safetensors(Struct):
    parameters: dict[str, int] = {}


class _HubModel(Struct):
    sha: str
    siblings: list[_Sibling]
    safetensors: _Safetensors | None = None


class _Named(Struct):
    id: str


class _Result(Struct):
    id: str
    config: dict[str, Any] | None = None
    downloads: int | None = None
    gated: bool | str | None = None
    lastModified: datetime | None = None  # noqa: N815 - the hub's names
    safetensors: _Safetensors | None = None
    tags: list[str] = []
    usedStorage: int | None = None  # noqa: N815

    @property
    def weight_bytes(self) -> int | None:
        """The size of the weights. The storage also has older revisions, and the types may count
        values that are packed, so either may be too large.
        """
        parameters = {} if self.safetensors is None else self.safetensors.parameters
        counted = sum(count * _TYPE_BYTES.get(kind, 1) for kind, count in parameters.items())
        return min((bytes_ for bytes_ in (counted, self.usedStorage) if bytes_), default=None)


T = TypeVar("T")


def check_online() -> None:
    """Raises: HubError: HF_HUB_OFFLINE is set."""
    if constants.is_offline_mode():
        raise HubError(
            "offline", "HF_HUB_OFFLINE is set: unset it, or name a folder with hub.folder."
        )


def hub_cache() -> Path:
    """The Hugging Face cache, which all tools of the hub share."""
    return Path(constants.HF_HUB_CACHE)


class Hub:
    """The hub, read by HTTP. Only endpoint and token come from huggingface_hub.

    The download of huggingface_hub would not do. It writes to a file with a new name each time; an
    error deletes the file, and a SIGKILL leaves it behind, so no download is ever resumed. It
    compares sizes, but no checksums, and gives a file up after several attempts.
    """

    def __init__(self, endpoint: str | None, stall_s: float) -> None:
        self.endpoint = (endpoint or constants.ENDPOINT).rstrip("/")
        self._stall_s = stall_s
        # The token is for the hub's own host. If a request is redirected to another host, httpx
        # leaves the token out.
        headers = build_hf_headers(library_name="bulkhead") | {"accept-encoding": "identity"}
        self._http = httpx.Client(
            headers=headers, timeout=httpx.Timeout(stall_s), follow_redirects=True
        )

    def __str__(self) -> str:
        return self.endpoint

    def listing(self, repository: str) -> Listing:
        answer = self._ask(f"/api/models/{repository}/revision/main", {"blobs": "true"}, repository)
        model = self._decoded(answer, _HubModel)
        files = tuple(
            RemoteFile(
                sibling.rfilename,
                sibling.size,
                sibling.blobId if sibling.lfs is None else sibling.lfs.sha256,
            )
            for sibling in model.siblings
        )
        dtypes = {} if model.safetensors is None else model.safetensors.parameters
        return Listing(repository, model.sha, files, dtypes)

    def alike(self, reference: Reference) -> list[str]:
        """Repositories with a similar name, for the message that `reference` is missing."""
        name = reference.repository.rpartition("/")[2]
        query: dict[str, str | int] = {"author": COMMUNITY, "search": name, "limit": _LISTED}
        try:
            answer = self._ask("/api/models", query, name)
            names = sorted(named.id for named in self._decoded(answer, list[_Named]))
        except (HubError, TroubleError):
            # The message that the repository is missing doesn't need similar names.
            return []
        exact = [
            repository for repository in names if repository.startswith(f"{COMMUNITY}/{name}-")
        ]
        return (exact or names)[:_SHOWN]

    def search(self, text: str) -> list[Candidate]:
        """Repositories that the hub finds for a text, those for MLX first.

        Raises: HubError, TroubleError.
        """
        candidates: dict[str, Candidate] = {}
        for kind, order in _SEARCHES:
            query = {
                "search": text,
                "filter": kind,
                "sort": order,
                "direction": -1,
                "limit": _FOUND,
                "expand": _EXPANDED,
            }
            try:
                answer = self._ask("/api/models", query, "a search")
            except HubError as error:
                if error.code == "broken":
                    raise
                # The hub refuses a repository in this way, and a search has none.
                raise HubError("broken", f"{self.endpoint} refuses to search models.") from error
            for result in self._decoded(answer, list[_Result]):
                if _is_repository(result.id):
                    candidates.setdefault(result.id, _candidate(result))
        return list(candidates.values())

    def _ask(self, path: str, query: dict[str, Any], what: str) -> bytes:
        try:
            with self._http.stream("GET", self.endpoint + path, params=query) as response:
                if response.status_code != 200:
                    _refused(response.status_code, response.headers, what, self.endpoint)
                content = bytearray()
                for chunk in response.iter_bytes():
                    content += chunk
                    if len(content) > _MOST_BYTES:
                        raise HubError("broken", f"{self.endpoint} answers without an end.")
                return bytes(content)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UnreachableError(f"{self.endpoint} can't be reached: {_plain(error)}") from error

    def _decoded(self, content: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(content, type=kind)
        except msgspec.MsgspecError as error:
            raise HubError(
                "broken", f"The server at {self.endpoint} is no Hugging Face hub ({error})."
            ) from error

    @contextmanager
    def read(self, listing: Listing, file: RemoteFile, begin: int) -> Iterator[Body]:
        url = hf_hub_url(
            listing.repository, file.name, revision=listing.commit, endpoint=self.endpoint
        )
        headers = {}
        if file.size_bytes:
            end = min(file.size_bytes, begin + _PIECE_BYTES) - 1
            headers["range"] = f"bytes={begin}-{end}"
        try:
            with self._http.stream("GET", url, headers=headers) as response:
                yield self._body(response, listing.repository, file, begin)
        except httpx.TimeoutException as error:
            raise TroubleError(f"nothing came for {self._stall_s:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise TroubleError(_plain(error)) from error

    def _body(
        self, response: httpx.Response, repository: str, file: RemoteFile, begin: int
    ) -> Body:
        first = response.history[0] if response.history else response
        etag = first.headers.get("x-linked-etag") or first.headers.get("etag") or ""
        etag = etag.removeprefix("W/").strip('"')
        if first.status_code < 400 and DIGEST.fullmatch(etag) and etag != file.digest:
            raise ChangedError(f"{file.name} has changed")
        status = response.status_code
        if status == 206:
            parts = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
            if parts is None or int(parts[1]) != begin:
                raise TroubleError("another part came than was asked for")
            if int(parts[3]) != file.size_bytes:
                raise MismatchError(f"{file.name} has {parts[3]} bytes, not {file.size_bytes}")
            return Body(begin, response.iter_raw())
        if status == 200:
            # The server doesn't support ranges, or the file is empty.
            length = response.headers.get("content-length", "")
            if length.isdigit() and int(length) != file.size_bytes:
                raise MismatchError(f"{file.name} has {length} bytes, not {file.size_bytes}")
            return Body(0, response.iter_raw())
        if status == 416:
            raise MismatchError(f"{file.name} has no {file.size_bytes} bytes")
        if response.history and status in (401, 403, 404, 410):
            # The addresses that the hub redirects to are signed, and expire.
            raise TroubleError(f"the CDN says {status}")
        if status in (404, 410):
            raise ChangedError(f"{file.name} is gone")
        return _refused(status, response.headers, repository, self.endpoint)


def _is_repository(name: str) -> bool:
    """Whether the name has an owner, and can be pulled."""
    try:
        return parse_reference(name).repository == name
    except ValueError:
        return False


def _candidate(result: _Result) -> Candidate:
    # The hub has only some keys of config.json.
    config = result.config if result.config and "model_type" in result.config else None
    return Candidate(
        repository=result.id,
        weight_bytes=result.weight_bytes,
        downloads=result.downloads,
        changed_at=None if result.lastModified is None else result.lastModified.timestamp(),
        mlx="mlx" in result.tags,
        gated=bool(result.gated),
        embeds=config is not None and encoder_of(config) is not None,
        problem=None if config is None else problem_of(config),
    )


def _refused(status: int, headers: httpx.Headers, repository: str, endpoint: str) -> Never:
    """Raise the error for an HTTP status. The hub answers 401 for private repositories, and also
    for missing ones.
    """
    if status in _FOR_A_WHILE or status >= 500:
        why = "says that we ask too often" if status == 429 else f"answers {status}"
        raise TroubleError(f"{endpoint} {why}", _retry_after_s(headers.get("retry-after")))
    reason = headers.get("x-error-code")
    if reason == "GatedRepo" or (status == 403 and reason != "RepoNotFound"):
        raise HubError(
            "not_allowed",
            f"{repository} is gated: accept its terms at {endpoint}/{repository}, and give "
            "`hf auth login` or HF_TOKEN a token of that account.",
        )
    if status in (401, 404):
        access = "or the token may not see it" if get_token() else "or it takes a token (HF_TOKEN)"
        raise MissingError("not_found", f"There is no model {repository} at {endpoint}, {access}.")
    raise HubError("broken", f"{endpoint} answers {status} when it is asked for {repository}.")


def _retry_after_s(text: str | None) -> float | None:
    if text is None:
        return None
    if text.isdigit():
        return float(text)
    try:
        then = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, then.timestamp() - time.time())


def _plain(error: BaseException) -> str:
    """The text of an error without its number, and without addresses, as the addresses at a CDN are
    signed and long.
    """
    return re.sub(r"https?://\S+", "...", without_number(str(error))) or type(error).__name__
