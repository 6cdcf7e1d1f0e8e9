"""The models on the disks, as the gateway lists them, or as this command finds them without one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from gateway.cli.client import DISKS, GatewayClient, quoted
from gateway.cli.failure import CommandError, NobodyListensError, NoSuchModelError
from gateway.cli.options import names_gateway
from gateway.config.layers import ConfigError
from gateway.config.read import read_configuration
from gateway.config.settings import Flags
from gateway.library.catalogue import (
    EntryList,
    ModelOnDisk,
    Removed,
    Used,
    catalogue,
    look_up,
    objection,
    put_aside,
    remove,
    unknown,
    with_configured,
)
from gateway.library.finder import Finder
from gateway.system.state_dir import StateDir, default_state_dir, lock_holder
from gateway.system.state_file import read_state

T = TypeVar("T")


def asked(gateway: GatewayClient) -> list[ModelOnDisk]:
    """The models on the disks of the gateway's machine, as the gateway lists them."""
    return gateway.read(gateway.get("/admin/v1/library", DISKS), EntryList).models


class ModelsOnDisks:
    """Asks the gateway. Where no gateway runs and none was named, looks at this machine's disks."""

    def __init__(self, gateway: GatewayClient) -> None:
        self._gateway = gateway

    def entries(self) -> list[ModelOnDisk]:
        return self._either(asked, lambda here: here.all)

    def entry(self, name: str) -> ModelOnDisk:
        return self._either(
            lambda gateway: gateway.read(gateway.get(_path(name), DISKS), ModelOnDisk),
            lambda here: here.find(name),
        )

    def removal(self, name: str) -> Removed:
        """What `remove` would do. Raises: CommandError: it can't."""
        return self._either(
            lambda gateway: gateway.read(gateway.get(_path(name, "removals"), DISKS), Removed),
            lambda here: here.removal(name),
        )

    def remove(self, name: str) -> Removed:
        return self._either(
            lambda gateway: gateway.read(gateway.send("DELETE", _path(name)), Removed),
            lambda here: here.remove(name),
        )

    def _either(self, ask: Callable[[GatewayClient], T], look: Callable[[_Here], T]) -> T:
        try:
            return ask(self._gateway)
        except NobodyListensError:
            if names_gateway():
                raise
        return look(_Here())


def _path(name: str, kind: str = "library") -> str:
    """The path of an entry. A name that is a folder begins with a slash."""
    root = "/" if name.startswith("/") else ""
    return f"/admin/v1/{kind}/{root}{quoted(name.removeprefix('/'), name)}"


class _Here:
    def __init__(self) -> None:
        finder = Finder()
        try:
            read = read_configuration(Flags(), os.environ)
        except ConfigError as error:
            raise CommandError(str(error)) from error
        self._configuration = finder.with_found(read)
        settings = self._configuration.settings
        self._state_dir = StateDir(Path(settings.gateway.state_dir or default_state_dir()))
        used = read_state(self._state_dir.used_path, Used) or Used({})
        found = with_configured(finder.find(settings), self._configuration)
        self.all = catalogue(found, self._configuration, {}, used.at)

    def find(self, name: str) -> ModelOnDisk:
        if (entry := look_up(self.all, name)) is None:
            raise NoSuchModelError(unknown(self.all, name))
        return entry

    def removal(self, name: str) -> Removed:
        entry = self._removable(name)
        return Removed(entry.source, entry.size_bytes)

    def remove(self, name: str) -> Removed:
        entry = self._removable(name)
        try:
            remove(put_aside(entry), entry)
        except (OSError, ValueError) as error:
            raise CommandError(f"{entry.source} can't be removed: {error}") from error
        return Removed(entry.source, entry.size_bytes)

    def _removable(self, name: str) -> ModelOnDisk:
        entry = self.find(name)
        if (pid := lock_holder(self._state_dir.path)) is not None:
            raise CommandError(
                f"A gateway runs (pid {pid}), which may have it loaded: name it with --url."
            )
        if (reason := objection(entry, self._configuration, {}, None)) is not None:
            raise CommandError(reason)
        return entry
