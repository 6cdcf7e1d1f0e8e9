"""What models really took, remembered in the state folder."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from gateway.state_file import read_state, write_state


class Measured(Struct, frozen=True):
    """Bytes right after the load, and with a sequence that filled the context; None: none did."""

    idle_bytes: int
    full_bytes: int | None = None


class _Content(Struct, frozen=True):
    by_model: dict[str, Measured]


class Learned:
    """One file, keyed by what `model_key` gives. A damaged one counts as empty, since everything in
    it can be measured again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        content = read_state(path, _Content)
        self._by_model = {} if content is None else dict(content.by_model)

    def get(self, key: str) -> Measured | None:
        return self._by_model.get(key)

    def put(self, key: str, measured: Measured) -> None:
        """Remember it; to be called off the event loop."""
        self._by_model[key] = measured
        write_state(self._path, _Content(dict(self._by_model)))
