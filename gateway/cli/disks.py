"""The models on the disks, from the gateway, or, where none runs, as the command finds them."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from gateway.cli.bodies import EntryReading, RemovedReading
from gateway.cli.client import GatewayClient
from gateway.cli.failure import CommandError, NobodyListensError, NoSuchModelError
from gateway.cli.options import names_gateway
from gateway.config.mistakes import ConfigError
from gateway.config.read import read_configuration
from gateway.config.settings import Flags
from gateway.library.catalogue import (
    ModelOnDisk,
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


class Shelf:
    """Asks the gateway, and looks itself where no gateway runs and none was named."""

    def __init__(self, gateway: GatewayClient) -> None:
        self._gateway = gateway
        self._may_look = not names_gateway()

    def entries(self) -> tuple[EntryReading, ...]:
        try:
            return self._gateway.library()
        except NobodyListensError:
            if not self._may_look:
                raise
        here = _Here()
        return tuple(msgspec.convert(each, EntryReading, from_attributes=True) for each in here.all)

    def entry(self, name: str) -> EntryReading:
        try:
            return self._gateway.library_entry(name)
        except NobodyListensError:
            if not self._may_look:
                raise
        return msgspec.convert(_Here().find(name), EntryReading, from_attributes=True)

    def removal(self, name: str) -> RemovedReading:
        """What `remove` would do. Raises: CommandError: it can't."""
        try:
            return self._gateway.removal(name)
        except NobodyListensError:
            if not self._may_look:
                raise
        return _Here().removal(name)

    def remove(self, name: str) -> RemovedReading:
        try:
            return self._gateway.remove(name)
        except NobodyListensError:
            if not self._may_look:
                raise
        return _Here().remove(name)


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

    def removal(self, name: str) -> RemovedReading:
        entry = self._removable(name)
        return RemovedReading(entry.source, entry.size_bytes)

    def remove(self, name: str) -> RemovedReading:
        entry = self._removable(name)
        try:
            remove(put_aside(entry), entry)
        except (OSError, ValueError) as error:
            raise CommandError(f"{entry.source} can't be removed: {error}") from error
        return RemovedReading(entry.source, entry.size_bytes)

    def _removable(self, name: str) -> ModelOnDisk:
        entry = self.find(name)
        if (pid := lock_holder(self._state_dir.path)) is not None:
            raise CommandError(
                f"A gateway runs (pid {pid}), which may have it loaded: name it with --url."
            )
        if (reason := objection(entry, self._configuration, {}, None)) is not None:
            raise CommandError(reason)
        return entry
