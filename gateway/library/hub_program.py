"""The program that pulls one model, or searches the hub once. It reads the job from its standard
input, and writes messages to its standard output. It ends with the job, or when its input ends.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.library.fetch import CachedRepository, FileFetch, Pace, Patience, explained
from gateway.library.hub import Hub, check_online, hub_cache
from gateway.library.hub_process import (
    ELSEWHERE,
    Candidate,
    HubError,
    HubMessage,
    Job,
    Planned,
    Progressed,
    PullFinished,
    PullJob,
    SearchJob,
    SearchResult,
)
from gateway.library.reference import Reference, matches, parse_reference
from gateway.library.sources import (
    ChangedError,
    Listing,
    MissingError,
    ModelFolder,
    RemoteFile,
    TroubleError,
    UnreachableError,
    checked,
    element_bytes,
)
from gateway.system.lane import Inquiries
from gateway.system.notation import format_size
from protocol.model_files import LARGEST_FILE_BYTES
from protocol.model_folder import INDEX, beside

# Requests to the gateway have priority.
_NICE: Final = 5
# Several files at once, as a CDN bounds each connection; few, as all files go to one disk.
_AT_ONCE: Final = 4
_LARGEST_CONFIG_BYTES: Final = 10 << 20
# Bytes that stay free on the disk for other programs.
_LEFT_BYTES: Final = 256_000_000
_REPORT_EVERY_S: Final = 0.5
# A repository may change while it is pulled, and a mirror may ignore the commit.
_MOST_LISTINGS: Final = 3


class Download:
    """The download of one model: first its plan, which must be accepted, and then its files. All
    methods block, and nothing but the end of the process cuts them short.
    """

    def __init__(
        self,
        job: PullJob,
        cache: Path,
        send: Callable[[HubMessage], None],
        accepted: Callable[[], object],
    ) -> None:
        """`accepted` returns once the plan is accepted."""
        self._job = job
        self._cache = cache
        self._send = send
        self._accepted = accepted
        # The hub has answered the earlier pull. A folder has no hub, and its files may take long.
        self._answered = job.goes_on or job.folder is not None
        self._source: Hub | ModelFolder = (
            Hub(job.endpoint, job.stall_s) if job.folder is None else ModelFolder(Path(job.folder))
        )

    def run(self) -> PullFinished:
        """Pull the model. Raises: HubError."""
        try:
            reference = parse_reference(self._job.model)
        except ValueError as error:
            raise HubError("not_found", str(error)) from error
        listing = self._find(reference)
        repository = CachedRepository(self._cache, listing.repository)
        try:
            self._send(self._plan(listing, repository))
            self._accepted()
            repository.acquire()
            listing = self._fetch_newest(listing, repository)
            folder = repository.publish(listing)
        except OSError as error:
            raise explained(error, self._cache) from error
        finally:
            repository.release()
        return PullFinished(listing.repository, listing.commit, str(folder))

    def _fetch_newest(self, listing: Listing, repository: CachedRepository) -> Listing:
        """Fetch all files. Return the listing of the fetched files. It is newer than `listing` if
        the repository has changed meanwhile.
        """
        for _ in range(_MOST_LISTINGS):
            try:
                self._fetch_all(listing, repository)
                return listing
            except ChangedError as error:
                change = error
                listed, listing = listing, self._find(Reference(listing.repository))
                if listing == listed:
                    break
        raise HubError(
            "wrong_bytes",
            f"The files of {listing.repository} differ from the hub's list of them: {change}. Pull "
            "again later, or from another endpoint.",
        ) from change

    def _find(self, reference: Reference) -> Listing:
        """The listing of the first candidate of `reference` that the source has."""
        for candidate in reference.candidates:
            try:
                listing = self._patiently(lambda name=candidate: self._source.listing(name))  # type: ignore[misc]
                plain = checked(listing)
                indexed = self._indexed(listing)
                return checked(listing, indexed) if indexed else plain
            except MissingError as error:
                missing = error
        message = missing.message
        if reference.quantization is not None:
            message = f"There is none of {', '.join(reference.candidates)}."
        if alike := self._source.alike(reference):
            message += f" There are: {', '.join(alike)}."
        raise HubError("not_found", message)

    def _plan(self, listing: Listing, repository: CachedRepository) -> Planned:
        missing_bytes = sum(
            file.size_bytes - repository.part_bytes(file)
            for file in _once(listing)
            if not repository.has(listing, file)
        )
        free_bytes = _free_bytes(self._cache)
        if missing_bytes and missing_bytes + _LEFT_BYTES > free_bytes:
            raise HubError(
                "disk_full",
                f"{listing.repository} needs {format_size(missing_bytes)} more on the disk of "
                f"{self._cache}, and {format_size(free_bytes)} are free, of which "
                f"{format_size(_LEFT_BYTES)} are left to others: free some, as with `bulkhead rm`, "
                "or set HF_HUB_CACHE to a larger disk.",
            )
        config = self._patiently(lambda: self._config(listing))
        return Planned(
            repository=listing.repository,
            commit=listing.commit,
            files=len(listing.files),
            total_bytes=sum(remote_file.size_bytes for remote_file in _once(listing)),
            missing_bytes=missing_bytes,
            free_bytes=free_bytes,
            config=config,
            weight_bytes=listing.weight_bytes,
            element_bytes=element_bytes(listing, config),
        )

    def _indexed(self, listing: Listing) -> set[str]:
        """The files of weights that the index names. It is read only if there are weights that a
        load without pictures doesn't open.
        """
        if INDEX not in listing.names or not beside(listing.names):
            return set()
        index = self._patiently(lambda: self._table(listing, INDEX, LARGEST_FILE_BYTES))
        placed = (index or {}).get("weight_map")
        named = placed.values() if isinstance(placed, dict) else ()
        return {name for name in named if isinstance(name, str)}

    def _config(self, listing: Listing) -> dict[str, Any]:
        config = self._table(listing, "config.json", _LARGEST_CONFIG_BYTES)
        if config is None:
            raise HubError("no_model", f"config.json of {listing.repository} is no configuration.")
        return config

    def _table(self, listing: Listing, name: str, most_bytes: int) -> dict[str, Any] | None:
        """Read a file into memory, as nothing is written before the plan is accepted. None: it is
        larger, or has no table.
        """
        file = next(remote_file for remote_file in listing.files if remote_file.name == name)
        if file.size_bytes > most_bytes:
            return None
        try:
            with self._source.read(listing, file, 0) as body:
                table = json.loads(b"".join(body.chunks))
        except (ValueError, RecursionError):
            return None
        except ChangedError as error:
            raise TroubleError(str(error)) from error
        return table if isinstance(table, dict) else None

    def _patiently(self, ask: Callable[[], Any]) -> Any:
        job, started_at = self._job, time.monotonic()
        at_first = Patience(job.pause_s, job.answer_s, started_at)
        later = Patience(job.pause_s, job.patience_s, started_at)
        while True:
            try:
                answer = ask() if self._answered else self._within(ask, started_at + job.answer_s)
            except TroubleError as error:
                self._answered |= not isinstance(error, UnreachableError)
                patience = later if self._answered else at_first
                pause_s = patience.failed(time.monotonic(), error.retry_after_s)
                if pause_s is None:
                    raise HubError("unreachable", f"{error}. {ELSEWHERE}") from error
                self._send(Progressed(0, 0, None, None, str(error)))
                time.sleep(pause_s)
            else:
                self._answered = True
                return answer

    def _within(self, ask: Callable[[], Any], deadline: float) -> Any:
        """Return what `ask` returns, or raise its exception. `ask` may take for ever, as it looks
        up the name of a host, for which there is no deadline.

        Raises:
            UnreachableError: `ask` hasn't returned by the deadline.
        """
        inquiries: Inquiries[str, Any] = Inquiries()
        inquiries.ask("hub", ask, "first question")
        try:
            return inquiries.answer("hub", deadline - time.monotonic())
        except TimeoutError as error:
            waited_s = self._job.answer_s
            raise UnreachableError(f"{self._source} did not answer in {waited_s:g} s") from error

    def _fetch_all(self, listing: Listing, repository: CachedRepository) -> None:
        """Fetch the missing files of a listing. Raises: HubError, ChangedError, OSError."""
        files = sorted(_once(listing), key=lambda file: -file.size_bytes)
        missing = [remote_file for remote_file in files if not repository.has(listing, remote_file)]
        fetches = [
            FileFetch(
                self._source,
                listing,
                file,
                repository.part(file),
                repository.blob(file),
                self._job,
            )
            for file in missing
        ]
        total_bytes = sum(file.size_bytes for file in files)
        present_bytes = total_bytes - sum(file.size_bytes for file in missing)
        waiting: queue.SimpleQueue[FileFetch] = queue.SimpleQueue()
        for fetch in fetches:
            waiting.put(fetch)
        outcomes: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()

        def work() -> None:
            try:
                while True:
                    waiting.get_nowait().run()
            except queue.Empty:
                outcomes.put(None)
            except Exception as error:
                outcomes.put(error)

        workers = min(_AT_ONCE, len(fetches))
        for number in range(workers):
            threading.Thread(target=work, name=f"fetch-{number}", daemon=True).start()
        pace = Pace()
        while True:
            done_bytes = present_bytes + sum(file_fetch.have_bytes for file_fetch in fetches)
            now = time.monotonic()
            pace.add(now, done_bytes)
            trouble = next((fetch.trouble for fetch in fetches if fetch.trouble), None)
            left_s = pace.seconds_left(total_bytes - done_bytes)
            self._send(Progressed(done_bytes, total_bytes, pace.bytes_per_s, left_s, trouble))
            if not workers:
                return
            try:
                outcome = outcomes.get(timeout=_REPORT_EVERY_S)
            except queue.Empty:
                continue
            workers -= 1
            if isinstance(outcome, ChangedError):
                # All threads must have stopped before the files are fetched by another listing.
                for fetch in fetches:
                    fetch.over = True
                for _ in range(workers):
                    outcomes.get()
            if outcome is not None:
                raise outcome


def _once(listing: Listing) -> list[RemoteFile]:
    """The files of a listing, one of each content, as files of the same content are one blob."""
    return list({file.digest: file for file in listing.files}.values())


def _free_bytes(folder: Path) -> int:
    """The free bytes of the disk that has the folder, or will have it."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(os.fspath(folder)).free


_STALL_S: Final = 10.0


def search(job: SearchJob) -> SearchResult:
    """Search the hub or the folder. Blocks for as long as the source likes. Raises: HubError."""
    try:
        return SearchResult(tuple(_candidates(job)))
    except UnreachableError as error:
        raise HubError("unreachable", f"{error}. {ELSEWHERE}") from error
    except TroubleError as error:
        message = f"{str(error).rstrip('.')}."
        raise HubError("unreachable", message, error.retry_after_s) from error


def _candidates(job: SearchJob) -> list[Candidate]:
    """Raises: HubError, TroubleError."""
    if job.folder is not None:
        return ModelFolder(Path(job.folder)).search(job.words)
    check_online()
    hub = Hub(job.endpoint, _STALL_S)
    # The hub may take several words as one text, which few names contain.
    for query in dict.fromkeys((" ".join(job.words), max(job.words, key=len))):
        candidates = [
            candidate for candidate in hub.search(query) if matches(job.words, candidate.repository)
        ]
        if candidates:
            return candidates
    return []


def main() -> int:
    # A Ctrl-C is meant for the gateway or the command that has started this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    accepted = threading.Event()
    threading.Thread(target=_watch_input, args=(accepted,), name="input", daemon=True).start()
    try:
        if isinstance(job, SearchJob):
            # SIGALRM ends this process, also if the lookup of a name hangs.
            signal.setitimer(signal.ITIMER_REAL, job.deadline_s)
            _send(search(job))
            return 0
        os.nice(_NICE)
        if job.folder is None:
            check_online()
        _send(Download(job, hub_cache(), _send, accepted.wait).run())
    except HubError as error:
        _send(error.failure)
        return 1
    return 0


def _watch_input(accepted: threading.Event) -> None:
    """Watch the input. A line accepts the plan; the end of the input ends this process at once."""
    while sys.stdin.buffer.readline():
        accepted.set()
    os._exit(1)


def _send(message: HubMessage) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    status = main()
    # A normal exit would wait for threads that still read.
    sys.stdout.flush()
    os._exit(status)
