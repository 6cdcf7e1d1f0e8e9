"""Writes an agent's settings into the agent's own file, and takes them out again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from gateway.clients.agents import Agent, Connection, nested
from gateway.system.state_file import write_secret

_BACKUP: Final = ".before-bulkhead"


class OwnFileError(Exception):
    """The file can't be changed. The text says why, without a full stop."""


class Written(Struct, frozen=True):
    """A file that was changed. `backup` has what was there before the first change; None: nothing
    was there.
    """

    path: Path
    backup: Path | None


def write(agent: Agent, connection: Connection, environment: Mapping[str, str]) -> Written:
    """Write the settings. Other values of the file stay. Only this account can read the file, since
    it may have a key.

    Raises:
        OwnFileError: the file isn't JSON.
        OSError: the file can't be read or written.
    """
    path, backup = _places(agent, environment)
    content = agent.file.content(connection)
    before = _read(path)
    if not isinstance(content, str):
        content = _text(nested(content, _object(path, before)))
    path.parent.mkdir(parents=True, exist_ok=True)
    if not backup.exists():
        write_secret(backup, before)
    write_secret(path, content.encode())
    return Written(path, backup if backup.stat().st_size else None)


def undo(agent: Agent, environment: Mapping[str, str]) -> Path:
    """Give the settings the values that they had before `write`; without a value they are removed.
    Other values stay as they are now. Return the path of the file.

    Raises:
        OwnFileError: there is nothing to undo, or the file isn't JSON.
        OSError: the file can't be read or written.
    """
    path, backup = _places(agent, environment)
    if not backup.exists():
        raise OwnFileError(f"nothing of {path} was changed by `bulkhead launch --write`")
    before = backup.read_bytes()
    content = agent.file.content(Connection("", "", 1))
    if isinstance(content, str):
        restored = before
    else:
        now = _object(path, _read(path))
        for pair in content:
            _restore(now, _object(backup, before), pair)
        restored = _text(now).encode() if now or before else b""
    if restored:
        write_secret(path, restored)
    else:
        path.unlink(missing_ok=True)
    backup.unlink()
    return path


def _places(agent: Agent, environment: Mapping[str, str]) -> tuple[Path, Path]:
    """The file, and its backup. The file may be a link to a place of the user's."""
    path = agent.file.path(environment).resolve()
    return path, path.with_name(path.name + _BACKUP)


def _read(path: Path) -> bytes:
    """The content; empty if there is no file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _object(path: Path, content: bytes) -> dict[str, Any]:
    try:
        value = json.loads(content or b"{}")
    except ValueError as error:
        raise OwnFileError(f"{path} isn't JSON without comments ({error})") from error
    if not isinstance(value, dict):
        raise OwnFileError(f"{path} has no JSON object")
    return value


def _text(whole: dict[str, Any]) -> str:
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _restore(now: dict[str, Any], before: dict[str, Any], path: tuple[str, ...]) -> None:
    """Give the value at `path` in `now` the value that it has in `before`."""
    key, *rest = path
    if not rest:
        if key in before:
            now[key] = before[key]
        else:
            now.pop(key, None)
    elif isinstance(now.get(key), dict):
        earlier = before.get(key)
        _restore(now[key], earlier if isinstance(earlier, dict) else {}, tuple(rest))
        if not now[key] and key not in before:
            del now[key]
