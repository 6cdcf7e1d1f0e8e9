"""The state folder: whether a gateway could use it."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gateway.doctor.finding import Finding, error, ok, warning
from gateway.doctor.installation import Installation
from gateway.system.notation import format_size
from gateway.system.state_dir import StateDir
from protocol.endpoint import MAX_SOCKET_PATH_BYTES, EndpointError, endpoint

# A model's log has 30 MB at most, and a gateway has several.
_LITTLE_BYTES: Final = 1_000_000_000
_NOTHING_BYTES: Final = 50_000_000
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


def look_at_folder(installation: Installation) -> Iterator[Finding]:
    state_dir = installation.state_dir
    obstacles = list(_obstacles(state_dir))
    for evidence in obstacles:
        yield error(
            "state folder",
            evidence,
            "Move it away or give it back to the account that runs the gateway (`chown -R`), or "
            "choose another folder with --state-dir.",
        )
    if not obstacles:
        there = "can be written" if os.path.lexists(state_dir.path) else "will be made"
        yield ok("state folder", f"{state_dir.path} {there}.")


def _obstacles(state_dir: StateDir) -> Iterator[str]:
    """What keeps a gateway from writing there, by trying it: rights say little to root, or of a
    disk that is mounted to be read.
    """
    if not os.path.lexists(state_dir.path):
        above = _nearest(state_dir.path)
        if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
            yield f"{state_dir.path} can't be made in {above}."
        return
    unusual = list(state_dir.obstacles())
    yield from (f"{each}." for each in unusual)
    if unusual:
        return
    for folder in state_dir.folders:
        if not os.path.lexists(folder):
            continue
        try:
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as failure:
            if failure.errno not in _FULL:
                yield f"{folder} can't be written: {failure.strerror}."
            continue
        for path in sorted(folder.iterdir()):
            # Looked at again, as a gateway that runs removes some.
            if path.is_file() and not os.access(path, os.R_OK | os.W_OK) and path.is_file():
                yield f"{path} can't be written: it belongs to {_owner(path)}."


def _owner(path: Path) -> str:
    try:
        return path.owner()
    except (KeyError, OSError):
        return "another account"


def look_at_disk(installation: Installation) -> Iterator[Finding]:
    folder = _nearest(installation.state_dir.path)
    yield judge_disk(folder, shutil.disk_usage(folder).free)


def judge_disk(folder: Path, free_bytes: int) -> Finding:
    evidence = f"{format_size(free_bytes)} are free at {folder}."
    if free_bytes < _NOTHING_BYTES:
        remedy = "Make room: logs and what is learned about models are lost without it."
        return error("disk", evidence, remedy)
    if free_bytes < _LITTLE_BYTES:
        return warning("disk", evidence, f"Make room: {format_size(_LITTLE_BYTES)} are enough.")
    return ok("disk", evidence)


def look_at_socket_path(installation: Installation) -> Iterator[Finding]:
    yield judge_socket_path(installation.state_dir.longest_socket_path)


def judge_socket_path(path: Path) -> Finding:
    """The workers' sockets are files, and the system bounds their paths."""
    length = len(os.fsencode(path))
    try:
        endpoint(path)
    except EndpointError:
        return error(
            "socket path",
            f"The workers' sockets would be at {path}, {length} bytes; the system allows "
            f"{MAX_SOCKET_PATH_BYTES}.",
            "Choose a shorter folder with --state-dir.",
        )
    return ok("socket path", f"{length} of {MAX_SOCKET_PATH_BYTES} bytes.")


def _nearest(path: Path) -> Path:
    """The path, or what is there of the folders above it."""
    # Unlike Path's, these never raise, as for a name that is too long.
    return next((each for each in (path, *path.parents) if os.path.exists(each)), Path("/"))  # noqa: PTH110
