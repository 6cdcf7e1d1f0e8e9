"""Warming up: before requests come, MLX compiles kernels, and the tokenizer and chat template are
used once.

Warming up begins in the load. The rest can follow after the load, while no request runs. A spare on
a GPU warms up before it has a model. It runs a small model of the most common kind, since kernels
depend on types and on a few sizes, not on the model. On an H100 the first evaluations of a load and
its first answer take 0.3 s after that, and 0.7 s without (MLX 0.32.4).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from contextlib import nullcontext
from functools import partial
from typing import Any, Final, NamedTuple

import mlx.core as mx
from mlx import nn

from protocol.prompt_store.payloads import KEY_BYTES
from protocol.requests import (
    ChatMessage,
    ChatPrompt,
    Generate,
    Prompt,
    Sampling,
    SamplingDefaults,
    TextPrompt,
)
from worker.engines.batched_engine import BatchedEngine
from worker.engines.decoding import Caches
from worker.engines.room import BatchSize, CacheRoom, Context, compiles_kernels, measure
from worker.engines.row_batch import AHEAD_TOKENS
from worker.engines.sequence import Engine, Sequence
from worker.guesses.costs import WIDTHS, StepCosts
from worker.load.loading import LoadedModel
from worker.mlx_lm.models import small_llama
from worker.mlx_lm.row_caches import RowLengths, RowsCache
from worker.prompt_cache.blocks import Cutter
from worker.prompt_cache.cache import PromptCache
from worker.prompt_cache.path import BLOCK_TOKENS, Path, Paths, chain
from worker.runtime.prompts import PreparedRequest, prepare
from worker.sampling.batch import BatchSampler
from worker.sampling.settings import RowSampling, make_row_sampling
from worker.system.gpu_recovery import GpuRecovery
from worker.system.memory import released_memory

# The lengths of the prompts, which cover the lengths of chunks. For MLX each length is a shape of
# its own. On CUDA products of 8 to 16, of 17 to 32 and of more tokens have kernels of their own.
_PROMPT_TOKENS: Final = (16, 32, 128, 512, 2048)
# One block for the prompt cache, and the token with which decoding begins. This is enough to
# measure the speed of prefill. Without that speed, the first prompt of a client would be cut into
# short chunks.
_CACHED_TOKENS: Final = BLOCK_TOKENS + 1
_ANSWER_TOKENS: Final = 3
_ROOT: Final = bytes(KEY_BYTES)
# If all sequences of one length would take longer than this, longer prompts are left out: the first
# client with such a prompt waits for its kernels.
_LONG_S: Final = 0.25
_MOST_STEPS: Final = 64
# Kernels are compiled soon, since the next request would wait for them. Steps are measured when
# nobody seems to come.
_QUIET_S: Final = 1.0
_LONG_QUIET_S: Final = 5.0
# The costs of steps are measured for so many rows, with answers of so many tokens. Once a part
# takes so many seconds, more rows are left out: a request that comes waits for the present step.
_MEASURED_ROWS: Final = (1, 4, 16)
_MEASURED_TOKENS: Final = 6 * WIDTHS[-1]
_LONG_MEASURE_S: Final = 0.5
# Settings that clients often use. Each makes a compute graph of its own, alone and beside others in
# a batch.
_SAMPLINGS: Final = (
    Sampling(seed=0, temperature=1.0),
    Sampling(seed=0, temperature=0.7, top_p=0.9),
    Sampling(seed=0, temperature=1.0, top_p=0.9, top_k=20, min_p=0.05),
)
logger = logging.getLogger("worker")
_VOCABULARY: Final = 1024
_CONTEXT_TOKENS: Final = 1024
_TEXT: Final = "Good morning."
_PROMPTS: Final[tuple[Prompt, ...]] = (
    TextPrompt(_TEXT),
    ChatPrompt((ChatMessage("system", _TEXT), ChatMessage("user", _TEXT))),
    # Some templates don't take a system message.
    ChatPrompt((ChatMessage("user", _TEXT),)),
)


class WarmPart(NamedTuple):
    """Sequences that run together. Each step has `width` tokens of each sequence, to measure the
    costs of such steps; None: the engine chooses.
    """

    sequences: list[Sequence]
    width: int | None = None


class WarmUp:
    """Compiles kernels by running sequences, part by part: in the load, or later while no request
    waits. Then measures the costs of steps.
    """

    def __init__(
        self,
        engine: Engine,
        prompt_cache: PromptCache | None,
        room: CacheRoom,
        context_tokens: int,
        vocabulary: int,
    ) -> None:
        self._engine = engine
        self._recovery = GpuRecovery(engine.recompute_all)
        self._prompt_cache = prompt_cache
        self._room = room
        self._most_tokens = max(1, context_tokens - _ANSWER_TOKENS)
        if prompt_cache is not None and engine.step_costs is not None:
            engine.step_costs.know(prompt_cache.speeds.step_seconds)
        self._parts = _parts(self._most_tokens, vocabulary, engine.step_costs)
        self._next: WarmPart | None = None

    @property
    def is_over(self) -> bool:
        return self._next is None

    @property
    def quiet_s(self) -> float:
        """How long the engine should have had nothing to do before warming up goes on."""
        compiles = self._next is not None and self._next.width is None
        return _QUIET_S if compiles else _LONG_QUIET_S

    def start(self, *, awaited: bool, is_interrupted: Callable[[], bool] = lambda: False) -> None:
        """Warm up in the load. `awaited`: requests wait for the model. Then run a single sequence,
        which shows that the model works and how fast. The requests compile the other kernels.
        """
        with nullcontext() if self._prompt_cache is None else self._prompt_cache.rehearsal():
            self._run([self._cached_prompt()], is_interrupted)
            # On a CPU MLX keeps nothing for a shape or a graph, so the first answer takes as long
            # as the next.
            if compiles_kernels():
                self.compile(awaited=awaited, is_interrupted=is_interrupted)
            else:
                self._parts = _widths(self._most_tokens, self._engine.step_costs)
                self._next = next(self._parts, None)
        mx.reset_peak_memory()

    def compile(self, *, awaited: bool, is_interrupted: Callable[[], bool] = lambda: False) -> None:
        """Run all parts, to compile their kernels for a GPU. If requests have `awaited` the model,
        leave all parts to `go_on`.
        """
        self._next = next(self._parts, None)
        if awaited:
            return
        if self._most_tokens >= _CACHED_TOKENS:
            # The first run of this sequence has put its block into the prompt cache. This second
            # run takes the block from there, which needs further kernels.
            self._run([self._cached_prompt()], is_interrupted)
        while self._next is not None and self._next.width is None and not is_interrupted():
            self._advance(self._run(self._next.sequences, is_interrupted))

    def go_on(self, is_interrupted: Callable[[], bool]) -> None:
        """Run the next part while the engine has nothing to do, or all parts that measure steps. A
        part is given up as soon as a request comes, and begins anew another time. If the part
        doesn't fit the memory limit, warming up ends.
        """
        self._go_on(is_interrupted)
        while self._next is not None and self._next.width is not None and not is_interrupted():
            self._go_on(is_interrupted)

    def _go_on(self, is_interrupted: Callable[[], bool]) -> None:
        part, cache = self._next, self._prompt_cache
        if part is None:
            return
        first = part.sequences[0]
        longest_tokens = len(first.token_ids) + first.max_tokens + AHEAD_TOKENS
        needed_bytes = self._room.needed_bytes([BatchSize(len(part.sequences), longest_tokens)])
        cached_bytes = 0 if cache is None else cache.bytes_
        limit_bytes = self._room.limit_bytes
        if limit_bytes is not None and needed_bytes + cached_bytes > limit_bytes:
            self._next = None
            return
        with nullcontext() if cache is None else cache.unnoticed():
            seconds = self._measure(part, is_interrupted)
        if not is_interrupted():
            self._advance(seconds)

    def _measure(self, part: WarmPart, is_interrupted: Callable[[], bool]) -> float:
        costs = self._engine.step_costs
        if costs is None:
            return self._run(part.sequences, is_interrupted)
        costs.rehearsed = width = part.width
        rows = len(part.sequences)

        def is_over() -> bool:
            return is_interrupted() or (width is not None and costs.is_measured(rows, width))

        try:
            return self._run(part.sequences, is_over)
        finally:
            costs.rehearsed = None

    def _advance(self, seconds: float) -> None:
        try:
            self._next = self._parts.send(seconds)
        except StopIteration:
            self._next = None
            if self._prompt_cache is not None and self._engine.step_costs is not None:
                self._prompt_cache.speeds.step_seconds = self._engine.step_costs.seconds

    def _cached_prompt(self) -> Sequence:
        token_ids = [0] * min(_CACHED_TOKENS, self._most_tokens)
        path = None
        if self._prompt_cache is not None:
            keys = tuple(chain(_ROOT, token_ids))
            boundaries = (1,) if keys and self._prompt_cache.needs_snapshots else ()
            path = Path(_ROOT, keys, boundaries=boundaries)
        return Sequence("cached", token_ids, _ANSWER_TOKENS, None, ignore_eos=True, path=path)

    def _run(
        self, together: list[Sequence], is_interrupted: Callable[[], bool] = lambda: False
    ) -> float:
        """Run these sequences to their end, or until an interruption. Returns the seconds that this
        took.
        """
        began_at = time.monotonic()
        engine = self._engine
        for sequence in together:
            engine.add(sequence)
        # Without room for the sequences an engine makes no progress, so the steps are bounded.
        for _ in range(_MOST_STEPS):
            if not engine.active + engine.waiting or is_interrupted():
                break
            try:
                engine.step()
                engine.store_blocks()
            except RuntimeError as error:
                self._recovery.recover(error)
        engine.remove([sequence.request_id for sequence in together])
        # Requests will show what is wrong with the model's numbers.
        engine.collect_spoilt()
        return time.monotonic() - began_at


def _parts(
    most_tokens: int, vocabulary: int, costs: StepCosts | None
) -> Generator[WarmPart, float, None]:
    """Yields the parts, which are sequences that run together, with prompts of up to `most_tokens`.
    The caller sends back the seconds of each part. Longer prompts are left out once they take long.
    """
    settings = _settings(vocabulary)
    for tokens in _PROMPT_TOKENS:
        if tokens > most_tokens:
            break
        prompt = [0] * tokens
        greedy = Sequence("greedy", prompt, _ANSWER_TOKENS, None, ignore_eos=True)
        sampled = [
            Sequence(f"sampled {index}", prompt, _ANSWER_TOKENS, setting, ignore_eos=True)
            for index, setting in enumerate(settings)
        ]
        if tokens == _PROMPT_TOKENS[0]:
            for rows in sampled:
                yield WarmPart([rows])
            yield WarmPart(sampled)
        yield WarmPart([greedy, *sampled])
        seconds = yield WarmPart([greedy])
        if seconds * (1 + len(_SAMPLINGS)) > _LONG_S:
            # The first run may have waited for kernels.
            seconds = yield WarmPart([greedy])
        if seconds * (1 + len(_SAMPLINGS)) > _LONG_S:
            break
    yield from _widths(most_tokens, costs)


def _settings(vocabulary: int) -> list[RowSampling | None]:
    """The settings that clients often use, for a model with so many tokens."""
    return [make_row_sampling(sampling, SamplingDefaults(), vocabulary) for sampling in _SAMPLINGS]


def _widths(most_tokens: int, costs: StepCosts | None) -> Generator[WarmPart, float, None]:
    """Yields parts that measure the costs of steps. Wide steps of many rows come last, and are left
    out once they take long.
    """
    prompt = [0] * min(_PROMPT_TOKENS[0], most_tokens - _MEASURED_TOKENS)
    if costs is None or not prompt:
        return
    for rows in _MEASURED_ROWS:
        for width in WIDTHS:
            sequences = [
                Sequence(f"row {index}", prompt, _MEASURED_TOKENS, None, ignore_eos=True)
                for index in range(rows)
            ]
            if costs.is_measured(rows, width):
                continue
            seconds = yield WarmPart(sequences, width)
            if seconds > _LONG_MEASURE_S:
                return


def practise() -> None:
    """Warm up a spare: answer with a small model of random weights, then with the same weights in 4
    bits, and drop the model. An error is only logged, since the load would show it, too.

    MLX keeps compiled kernels on disk, for all processes. On a card without any, each takes up to 6
    s, and a worker that loads a model at the same time compiles them in the order of a load. So the
    spare begins with the kernels that come late in a load.
    """
    try:
        with released_memory():
            _move_rows()
            _draw_tokens()
            _answer_twice()
    except Exception:
        logger.debug("A spare worker could not practise", exc_info=True)


def _move_rows() -> None:
    """Use the operations of a batch's caches."""
    arrays = mx.zeros((2, 1, 4, 64), mx.bfloat16)
    cache = RowsCache(RowLengths([1, 2]), arrays, arrays)
    cache.drop([1, 0])
    mx.eval(cache.state)
    cache.update_and_fetch(arrays[:, :, :1], arrays[:, :, :1])
    mx.eval(cache.state, cache.lengths.begins[mx.array([1, 0])], cache.rows([1, 0]))


def _draw_tokens() -> None:
    """Draw tokens with settings that clients often use, for each row alone and for all together."""
    settings = _settings(_VOCABULARY)
    for rows in (*([setting] for setting in settings), settings):
        sampler = BatchSampler[int](partial(range, len(rows)))
        for key, setting in enumerate(rows):
            sampler.add(key, setting)
        mx.eval(sampler(mx.zeros((len(rows), _VOCABULARY), mx.bfloat16)))


def _answer_twice() -> None:
    model = small_llama(_VOCABULARY)
    _answer(model)
    nn.quantize(model, group_size=64, bits=4)
    _answer(model)


def _answer(model: Any) -> None:
    """Warm up this model as a load does for which no request waits."""
    caches = Caches(model)
    room = CacheRoom(measure(caches.run, caches.make))
    prompt_cache = PromptCache(Cutter(caches.run, caches.make), None)
    engine = BatchedEngine(model, (), 1, room, prompt_cache=prompt_cache)
    warming = WarmUp(engine, prompt_cache, room, _CONTEXT_TOKENS, _VOCABULARY)
    warming.start(awaited=False)
    engine.close()


def rehearse(loaded: LoadedModel, context: Context, paths: Paths) -> None:
    """Use the tokenizer and chat template once: prepare a request of each kind, and decode a token
    of its answer. An error is only logged. A client's request fails with the same error, and says
    why.
    """
    for prompt in _PROMPTS:
        generate = Generate(
            request_id="rehearsed",
            prompt=prompt,
            sampling=Sampling(seed=0, temperature=1.0),
            max_tokens=1,
            parsed=True,
        )
        try:
            prepared = prepare(generate, loaded, context, paths)
            if isinstance(prepared, PreparedRequest):
                prepared.answer.add(prepared.prompt_ids[-1])
        except Exception:
            logger.exception("The rehearsal of a prompt failed")
