"""The sequences that engines take, the tokens that they make, and the methods of every engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import mlx.core as mx

from protocol.answers import FinishReason
from worker.guesses.costs import StepCosts
from worker.prompt_cache.path import Path
from worker.sampling.adjustments import Adjustments
from worker.sampling.scores import Score
from worker.sampling.settings import RowSampling
from worker.structure.sampler import ConstrainedSampler, SequenceConstraint
from worker.vision import PictureInputs


class EngineNeed(NamedTuple):
    """The memory that an engine needs. The first three numbers are limits of the whole process in
    bytes; they are 0 while there is nothing to do.

    `used_bytes` is enough for the sequences that run, and `wanted_bytes` also for the sequences
    that wait. With less than `least_bytes` not even the first sequence can run. `prompt` is the
    number of the prompt that the first sequence is computing; 0: it computes none. The prompt cache
    has `cache_bytes`, and could use `cache_wanted_bytes` in all. These two are its own bytes, not
    limits.
    """

    used_bytes: int
    wanted_bytes: int
    least_bytes: int
    prompt: int = 0
    cache_bytes: int = 0
    cache_wanted_bytes: int = 0


@dataclass(frozen=True)
class Sequence:
    """A request that is ready for the engine. `sampling` None: each token is the likeliest one."""

    request_id: str
    token_ids: list[int]
    max_tokens: int
    sampling: RowSampling | None
    ignore_eos: bool
    priority: int = 0
    # Bounds the reasoning. mlx-lm calls it as a processor of logits.
    budget: Callable[[mx.array, mx.array], mx.array] | None = None
    adjustments: Adjustments | None = None
    # Tokens that end this sequence, beside the model's end-of-sequence tokens.
    stop_token_ids: tuple[int, ...] = ()
    # None: the prompt cache isn't used for this sequence.
    path: Path | None = None
    # The number of alternatives in the score of each token of the answer; None: no scores.
    logprobs: int | None = None
    # The number of alternatives in the score of each token of the prompt; None: no scores. These
    # scores come with the first token of the answer.
    prompt_logprobs: int | None = None
    pictures: PictureInputs | None = None
    constrained: SequenceConstraint | None = None
    # The tokens that the client expects in the answer.
    prediction: tuple[int, ...] = ()
    # Who shares the model, and the weight of its turns.
    sharer: str = ""
    share: int = 1
    # Whether this is the last try in this worker: it is made without cached blocks.
    cold: bool = False

    @property
    def ends_at_eos(self) -> bool:
        """Whether an end-of-sequence token of the model ends this sequence. With a constraint it
        always does, since the constraint allows this token only after a complete answer.
        """
        return not self.ignore_eos or self.constrained is not None

    def as_cold(self) -> Sequence:
        """This sequence without cached blocks, and without storing any."""
        return replace(self, path=None, cold=True)

    def join(self, sampler: ConstrainedSampler[Any], row: int) -> None:
        """Have `sampler` choose the tokens of this sequence, under the number `row`."""
        sampler.add(
            row, self.sampling, self.adjustments, self.token_ids, self.logprobs, self.constrained
        )

    def rest(self, generated: list[int]) -> Sequence:
        """This sequence with the `generated` tokens as a part of its prompt, for another run in an
        engine.
        """
        done = len(generated)
        return replace(
            self,
            token_ids=self.token_ids + generated,
            max_tokens=self.max_tokens - done,
            # Random numbers go on behind the last token that was given out. mlx-lm has sampled one
            # token more, which is sampled again.
            sampling=None if self.sampling is None else self.sampling.again_after(done),
            constrained=None if self.constrained is None else self.constrained.after(generated),
            prompt_logprobs=None if done else self.prompt_logprobs,
        )


@dataclass(frozen=True, slots=True)
class Token:
    """A generated token of a sequence. With "stop" it is the token that ends the sequence.

    `cached_tokens` tokens of the sequence came from the prompt cache. `prompt_scores` come with the
    first token of an answer. The first of these scores is of the prompt's second token. A `guessed`
    token was guessed before its step, and the guess was right. The step that made this token also
    checked `rejected` wrong guesses.
    """

    request_id: str
    token_id: int
    finish_reason: FinishReason | None
    cached_tokens: int = 0
    score: Score | None = None
    prompt_scores: list[Score] | None = None
    # Whether this is the first token since the sequence began, or began anew.
    first: bool = False
    guessed: bool = False
    rejected: int = 0

    @property
    def awaited(self) -> bool:
        """Whether the token is sent without delay: the first token of an answer, and the last."""
        return self.first or self.finish_reason is not None


@dataclass(frozen=True, slots=True)
class BrokenSequence:
    """A sequence that can't go on, and the reason. With `pictures` its prompt can't be computed
    because of its pictures. Otherwise its constraint can't be followed any further. The tokens that
    it made are valid.
    """

    request_id: str
    reason: str
    pictures: bool = False


@dataclass(frozen=True, slots=True)
class SpoiltSequence:
    """A sequence whose logits weren't finite, or were all the same. The token of these logits was
    not given out. It `goes_on` cold, or leaves the engine. So many of its cached `blocks` are not
    found any more.
    """

    request_id: str
    goes_on: bool
    blocks: int


class Engine(Protocol):
    """Runs sequences. Not thread-safe: only the engine thread calls the methods."""

    batching: bool

    @property
    def step_costs(self) -> StepCosts | None:
        """What steps cost; None: the engine doesn't measure its steps."""

    @property
    def need(self) -> EngineNeed:
        """The memory that the engine needs."""

    @property
    def most_rows(self) -> int:
        """The most sequences that the engine computes at a time; 0: it takes no sequences."""

    @property
    def short(self) -> bool:
        """Whether the next sequence waits only because there is too little memory."""

    @property
    def fetching(self) -> bool:
        """Whether sequences wait for blocks that are read from disk, or for memory in which their
        blocks can stay.
        """

    def make_room(self) -> None:
        """Put sequences aside until the others fit the limit. A sequence that was put aside is
        computed anew when there is memory.
        """

    def remove_hopeless(self) -> list[Sequence]:
        """Take out the sequences that need more memory than the process can ever get."""

    def remove_broken(self) -> list[BrokenSequence]:
        """Take out sequences that can't go on."""

    def collect_spoilt(self) -> list[SpoiltSequence]:
        """The sequences that were spoilt since the last call."""

    @property
    def active(self) -> int:
        """How many sequences decode, or have their prompt computed."""

    @property
    def waiting(self) -> int:
        """How many sequences were added and have not begun."""

    def add(self, sequence: Sequence) -> None: ...

    def remove(self, request_ids: Iterable[str]) -> None:
        """Drop sequences; unknown ids are ignored."""

    def step(self) -> list[Token]:
        """Compute a step of one batch: a token of each sequence that decodes, and a chunk of
        prompts.
        """

    def store_blocks(self) -> None:
        """Store the blocks of the last step in the prompt cache, for prompts that begin alike.

        This takes milliseconds for each row, so the caller first sends the tokens of the step. If
        the caller leaves it out, the next step does it first. A second call without a step between
        waits until the blocks are computed, and hands them to the disk.
        """

    def collect_costs(self) -> dict[str, float]:
        """The seconds of the steps since the last call, by the sharers of their sequences."""

    def clear_prompts(self) -> int:
        """Drop the prompt cache's blocks in memory. Returns the bytes that they had."""

    def recompute_all(self) -> bool:
        """Put all sequences aside, to be computed anew in shorter chunks. This is for a failure of
        the device, which may have spoilt all caches. Returns False if the engine can't do this.
        """

    def close(self) -> None:
        """Drop the caches and the model."""
