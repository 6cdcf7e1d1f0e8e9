"""The gateway's knowledge of one worker: its memory, by readings and by its messages, and its
model, steps and prompts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from statistics import median
from typing import Final

from msgspec import Struct

from gateway.memory.allocation import WorkerReading
from gateway.system.memory_reading import Footprint
from gateway.system.processes import ProcessIdentity
from protocol.life import Ability, Heartbeat, MlxMemory, Need, PromptCaching, Ready
from protocol.requests import SamplingDefaults

_READINGS: Final = 5
_NOISE_BYTES: Final = 64_000_000
_NOISE_SHARE: Final = 0.05


class MemoryState(Struct):
    """A worker's memory, which the next gateway takes over. `granted_bytes` is the last limit that
    was sent to the worker.

    Once the model is loaded, its weights take `weight_bytes` and cached prompts take
    `prompt_cache_bytes`. `mlx` is MLX's own account. The worker held `idle_bytes` right after the
    load. Three fields are bytes that the process holds beside MLX's account: `baseline_bytes`
    before the load, `beside` by the last readings, and `sent_beside_bytes` by the last message to
    the worker.
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
    sent_beside_bytes: int = 0


class WorkerMemory(MemoryState):
    """The memory of one worker. `obeyed_bytes` is the limit that the worker obeys, by its last
    message. `mlx_is_old`: the worker has given memory back since its last message with MLX's
    account.
    """

    obeyed_bytes: int = 0
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
        """Record that the model is loaded, and drop the reading from before the load."""
        self.footprint = None
        self.weight_bytes = weight_bytes
        self.mlx = mlx

    def record_heartbeat(self, mlx: MlxMemory, prompt_cache_bytes: int) -> None:
        """Record the figures of a heartbeat."""
        self.mlx = mlx
        self.mlx_is_old = False
        if self.weight_bytes is not None:
            self.prompt_cache_bytes = max(0, prompt_cache_bytes)

    def keeps_to(self, limit_bytes: int) -> bool:
        """Record that the worker obeys this limit. Returns whether the worker has given memory back
        for that.
        """
        has_given = limit_bytes < self.obeyed_bytes
        self.mlx_is_old |= has_given
        self.obeyed_bytes = limit_bytes
        return has_given

    @property
    def is_loaded(self) -> bool:
        return self.weight_bytes is not None

    def record_footprint(
        self, footprint: Footprint, *, loaded: bool, obeyed_bytes: int
    ) -> WorkerReading | None:
        """Record a reading, and return it for the account. `loaded` and `obeyed_bytes` are as they
        were when the reading began. None: the model was loaded meanwhile, and the reading is
        dropped.
        """
        if loaded is not self.is_loaded:
            return None
        self.footprint = footprint
        if self.mlx is not None and not self.mlx_is_old and self.weight_bytes is not None:
            account_bytes = self.mlx.active_bytes + self.mlx.cache_bytes
            self.beside = (*self.beside, footprint.current_bytes - account_bytes)[-_READINGS:]
        self.peak_footprint_bytes = max(
            self.peak_footprint_bytes, footprint.current_bytes, footprint.peak_bytes or 0
        )
        return WorkerReading(
            footprint.current_bytes, self.peak_footprint_bytes, obeyed_bytes, self._unsent_bytes
        )

    @property
    def held_bytes(self) -> int | None:
        """The bytes that the budget counts, by the last reading; None: there was no reading yet."""
        return None if self.footprint is None else self.footprint.current_bytes

    @property
    def host_bytes(self) -> int | None:
        """Bytes of the machine's memory, by the last reading; a card's memory isn't counted."""
        return None if self.footprint is None else self.footprint.host_bytes

    @property
    def cache_bytes(self) -> int | None:
        """Bytes that MLX uses beyond the weights: for sequences, and for the present step."""
        if self.mlx is None or self.weight_bytes is None:
            return None
        return max(0, self.mlx.active_bytes - self.weight_bytes)

    @property
    def buffer_bytes(self) -> int | None:
        """Bytes of freed buffers that MLX keeps; None before the load."""
        if self.mlx is None or self.weight_bytes is None:
            return None
        return self.mlx.cache_bytes

    @property
    def beside_bytes(self) -> int:
        """Bytes that the process holds beside MLX's account: at least as many as before the load.
        The median of several readings counts, as a reading and MLX's account are of different
        moments.
        """
        if len(self.beside) < _READINGS:
            return self.baseline_bytes
        return max(self.baseline_bytes, int(median(self.beside)))

    @property
    def _unsent_bytes(self) -> int:
        """The change of `beside_bytes` since they were last sent; 0: the change is noise."""
        change_bytes = self.beside_bytes - self.sent_beside_bytes
        noise_bytes = max(_NOISE_BYTES, int((self.granted_bytes or 0) * _NOISE_SHARE))
        return change_bytes if abs(change_bytes) > noise_bytes else 0

    def tell_beside(self) -> int:
        """Return `beside_bytes` for a message to the worker, and record them as sent."""
        self.sent_beside_bytes = self.beside_bytes
        return self.sent_beside_bytes


def _copy(source: MemoryState, target: MemoryState) -> None:
    for name in MemoryState.__struct_fields__:
        setattr(target, name, getattr(source, name))


# The most orders to drop prompts that may be unanswered.
_MOST_CLEARS: Final = 16


class WorkerReport:
    """The last report of a worker. Once a model is loaded, `fingerprint`, `abilities` and
    `sampling` are the model's, and `context_tokens` is the context in force. `short_of_memory`
    counts requests that wait for memory in the worker. The worker computes at most `rows` sequences
    at a time; 0: it isn't known. `alone` says why it computes requests one at a time, if it does.
    `tokens_per_s` is of the last window. The server of a command listens at `address`.
    `prompts` says how the model's prompts are cached.
    """

    def __init__(self, memory: WorkerMemory) -> None:
        self.context_tokens: int | None = None
        self.short_of_memory = 0
        self.rows = 0
        self.fingerprint: str | None = None
        self.abilities: tuple[Ability, ...] = ("text",)
        self.sampling = SamplingDefaults()
        self.tokens_per_s: float | None = None
        self.address = ""
        self.alone = ""
        self.prompts = PromptCaching()
        self._memory = memory
        self._loop = asyncio.get_running_loop()
        self._last_step_at: float | None = None
        self._tokens = 0
        self._tokens_counted_at = self._loop.time()

    @property
    def last_step_age_s(self) -> float | None:
        return None if self._last_step_at is None else self._loop.time() - self._last_step_at

    def record_heartbeat(self, heartbeat: Heartbeat) -> None:
        self._memory.record_heartbeat(heartbeat.memory, heartbeat.prompt_cache_bytes)
        if heartbeat.step_age_s is not None:
            self._last_step_at = self._loop.time() - heartbeat.step_age_s

    def record_ready(self, ready: Ready) -> None:
        self._memory.loaded(ready.weight_bytes, ready.memory)
        self.context_tokens = ready.context_tokens or None
        self.fingerprint = ready.fingerprint
        self.abilities = ready.abilities
        self.sampling = ready.sampling
        self.address = ready.address
        self.alone = ready.alone
        self.prompts = ready.prompts

    def record_need(self, need: Need) -> None:
        self.context_tokens = need.context_tokens
        self.rows = need.rows
        self.short_of_memory = need.held

    def record_step(self, tokens: int) -> None:
        self._last_step_at = self._loop.time()
        self._tokens += tokens

    def count_tokens(self) -> None:
        """Close a window, and compute its `tokens_per_s`."""
        now = self._loop.time()
        self.tokens_per_s = self._tokens / max(now - self._tokens_counted_at, 1e-3)
        self._tokens, self._tokens_counted_at = 0, now


class PromptClears:
    """Orders to drop prompts from memory. A worker answers the orders one after the other."""

    def __init__(self, unanswered: int = 0) -> None:
        """An earlier gateway has given `unanswered` orders."""
        loop = asyncio.get_running_loop()
        self._answers: deque[asyncio.Future[int]] = deque(
            loop.create_future() for _ in range(unanswered)
        )

    def __len__(self) -> int:
        return len(self._answers)

    def order(self) -> asyncio.Future[int] | None:
        """Count an order that is about to be sent. Returns its answer, in freed bytes; None: too
        many orders are unanswered.
        """
        if len(self._answers) >= _MOST_CLEARS:
            return None
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        return answer

    def answered(self, reclaimed_bytes: int) -> bool:
        """Record the answer to the oldest order. Returns False if there was no order."""
        if not self._answers:
            return False
        self._answers.popleft().set_result(max(0, reclaimed_bytes))
        return True

    def close(self) -> None:
        """Answer all orders with 0 bytes, as the worker has ended."""
        while self._answers:
            self._answers.popleft().set_result(0)


class WorkerState(Struct, frozen=True, kw_only=True):
    """A worker, as the next gateway takes it over."""

    process: ProcessIdentity
    incarnation: int
    started_at: float
    memory: MemoryState
    context_tokens: int | None
    short_of_memory: int
    fingerprint: str | None
    abilities: tuple[Ability, ...]
    sampling: SamplingDefaults
    # The number of orders to drop prompts that the worker hasn't answered yet.
    clears: int
    mark: str | None = None
    files: tuple[str, ...] = ()
    address: str = ""
    alone: str = ""
    prompts: PromptCaching = PromptCaching()
