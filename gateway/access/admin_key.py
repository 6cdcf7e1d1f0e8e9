"""The operator's own key: in the state folder, for whoever may read there. Blocks."""

from __future__ import annotations

import logging
from pathlib import Path

from gateway.access.api_key import new_secret
from gateway.system.state_file import read_secret, write_secret

logger = logging.getLogger(__name__)


def admin_key(path: Path) -> str | None:
    """The key that is there; None if there is none, or none that can be read and trusted."""
    try:
        return _read(path)
    except (OSError, UnicodeDecodeError):
        return None


def ensured_admin_key(path: Path) -> str:
    """The same; without one, or if others could read it, a new one is made.

    Raises OSError.
    """
    try:
        if (known := _read(path)) is not None:
            return known
    except FileNotFoundError:
        pass
    except (PermissionError, UnicodeDecodeError) as error:
        logger.warning("There is a new admin key in %s: %s", path, error)
    secret = new_secret()
    write_secret(path, secret.encode() + b"\n")
    return secret


def _read(path: Path) -> str | None:
    return read_secret(path).decode("ascii").strip() or None
