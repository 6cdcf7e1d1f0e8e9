"""What workers really took, remembered in the state folder."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from msgspec import Struct

from gateway.system.memory import BackEnd, back_end
from gateway.system.state_file import read_state, write_state

# A worker with its imports done and no model, until one was measured. On the CPU and with CUDA (its
# context and libraries) it was, elsewhere; on Metal it is a guess on the safe side.
PROCESS_BYTES: Final = {
    BackEnd.CPU: 60_000_000,
    BackEnd.CUDA: 900_000_000,
    BackEnd.METAL: 300_000_000,
}


class _Content(Struct, frozen=True):
    fixed_bytes: dict[str, int]
    process_bytes: int | None = None


class Learned:
    """One file. A damaged one counts as empty, since everything in it can be measured again.

    `measured_process_bytes` is a worker with its imports and no model, on this machine.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        content = read_state(path, _Content) or _Content({})
        self._fixed_bytes = dict(content.fixed_bytes)
        self.measured_process_bytes = content.process_bytes

    @property
    def process_bytes(self) -> int:
        """Of a worker without a model: as measured, or what is counted on until then."""
        return self.measured_process_bytes or PROCESS_BYTES[back_end()]

    def fixed_bytes(self, key: str) -> int | None:
        """A process with its weights, by what `model_key` gives."""
        return self._fixed_bytes.get(key)

    def put(self, key: str, fixed_bytes: int) -> None:
        """Remember it; to be called off the event loop."""
        self._fixed_bytes[key] = fixed_bytes
        self._write()

    def put_process(self, process_bytes: int) -> None:
        """Remember it; to be called off the event loop."""
        self.measured_process_bytes = process_bytes
        self._write()

    def _write(self) -> None:
        write_state(self._path, _Content(dict(self._fixed_bytes), self.measured_process_bytes))
