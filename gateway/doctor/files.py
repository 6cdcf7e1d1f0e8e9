"""Checks of the state folder with its disk and sockets, of secrets, and of folders of models."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gateway.access.key_file import KeyFile, KeyFileError
from gateway.config.machine_rules import tls_files
from gateway.config.model_folders import expand_home, hugging_face_cache
from gateway.config.settings import HUGGING_FACE
from gateway.doctor.finding import Finding, error, ok, warning
from gateway.doctor.installation import Installation
from gateway.system.file_access import away, denied
from gateway.system.notation import format_size
from gateway.system.state_dir import StateDir
from gateway.system.state_file import written_by_others
from protocol.message_base import (
    MAX_SOCKET_PATH_BYTES,
    EndpointError,
    endpoint,
)

# Free bytes below which the disk gets a warning or an error. A model's log takes 30 MB at most.
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
    """The reasons why the state folder can't be written, or can't be made. Writing to a folder is
    tried: the folder's mode doesn't tell whether root may write, or whether the disk is read-only.
    """
    if not os.path.lexists(state_dir.path):
        above = _nearest(state_dir.path)
        if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
            yield f"{state_dir.path} can't be made in {above}."
        return
    unusual = list(state_dir.obstacles())
    yield from (f"{obstacle}." for obstacle in unusual)
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
            # `is_file` is called twice, since a running gateway may remove the file in between.
            if path.is_file() and not os.access(path, os.R_OK | os.W_OK) and path.is_file():
                yield f"{path} can't be written: it belongs to {_owner(path)}."
                continue
            with contextlib.suppress(OSError):
                if path.is_file() and (reason := written_by_others(path, path.stat())) is not None:
                    yield f"{path} isn't read, or can't be trusted: {reason}."


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
        remedy = "Make room: otherwise logs and measurements of models are lost."
        return error("disk", evidence, remedy)
    if free_bytes < _LITTLE_BYTES:
        return warning("disk", evidence, f"Make room: {format_size(_LITTLE_BYTES)} are enough.")
    return ok("disk", evidence)


def look_at_socket_path(installation: Installation) -> Iterator[Finding]:
    yield judge_socket_path(installation.state_dir.longest_socket_path)


def judge_socket_path(path: Path) -> Finding:
    """Judge the length of the path of a worker's socket. The system has a limit for this length."""
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
    """The path, or its nearest parent that exists."""
    # For a name that is too long os.path.exists returns False, and Path.exists raises.
    return next((parent for parent in (path, *path.parents) if os.path.exists(parent)), Path("/"))  # noqa: PTH110


_SECRETS = "secrets"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def look_at_secrets(installation: Installation) -> Iterator[Finding]:
    state_dir = installation.state_dir
    findings = [
        *_open(state_dir.admin_key_path, _OTHERS, "its readers may give any order"),
        *_open(state_dir.keys_path, _OTHERS, "it has the hashes and rights of all keys"),
    ]
    if (files := tls_files(installation.settings.gateway)) is not None:
        # The rights of the group don't count: a group that may read certificates is common.
        findings += _open(files[1], stat.S_IRWXO, "its readers can pass for this machine")
    findings += _broken_keys(state_dir.keys_path)
    yield from findings
    if not findings:
        yield ok(_SECRETS, "Only this account can read the keys.")


def _broken_keys(path: Path) -> Iterator[Finding]:
    # A state folder that can't be looked into has a finding of its own.
    if not os.path.isfile(path):  # noqa: PTH113
        return
    try:
        KeyFile(path).read()
    except KeyFileError as failure:
        yield error(_SECRETS, str(failure), "Until then no key can be made, changed or revoked.")


def _open(path: Path, forbidden: int, why: str) -> Iterator[Finding]:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return
    if mode & forbidden:
        say = error if mode & stat.S_IWOTH or path.suffix != ".json" else warning
        yield say(
            _SECRETS,
            f"Others have rights to {path} (its mode is {mode:04o}), and {why}.",
            f"`chmod 600 {path}`; if others use this machine, make new keys.",
        )


_MODEL_CACHE: Final = "model cache"


def look_at_model_cache(_installation: Installation) -> Iterator[Finding]:
    cache = hugging_face_cache()
    why = _unwritable(cache)
    if why is None:
        there = "can be written" if cache.is_dir() else "will be made"
        yield ok(_MODEL_CACHE, f"{cache} {there}.")
        return
    yield warning(
        _MODEL_CACHE,
        f"Nothing can be pulled: {why}.",
        "Give the folder to the account that runs the gateway (`chown -R`), or name another with "
        "HF_HOME; then `bulkhead service install`, as the service's definition has that variable.",
    )


def _unwritable(cache: Path) -> str | None:
    if (absent := away(cache)) is not None:
        return f"{cache} is on a disk that isn't mounted ({absent.volume})"
    # For a name that is too long os.path.lexists returns False, and Path's methods raise.
    nearest = next(parent for parent in (cache, *cache.parents) if os.path.lexists(parent))
    if not nearest.is_dir():
        return f"{nearest} is no folder"
    if nearest != cache:
        return None if os.access(nearest, os.W_OK | os.X_OK) else f"{cache} can't be made"
    try:
        with tempfile.TemporaryFile(dir=cache):
            return None
    except OSError as failure:
        return f"{cache} can't be written: {failure.strerror}"


_DISCOVERY: Final = "discovery"


def look_at_discovery(installation: Installation) -> Iterator[Finding]:
    """Look at the folders of models.discover; the Hugging Face cache has a check of its own."""
    places = [place for place in installation.settings.discovery.discover if place != HUGGING_FACE]
    unread = [(place, why) for place in places if (why := _unreadable(place)) is not None]
    for place, why in unread:
        yield warning(
            _DISCOVERY,
            f"No models are found in {place}: {why}",
            "Correct models.discover, connect the disk, or let the account that runs the gateway "
            "read it. Meanwhile no model is removed.",
        )
    if not unread:
        yield ok(
            _DISCOVERY, f"{len(places)} folders can be read." if places else "No folder is named."
        )


def _unreadable(place: str) -> str | None:
    folder = expand_home(place)
    if (absent := away(folder / "model")) is not None:
        return str(absent)
    try:
        with os.scandir(folder):
            return None
    except OSError as failure:
        return denied(failure) or f"{failure.strerror}."
