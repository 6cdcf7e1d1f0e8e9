"""The files of the keys, which commands may write beside a running gateway. All calls block.

The operator's own key has a file of its own. Only accounts that may read the state folder can read
that key.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from gateway.access.api_key import (
    ApiKey,
    KeyChange,
    KeyTerms,
    digest_of,
    name_complaint,
    new_id,
    new_secret,
)
from gateway.system.state_file import read_file, read_secret, write_secret

_LOCK_S: Final = 5.0
_LOCK_EVERY_S: Final = 0.02

# A signature changes when the file changes. None: there is no file.
Signature: TypeAlias = tuple[int, int, int] | None


class KeyFileError(Exception):
    """The file of the keys can't be used, or can't be changed as was asked. The text says why."""


class NoSuchKeyError(KeyFileError):
    """There is no key of that name."""


class _Content(Struct, frozen=True, forbid_unknown_fields=True):
    keys: tuple[ApiKey, ...] = ()


class KeyFile:
    """The file of the API keys, which holds their hashes. As long as there is the file, requests
    need a key, also after the last key was revoked.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def signature(self) -> Signature:
        """Raises: OSError."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        return status.st_mtime_ns, status.st_ino, status.st_size

    def read(self) -> tuple[ApiKey, ...]:
        """Raises: KeyFileError: the file can't be read, or other accounts could have written it."""
        try:
            content = read_file(self.path)
            keys = msgspec.json.decode(content, type=_Content).keys
            return tuple(key for key in keys if key.revoked_at is None)
        except FileNotFoundError:
            return ()
        except (OSError, msgspec.MsgspecError) as error:
            raise KeyFileError(
                f"The keys in {self.path} can't be read ({error}), and without them every client "
                "would get in: mend the file, or put a copy back. `bulkhead key off` gives up "
                "all keys."
            ) from error

    def add(self, name: str, terms: KeyTerms, now: float) -> tuple[ApiKey, str]:
        """Add a key. Returns the key and its secret, which isn't stored. The name of a key that
        has expired may be used again.

        Raises:
            KeyFileError: no key can have this name or these terms, or the file can't be written.
        """
        if (complaint := name_complaint(name)) is not None:
            raise KeyFileError(f"{complaint}.")
        if terms.complaint is not None:
            raise KeyFileError(terms.complaint)
        secret = new_secret()
        key = ApiKey(
            **msgspec.structs.asdict(terms),
            name=name,
            digest=digest_of(secret.encode()).hex(),
            id=new_id(),
            created_at=now,
        )
        with self._locked():
            keys = self.read()
            for other in keys:
                if other.name == name and not other.expired(now):
                    raise KeyFileError(
                        f"There is a key {name!r} already: choose another name, or revoke it with "
                        f"`bulkhead key revoke {name}`."
                    )
            self._write((*(other for other in keys if other.name != name), key))
        return key, secret

    def change(self, name: str, change: KeyChange) -> ApiKey:
        """Change the terms of a key, and return its new record. Its secret stays.

        Raises:
            NoSuchKeyError: there is no key of that name.
            KeyFileError: no key can have these terms, or the file can't be read or written.
        """
        with self._locked():
            keys = self.read()
            present = _named(name, keys)
            changed = change.of(present)
            if changed.complaint is not None:
                raise KeyFileError(changed.complaint)
            self._write(tuple(changed if key is present else key for key in keys))
        return changed

    def revoke(self, name: str) -> ApiKey:
        """Revoke a key, and return the record that it had.

        Raises:
            NoSuchKeyError: there is no key of that name.
            KeyFileError: the file can't be read or written.
        """
        with self._locked():
            keys = self.read()
            revoked = _named(name, keys)
            self._write(tuple(key for key in keys if key is not revoked))
        return revoked

    def remove(self) -> None:
        """Remove all keys, and the need of one. Raises: KeyFileError."""
        with self._locked():
            self.path.unlink(missing_ok=True)

    def _write(self, keys: tuple[ApiKey, ...]) -> None:
        """Raises: KeyFileError: the keys couldn't be read again."""
        content = msgspec.json.encode(_Content(keys))
        try:
            msgspec.json.decode(content, type=_Content)
        except msgspec.ValidationError as error:
            raise KeyFileError(f"No key can have these terms: {error}.") from error
        write_secret(self.path, msgspec.json.format(content, indent=1) + b"\n")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Let no other program change the file meanwhile. Raises KeyFileError."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
            try:
                _lock(lock)
                yield
            finally:
                os.close(lock)
        except OSError as error:
            raise KeyFileError(f"The keys in {self.path} can't be changed: {error}.") from error


def _named(name: str, keys: tuple[ApiKey, ...]) -> ApiKey:
    """Raises: NoSuchKeyError."""
    for key in keys:
        if key.name == name:
            return key
    known = ", ".join(key.name for key in keys)
    raise NoSuchKeyError(f"There is no key {name!r}; there are: {known or 'none'}.")


def _lock(descriptor: int) -> None:
    """Raises OSError."""
    until = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise
            time.sleep(_LOCK_EVERY_S)
        else:
            return


logger = logging.getLogger(__name__)


def admin_key(path: Path) -> str | None:
    """The operator's key; None if there is no key, or if its file can't be read or trusted."""
    try:
        return _read_key(path)
    except (OSError, UnicodeDecodeError):
        return None


def ensured_admin_key(path: Path) -> str:
    """The operator's key. A new key is made if there is none, or if other accounts could read it.

    Raises OSError.
    """
    try:
        if (known := _read_key(path)) is not None:
            return known
    except FileNotFoundError:
        pass
    except (PermissionError, UnicodeDecodeError) as error:
        logger.warning("There is a new admin key in %s: %s", path, error)
    secret = new_secret()
    write_secret(path, secret.encode() + b"\n")
    return secret


def _read_key(path: Path) -> str | None:
    return read_secret(path).decode("ascii").strip() or None
