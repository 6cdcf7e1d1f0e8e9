"""The state of one worker: its memory, by readings and by its messages, and its model, steps and
prompts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from statistics import median
from typing import Final

from msgspec import Struct

from gateway.system.memory_reading import Footprint
from gateway.system.processes import ProcessIdentity
from protocol.answers import Embedded, Output
from protocol.life import Ability, Heartbeat, MlxMemory, Need, Ready
from protocol.messages import WorkerMessage
from protocol.requests import SamplingDefaults

_READINGS: Final = 5
_NOISE_BYTES: Final = 64_000_000
_NOISE_SHARE: Final = 0.05


class MemoryState(Struct):
    """A worker's memory, for another gateway to go on from. `granted_bytes` is the limit that it
    was told.

    From its load on the weights take `weight_bytes`, kept prompts take `prompt_cache_bytes`, `mlx`
    is MLX's own account, and the worker held `idle_bytes` right after the load. Beside MLX's
    account it held `baseline_bytes` before the load, `beside` by the last readings, and was told
    `told_beside_bytes`.
    """

    footprint: Footprint | None = None
    peak_footprint_bytes: int = 0
    granted_bytes: int | None = None
    weight_bytes: int | None = None
    mlx: MlxMemory | None = None
    prompt_cache_bytes: int | None = None
    idle_bytes: int | None = None
    baseline_bytes: int = 0
    beside: tuple[int, ...] = ()
    told_beside_bytes: int = 0


class WorkerMemory(MemoryState):
    """The memory of one worker. `kept_bytes` is the limit that it last said it keeps to, and
    `read_at_bytes` the one that it kept to when its footprint was read. `mlx_is_old`: it has given
    something back since it told MLX's account.
    """

    kept_bytes: int = 0
    read_at_bytes: int = 0
    mlx_is_old: bool = False

    @property
    def state(self) -> MemoryState:
        state = MemoryState()
        _copy(self, state)
        return state

    def restore(self, state: MemoryState) -> None:
        """Go on from the state of an earlier gateway."""
        _copy(state, self)

    def loaded(self, weight_bytes: int, mlx: MlxMemory) -> None:
        """The model is loaded: a reading from before the load says nothing any more."""
        self.footprint = None
        self.weight_bytes = weight_bytes
        self.mlx = mlx

    def heard(self, mlx: MlxMemory, prompt_cache_bytes: int) -> None:
        """A heartbeat has come."""
        self.mlx = mlx
        self.mlx_is_old = False
        if self.weight_bytes is not None:
            self.prompt_cache_bytes = max(0, prompt_cache_bytes)

    def keeps_to(self, limit_bytes: int) -> bool:
        """The worker says so; returns whether it has given something back for that."""
        gave = limit_bytes < self.kept_bytes
        self.mlx_is_old |= gave
        self.kept_bytes = limit_bytes
        return gave

    @property
    def is_loaded(self) -> bool:
        return self.weight_bytes is not None

    def note_footprint(self, footprint: Footprint, *, loaded: bool, kept_bytes: int) -> None:
        """Note a reading. It began with the model `loaded` or not, and says nothing if that has
        changed meanwhile. The worker kept to `kept_bytes` then.
        """
        if loaded is not self.is_loaded:
            return
        self.footprint = footprint
        self.read_at_bytes = kept_bytes
        if self.mlx is not None and not self.mlx_is_old and self.weight_bytes is not None:
            account_bytes = self.mlx.active_bytes + self.mlx.cache_bytes
            self.beside = (*self.beside, footprint.current_bytes - account_bytes)[-_READINGS:]
        self.peak_footprint_bytes = max(
            self.peak_footprint_bytes, footprint.current_bytes, footprint.peak_bytes or 0
        )

    @property
    def held_bytes(self) -> int | None:
        """The bytes that the budget counts, by the last reading; None: there was none yet."""
        return None if self.footprint is None else self.footprint.current_bytes

    @property
    def host_bytes(self) -> int | None:
        """Bytes of the machine's memory, by the last reading."""
        return None if self.footprint is None else self.footprint.host_bytes

    @property
    def cache_bytes(self) -> int | None:
        """Bytes of its sequences, with those that a step computes on."""
        if self.mlx is None or self.weight_bytes is None:
            return None
        return max(0, self.mlx.active_bytes - self.weight_bytes)

    @property
    def buffer_bytes(self) -> int | None:
        """Bytes of freed buffers that MLX keeps, once the model is loaded."""
        if self.mlx is None or self.weight_bytes is None:
            return None
        return self.mlx.cache_bytes

    @property
    def beside_bytes(self) -> int:
        """Bytes that MLX doesn't account for: never less than before the load. As readings and
        MLX's account are of different moments, it takes several.
        """
        if len(self.beside) < _READINGS:
            return self.baseline_bytes
        return max(self.baseline_bytes, int(median(self.beside)))

    @property
    def beside_more_bytes(self) -> int:
        """More bytes than the worker was told."""
        return self.beside_bytes - self.told_beside_bytes

    @property
    def beside_moved(self) -> bool:
        """It differs from what the worker was told."""
        noise_bytes = max(_NOISE_BYTES, int((self.granted_bytes or 0) * _NOISE_SHARE))
        return abs(self.beside_more_bytes) > noise_bytes

    def tell_beside(self) -> int:
        """Bytes for a message to it."""
        self.told_beside_bytes = self.beside_bytes
        return self.told_beside_bytes


def _copy(source: MemoryState, target: MemoryState) -> None:
    for name in MemoryState.__struct_fields__:
        setattr(target, name, getattr(source, name))


# Unanswered orders to let go of prompts.
_MOST_CLEARS: Final = 16


class WorkerReport:
    """What a worker said last. Once its model is loaded `fingerprint`, `abilities` and `sampling`
    are the model's, and `context_tokens` is the context in force. `short_of_memory` counts requests
    that wait in it for memory. `tokens_per_s` is of the last window.
    """

    def __init__(self, memory: WorkerMemory) -> None:
        self.context_tokens: int | None = None
        self.short_of_memory = 0
        self.fingerprint: str | None = None
        self.abilities: tuple[Ability, ...] = ("text",)
        self.sampling = SamplingDefaults()
        self.tokens_per_s: float | None = None
        self._memory = memory
        self._loop = asyncio.get_running_loop()
        self._last_step_at: float | None = None
        self._tokens = 0
        self._tokens_counted_at = self._loop.time()

    @property
    def last_step_age_s(self) -> float | None:
        return None if self._last_step_at is None else self._loop.time() - self._last_step_at

    def note(self, message: WorkerMessage) -> None:
        match message:
            case Output(deltas=deltas):
                self._note_step(sum(len(delta.token_ids) for delta in deltas))
            case Embedded(tokens=tokens):
                self._note_step(tokens)
            case Heartbeat(step_age_s=age_s, memory=memory, prompt_cache_bytes=prompt_bytes):
                self._memory.heard(memory, prompt_bytes)
                if age_s is not None:
                    self._last_step_at = self._loop.time() - age_s
            case Ready():
                self._memory.loaded(message.weight_bytes, message.memory)
                self.context_tokens = message.context_tokens
                self.fingerprint = message.fingerprint
                self.abilities = message.abilities
                self.sampling = message.sampling
            case Need(context_tokens=context_tokens, held=held):
                self.context_tokens = context_tokens
                self.short_of_memory = held
            case _:
                pass

    def count_tokens(self) -> None:
        """Close one window of the tokens-per-second figure."""
        now = self._loop.time()
        self.tokens_per_s = self._tokens / max(now - self._tokens_counted_at, 1e-3)
        self._tokens, self._tokens_counted_at = 0, now

    def _note_step(self, tokens: int) -> None:
        self._last_step_at = self._loop.time()
        self._tokens += tokens


class PromptClears:
    """Orders to let go of prompts in memory, which a worker answers one after the other."""

    def __init__(self, unanswered: int = 0) -> None:
        """An earlier gateway has given `unanswered` orders."""
        loop = asyncio.get_running_loop()
        self._answers: deque[asyncio.Future[int]] = deque(
            loop.create_future() for _ in range(unanswered)
        )

    def __len__(self) -> int:
        return len(self._answers)

    def order(self) -> asyncio.Future[int] | None:
        """The answer to an order that is about to be sent; None: too many have none yet."""
        if len(self._answers) >= _MOST_CLEARS:
            return None
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        return answer

    def answered(self, reclaimed_bytes: int) -> bool:
        """The oldest order was answered; False: there was none."""
        if not self._answers:
            return False
        self._answers.popleft().set_result(max(0, reclaimed_bytes))
        return True

    def close(self) -> None:
        """The worker has ended: its memory is free."""
        while self._answers:
            self._answers.popleft().set_result(0)


class WorkerState(Struct, frozen=True, kw_only=True):
    """A worker, for another gateway to go on from."""

    process: ProcessIdentity
    incarnation: int
    started_at: float
    memory: MemoryState
    context_tokens: int | None
    short_of_memory: int
    fingerprint: str | None
    abilities: tuple[Ability, ...]
    sampling: SamplingDefaults
    # Orders to let go of prompts that it hasn't answered yet.
    clears: int
