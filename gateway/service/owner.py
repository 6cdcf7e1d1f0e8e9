"""Whose the service is: who installs it, or who has called sudo."""

from __future__ import annotations

import os
import pwd
from collections.abc import MutableMapping
from pathlib import Path

from msgspec import Struct

from gateway.service.failure import ServiceMisuseError


class Owner(Struct, frozen=True):
    """An account."""

    name: str
    uid: int
    gid: int
    home: Path


def owner(environment: MutableMapping[str, str], *, system: bool) -> Owner:
    """The account that the gateway runs as. Its folders go before those of root from here on.

    Raises:
        ServiceMisuseError: the order needs root, or must not have it.
    """
    root = os.geteuid() == 0
    caller = environment.get("SUDO_USER")
    if not system:
        if root and caller not in (None, "root"):
            raise ServiceMisuseError(
                "With sudo this would become root's own service: leave sudo out, or add --system "
                "for one that runs without anybody logged in."
            )
        return _account(pwd.getpwuid(os.geteuid()), Path.home())
    if not root:
        raise ServiceMisuseError(
            "A service of the system needs root: call it as `sudo bulkhead service ... --system` "
            "(with the whole path of bulkhead, if sudo doesn't find it)."
        )
    entry = pwd.getpwnam(caller) if caller else pwd.getpwuid(0)
    account = _account(entry, Path(entry.pw_dir))
    environment["HOME"] = str(account.home)
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"):
        environment.pop(name, None)
    return account


def _account(entry: pwd.struct_passwd, home: Path) -> Owner:
    return Owner(entry.pw_name, entry.pw_uid, entry.pw_gid, home)
