"""What fits: the budget of this machine, the memory that a model asks for at its load, and the
context that it gets.
"""

from __future__ import annotations

import logging
import subprocess
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec
import psutil
from msgspec import Struct

from gateway.config.settings import MemorySettings
from gateway.memory.estimate import Estimate, EstimateLine, EstimateTerms, estimate, model_key
from gateway.memory.weights import LoadOptions, adapter_bytes, read_weights
from gateway.system.memory import BackEnd, DeviceMemory, back_end, device_info, device_memory
from gateway.system.notation import is_share, parse_size
from gateway.system.state_file import read_state, write_state

logger = logging.getLogger(__name__)

# A worker with its imports done and no model, until one was measured here. The figures of the CPU
# and of CUDA were measured; that of Metal is a guess on the safe side.
PROCESS_BYTES: Final = {
    BackEnd.CPU: 60_000_000,
    BackEnd.CUDA: 900_000_000,
    BackEnd.METAL: 300_000_000,
}


class _LearnedFile(Struct, frozen=True):
    fixed_bytes: dict[str, int]
    process_bytes: int | None = None


class Learned:
    """Measurements of workers on this machine, in one file. A damaged file counts as empty, since
    all of it can be measured again.

    `measured_process_bytes` is a worker with its imports and no model.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        content = read_state(path, _LearnedFile) or _LearnedFile({})
        self._fixed_bytes = dict(content.fixed_bytes)
        self.measured_process_bytes = content.process_bytes

    @property
    def process_bytes(self) -> int:
        """A worker without a model: as measured, or what is assumed until then."""
        return self.measured_process_bytes or PROCESS_BYTES[back_end()]

    def fixed_bytes(self, key: str) -> int | None:
        """A worker with its weights, by the key of `model_key`."""
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
        write_state(self._path, _LearnedFile(dict(self._fixed_bytes), self.measured_process_bytes))


# The floor as a multiple of the weights, where only these are understood.
_GUESS: Final = 1.3
# A model is loaded with a shorter context, but with none shorter than this.
LEAST_CONTEXT_TOKENS: Final = 2048


def whole(
    folder: Path,
    context_tokens: int,
    ordinary_tokens: int,
    python: str | None,
    learned: Learned,
    options: LoadOptions,
) -> tuple[str, Estimate]:
    """The estimate with the whole context, after the key that measurements are kept by.

    Raises:
        EstimateError, OSError: the files can't be understood, or read.
    """
    key = model_key(folder, python, options)
    terms = EstimateTerms(
        context_tokens,
        ordinary_tokens,
        learned.process_bytes,
        learned.fixed_bytes(key),
        back_end(),
        options,
    )
    return key, estimate(folder, terms)


def shortened(estimated: Estimate, most_bytes: int) -> Estimate:
    """With as much of the context as one sequence can get, and no less than is worth a load."""
    least = min(LEAST_CONTEXT_TOKENS, estimated.context_tokens)
    tokens = max(least, estimated.longest_tokens(most_bytes))
    return msgspec.structs.replace(
        estimated,
        context_tokens=tokens,
        ordinary_tokens=min(estimated.ordinary_tokens, tokens),
    )


class Fit(Struct, frozen=True):
    """Bytes that a model asks for at its load, the context that it gets with these, the whole
    context, and the bytes that can be had.
    """

    needed_bytes: int
    context_tokens: int
    wanted_tokens: int
    possible_bytes: int

    @property
    def fits(self) -> bool:
        """It fits with `context_tokens`."""
        return self.needed_bytes <= self.possible_bytes

    @property
    def is_cut(self) -> bool:
        """The whole context doesn't fit."""
        return self.context_tokens < self.wanted_tokens


def fit(whole: Estimate, possible_bytes: int) -> Fit:
    """The floor and the context of a load, where it can have `possible_bytes`."""
    found = shortened(whole, possible_bytes)
    return Fit(found.floor_bytes, found.context_tokens, whole.context_tokens, possible_bytes)


def guess(folder: Path, process_bytes: int, options: LoadOptions) -> int:
    """The floor in bytes, where only the weights are understood. `process_bytes` is a worker
    without a model.

    Raises:
        EstimateError, OSError: not even the weights are understood, or read.
    """
    weight_bytes = read_weights(folder).bytes
    if options.adapter is not None:
        weight_bytes += adapter_bytes(options.adapter)
    if options.draft is not None:
        weight_bytes += read_weights(options.draft).bytes
    return process_bytes + int(weight_bytes * _GUESS)


_LENGTHS: Final = (2_000, 8_000, 32_000)

Verdict: TypeAlias = Literal["fits", "fits with a shorter context", "doesn't fit"]


class Outline(Struct, frozen=True):
    """An estimate for people, in bytes. A load with the whole context takes `floor_bytes`, the sum
    of the parts, and one with the granted context `needed_bytes`. Of the budget `possible_bytes`
    can be had, as pinned models and groups keep `kept_bytes`. `rows` counts the sequences that have
    room at once, by their tokens. `company` are the floors of models that are loaded with it.
    """

    context_tokens: int
    parts: tuple[EstimateLine, ...]
    floor_bytes: int
    idle_bytes: int
    measured_idle_bytes: int | None
    token_bytes: int
    rows: dict[int, int]
    verdict: Verdict
    needed_bytes: int
    possible_bytes: int
    kept_bytes: int
    granted_context_tokens: int
    company: dict[str, int]


def outline_of(
    whole: Estimate, possible_bytes: int, kept_bytes: int, company: dict[str, int]
) -> Outline | None:
    """None if its files don't tell the size of its sequences."""
    if not whole.shape.sequence_bytes(whole.context_tokens):
        return None
    found = fit(whole, possible_bytes)
    verdict: Verdict = "doesn't fit"
    if found.fits:
        verdict = "fits with a shorter context" if found.is_cut else "fits"
    lengths = [each for each in _LENGTHS if each <= found.context_tokens]
    return Outline(
        context_tokens=whole.context_tokens,
        parts=whole.lines,
        floor_bytes=whole.floor_bytes,
        idle_bytes=whole.calculated_fixed_bytes,
        measured_idle_bytes=whole.measured_fixed_bytes,
        token_bytes=whole.token_bytes,
        rows={each: whole.rows(possible_bytes, each) for each in lengths},
        verdict=verdict,
        needed_bytes=found.needed_bytes,
        possible_bytes=possible_bytes,
        kept_bytes=kept_bytes,
        granted_context_tokens=found.context_tokens,
        company=company,
    )


# The least part of its memory that macOS recommends to MLX: 10.7 GiB of 16 (ollama#17367 has more).
_LEAST_SHARE: Final = 2 / 3


def budget_bytes(memory: MemorySettings) -> int:
    """The budget on this machine. For "auto" and shares the device is asked, in a process of its
    own: iogpu.wired_limit_mb may have been set since the last start.
    """
    total_bytes = psutil.virtual_memory().total
    device = None
    if memory.budget == "auto" or is_share(memory.budget):
        try:
            device = device_memory(device_info())
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            logger.warning("The device's memory can't be read: %s", error)
            device = unknown_device(total_bytes)
    return budget_of(memory, total_bytes, device)


def unknown_device(total_bytes: int) -> DeviceMemory:
    """What is assumed where MLX can't be asked. `total_bytes` is the machine's memory."""
    return DeviceMemory(int(total_bytes * _LEAST_SHARE))


def budget_of(memory: MemorySettings, total_bytes: int, device: DeviceMemory | None) -> int:
    """The budget, on a machine with `total_bytes` of memory. The headroom is taken off an automatic
    budget alone. A share is of the memory that models are in: the card's, where MLX computes on
    one.
    """
    if device is not None and device.is_card:
        total_bytes = device.most_bytes
    if memory.budget != "auto":
        return parse_size(memory.budget, total_bytes)
    most_bytes = total_bytes if device is None else min(total_bytes, device.most_bytes)
    return max(0, most_bytes - parse_size(memory.headroom))
