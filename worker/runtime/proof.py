"""Proves the prompt cache while the model is at rest: bytes by digests and checksums, and the
content of a sample of found prompts by computing it anew.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from protocol.life import CacheProven
from worker.prompt_cache.cache import PromptCache
from worker.prompt_cache.found import FoundPrompt, Piece, next_piece
from worker.prompt_cache.path import BLOCK_TOKENS
from worker.prompt_cache.proof_plan import NoiseBounds, ProofPlan, Task
from worker.runtime.recomputing import CHUNK_TOKENS, OTHER_CHUNKS, Recomputing, difference

logger = logging.getLogger("worker")

# Digests of new blocks are recorded soon: they show only what changes afterwards.
_NEW_QUIET_S: Final = 1.0
# A part of a task takes about so long, and a request waits for one digest or one chunk of it.
_PART_S: Final = 0.5
_DIGESTS: Final = 8
# The most blocks that are computed anew at a time, and the most between two snapshots.
_MOST_BLOCKS: Final = 8
_MOST_SNAPSHOT_BLOCKS: Final = 64
_NOISE_BLOCKS: Final = 8


class Proof:
    """Proves the cache, part by part. After two failures the cache is off, and nothing is left to
    prove until it is cleared.
    """

    def __init__(
        self,
        prompt_cache: PromptCache,
        recomputing: Recomputing | None,
        report: Callable[[CacheProven], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`recomputing` None: the model can't be computed beside the engine, so only bytes are
        proven. `report` gets all that was proven.
        """
        self._cache = prompt_cache
        self._recomputing = recomputing
        self._report = report
        self._clock = clock
        self._plan = ProofPlan(clock())
        self._bounds: NoiseBounds | None = None
        # The keys of blocks whose content was proven.
        self._proven: set[bytes] = set()
        # The keys in memory whose bytes are still to be compared in this round.
        self._left: list[bytes] = []

    @property
    def is_over(self) -> bool:
        """Whether nothing is to be proven: the cache is off, until it is cleared."""
        return self._cache.off

    @property
    def quiet_s(self) -> float:
        """How long the engine should have had nothing to do before the next part."""
        return _NEW_QUIET_S if self._cache.has_new else self._plan.wait_s(self._clock())

    def go_on(self, is_interrupted: Callable[[], bool]) -> None:
        """Prove the next part, unless a request comes."""
        if self._cache.has_new:
            self._cache.record_digests(is_interrupted)
            return
        began_at = self._clock()
        task = self._plan.next(began_at)
        if task is None:
            return
        more = self._tasks[task](is_interrupted)
        self._plan.done(task, began_at, self._clock(), more=more)

    @property
    def _tasks(self) -> dict[Task, Callable[[Callable[[], bool]], bool]]:
        return {"memory": self._memory, "disk": self._disk, "content": self._content}

    def _memory(self, is_interrupted: Callable[[], bool]) -> bool:
        """Compare arrays with the digests that were recorded when the model came to rest."""
        if not self._left:
            self._left = self._cache.keys()
            self._proven.intersection_update(self._left)
        until = self._clock() + _PART_S
        blocks, wrong = 0, list[bytes]()
        while self._left and self._clock() < until and not is_interrupted():
            some, self._left = self._left[:_DIGESTS], self._left[_DIGESTS:]
            blocks += len(some)
            wrong += self._cache.changed(some)
        self._conclude(blocks, 0, wrong, "bytes in memory have changed")
        return bool(self._left)

    def _disk(self, is_interrupted: Callable[[], bool]) -> bool:
        """Compare files with their checksums."""
        proof = self._cache.prove_disk()
        if proof is None:
            return False
        self._conclude(proof.blocks, 0, proof.wrong, "bytes on disk have changed")
        return proof.more

    def _content(self, is_interrupted: Callable[[], bool]) -> bool:
        """Compute a piece of a found prompt anew."""
        recomputing, chosen = self._recomputing, self._choose()
        if recomputing is None or chosen is None:
            return False
        found, piece = chosen
        tokens = piece.last * BLOCK_TOKENS + 1
        if not recomputing.has_room(2, tokens):
            return False
        if self._bounds is None:
            blocks = min(_NOISE_BLOCKS, len(found.path.keys))
            self._bounds = recomputing.measure_noise(found, blocks, is_interrupted)
        if self._bounds is not None:
            self._compare(recomputing, self._bounds, found, piece, is_interrupted)
        return True

    def _choose(self) -> tuple[FoundPrompt, Piece] | None:
        for found in self._cache.found.latest():
            snapshots = self._cache.snapshot_depths(found.path)
            most = _MOST_BLOCKS if snapshots is None else _MOST_SNAPSHOT_BLOCKS
            if (piece := next_piece(found, snapshots, self._proven, most)) is not None:
                return found, piece
        return None

    def _compare(
        self,
        recomputing: Recomputing,
        bounds: NoiseBounds,
        found: FoundPrompt,
        piece: Piece,
        is_interrupted: Callable[[], bool],
    ) -> None:
        cached = recomputing.cached(found, piece)
        fault = None
        # A difference counts if it is the same in other chunks.
        for chunk_tokens in (CHUNK_TOKENS, OTHER_CHUNKS[0]):
            computed = recomputing.anew(found, piece, chunk_tokens, is_interrupted)
            if computed is None:
                return
            # Blocks that are gone by now need no proof.
            fault = None if cached is None else bounds.fault(*difference(cached, computed))
            if fault is None:
                break
        keys = found.path.keys[piece.first : piece.last]
        self._proven.update(keys)
        tokens = len(keys) * BLOCK_TOKENS
        wrong = [] if fault is None else [keys[0]]
        self._conclude(0, tokens, wrong, f"computed anew it differs: {fault}", len(found.path.keys))

    def _conclude(
        self, blocks: int, tokens: int, wrong: Sequence[bytes], why: str, joined: int = 1
    ) -> None:
        if wrong:
            logger.warning("%d cached blocks are wrong: %s", len(wrong), why)
            before = [self._cache.parent(key) for key in wrong]
            unproven = [key for key in before if key is not None and key not in self._proven]
            gone = self._cache.quarantine_blocks([*wrong, *unproven], why, joined)
            self._proven -= gone
            self._cache.fail()
        if blocks or tokens or wrong:
            self._report(
                CacheProven(
                    blocks=blocks, tokens=tokens, failures=int(bool(wrong)), off=self._cache.off
                )
            )
