"""What models really took, remembered in the state folder."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
from msgspec import Struct

logger = logging.getLogger(__name__)


class Measured(Struct, frozen=True):
    """Bytes right after the load, and with a sequence that filled the context; None: none did."""

    idle_bytes: int
    full_bytes: int | None = None


class Memory(Struct, frozen=True):
    """`by_model` is keyed by source, context and fingerprint of the files."""

    by_model: dict[str, Measured] = {}


class Learned:
    """One file. A damaged one counts as empty, since everything in it can be measured again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._by_model: dict[str, Measured] = {}
        try:
            self._by_model = dict(msgspec.json.decode(path.read_bytes(), type=Memory).by_model)
        except FileNotFoundError:
            pass
        except (OSError, msgspec.MsgspecError) as error:
            logger.warning("%s is ignored: %s", path, error)

    def get(self, key: str) -> Measured | None:
        return self._by_model.get(key)

    def put(self, key: str, measured: Measured) -> None:
        """Remember it; to be called off the event loop."""
        self._by_model[key] = measured
        unfinished = self._path.with_suffix(".new")
        try:
            unfinished.write_bytes(msgspec.json.encode(Memory(self._by_model)))
            unfinished.replace(self._path)
        except OSError as error:
            logger.warning("%s can't be written: %s", self._path, error)
