"""Fits models into memory: the budget of this machine, the memory that a model asks for at its
load, and the context that the model gets.
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

# The bytes of a worker with its imports done and no model, until a worker was measured here. The
# figures of the CPU and of CUDA were measured. The figure of Metal is a guess on the safe side.
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
    all its content can be measured again.

    `measured_process_bytes` are the bytes of a worker with its imports and no model; None: not
    measured.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        content = read_state(path, _LearnedFile) or _LearnedFile({})
        self._fixed_bytes = dict(content.fixed_bytes)
        self.measured_process_bytes = content.process_bytes

    @property
    def process_bytes(self) -> int:
        """The bytes of a worker without a model: as measured, or as assumed until then."""
        return self.measured_process_bytes or PROCESS_BYTES[back_end()]

    def fixed_bytes(self, key: str) -> int | None:
        """The measured bytes of a worker with its weights, by the key of `model_key`; None: not
        measured.
        """
        return self._fixed_bytes.get(key)

    def put(self, key: str, fixed_bytes: int) -> None:
        """Store the bytes of a worker with its weights. To be called off the event loop."""
        self._fixed_bytes[key] = fixed_bytes
        self._write()

    def put_process(self, process_bytes: int) -> None:
        """Store the bytes of a worker without a model. To be called off the event loop."""
        self.measured_process_bytes = process_bytes
        self._write()

    def _write(self) -> None:
        write_state(self._path, _LearnedFile(dict(self._fixed_bytes), self.measured_process_bytes))


# The floor without the process, as a multiple of the weights, where only weights are understood.
_GUESS: Final = 1.3
# The context of a load may be shorter than configured, but no shorter than this.
LEAST_CONTEXT_TOKENS: Final = 2048


def whole(
    folder: Path,
    context_tokens: int,
    ordinary_tokens: int,
    python: str | None,
    learned: Learned,
    options: LoadOptions,
) -> tuple[str, Estimate]:
    """The key by which the model's measurements are kept, and the estimate with the whole context.

    Raises:
        EstimateError: the files can't be understood.
        OSError: the files can't be read.
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
    """The estimate with the part of the context that one sequence can fill within `most_bytes`, and
    no less than `LEAST_CONTEXT_TOKENS`.
    """
    least = min(LEAST_CONTEXT_TOKENS, estimated.context_tokens)
    tokens = max(least, estimated.longest_tokens(most_bytes))
    return msgspec.structs.replace(
        estimated,
        context_tokens=tokens,
        ordinary_tokens=min(estimated.ordinary_tokens, tokens),
    )


class Fit(Struct, frozen=True):
    """The memory and the context of a model at its load. The model asks for `needed_bytes`, and
    gets `context_tokens` of its whole context, `wanted_tokens`. It can have `possible_bytes` at
    most.
    """

    needed_bytes: int
    context_tokens: int
    wanted_tokens: int
    possible_bytes: int

    @property
    def fits(self) -> bool:
        """Whether the model fits with `context_tokens`."""
        return self.needed_bytes <= self.possible_bytes

    @property
    def is_cut(self) -> bool:
        """Whether the whole context doesn't fit."""
        return self.context_tokens < self.wanted_tokens


def fit(whole: Estimate, possible_bytes: int) -> Fit:
    """The floor and the context of a load that can have `possible_bytes`."""
    shorter = shortened(whole, possible_bytes)
    return Fit(shorter.floor_bytes, shorter.context_tokens, whole.context_tokens, possible_bytes)


def guess(folder: Path, process_bytes: int, options: LoadOptions) -> int:
    """The floor in bytes, where only the weights are understood. A worker without a model takes
    `process_bytes`.

    Raises:
        EstimateError: not even the weights are understood.
        OSError: the folder can't be read.
    """
    weight_bytes = read_weights(folder, pictures=options.pictures).bytes
    if options.adapter is not None:
        weight_bytes += adapter_bytes(options.adapter)
    if options.draft is not None:
        weight_bytes += read_weights(options.draft).bytes
    return guessed_floor_bytes(weight_bytes, process_bytes)


def guessed_floor_bytes(weight_bytes: int, process_bytes: int) -> int:
    """The floor in bytes, where only the size of the weights is known."""
    return process_bytes + int(weight_bytes * _GUESS)


_LENGTHS: Final = (2_000, 8_000, 32_000)

Fitness: TypeAlias = Literal["fits", "fits with a shorter context", "doesn't fit"]


# Longer than the context of any model: an estimate is cut to the model's own.
LONGEST_CONTEXT_TOKENS: Final = 1 << 24


class Outline(Struct, frozen=True):
    """An estimate for people, in bytes. A load with the whole context takes `floor_bytes`, the sum
    of the `parts`. A load with the granted context takes `needed_bytes`. The model can have
    `possible_bytes` of the budget, since pinned models and groups reserve `reserved_bytes`. `rows`
    counts the sequences that have room at once, by their tokens. `company` are the floors of the
    models that are loaded together with this model.
    """

    context_tokens: int
    parts: tuple[EstimateLine, ...]
    floor_bytes: int
    idle_bytes: int
    measured_idle_bytes: int | None
    token_bytes: int
    rows: dict[int, int]
    fitness: Fitness = msgspec.field(name="verdict")
    needed_bytes: int
    possible_bytes: int
    reserved_bytes: int = msgspec.field(name="kept_bytes")
    granted_context_tokens: int
    company: dict[str, int]


def outline_of(
    whole: Estimate, possible_bytes: int, reserved_bytes: int, company: dict[str, int]
) -> Outline | None:
    """The outline of a model; None if its files don't tell the size of its sequences."""
    if not whole.shape.sequence_bytes(whole.context_tokens):
        return None
    best_fit = fit(whole, possible_bytes)
    fitness: Fitness = "doesn't fit"
    if best_fit.fits:
        fitness = "fits with a shorter context" if best_fit.is_cut else "fits"
    lengths = [length for length in _LENGTHS if length <= best_fit.context_tokens]
    return Outline(
        context_tokens=whole.context_tokens,
        parts=whole.lines,
        floor_bytes=whole.floor_bytes,
        idle_bytes=whole.calculated_fixed_bytes,
        measured_idle_bytes=whole.measured_fixed_bytes,
        token_bytes=whole.token_bytes,
        rows={number: whole.rows(possible_bytes, number) for number in lengths},
        fitness=fitness,
        needed_bytes=best_fit.needed_bytes,
        possible_bytes=possible_bytes,
        reserved_bytes=reserved_bytes,
        granted_context_tokens=best_fit.context_tokens,
        company=company,
    )


# The least share of a machine's memory that macOS recommends to MLX: 10.7 of 16 GiB (ollama#17367
# has more examples).
_LEAST_SHARE: Final = 2 / 3


def budget_bytes(memory: MemorySettings) -> int:
    """The budget on this machine. For "auto" and for shares the device is asked at each start, in a
    process of its own: iogpu.wired_limit_mb may have changed since the last start.
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
    """The device to assume where MLX can't be asked. `total_bytes` is the machine's memory."""
    return DeviceMemory(int(total_bytes * _LEAST_SHARE))


def budget_of(memory: MemorySettings, total_bytes: int, device: DeviceMemory | None) -> int:
    """The budget on a machine with `total_bytes` of memory. Only an automatic budget leaves the
    headroom free. A share is a share of the memory that holds models: of the card's memory if MLX
    computes on a card, otherwise of the machine's.
    """
    if device is not None and device.is_card:
        total_bytes = device.most_bytes
    if memory.budget != "auto":
        return parse_size(memory.budget, total_bytes)
    most_bytes = total_bytes if device is None else min(total_bytes, device.most_bytes)
    return max(0, most_bytes - parse_size(memory.headroom))
