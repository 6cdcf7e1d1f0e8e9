"""The sequences that engines get, the tokens that they give, and the methods of every engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import mlx.core as mx

from protocol.answers import FinishReason
from worker.prompt_cache.path import Path
from worker.sampling.adjustments import Adjustments
from worker.sampling.scores import Score
from worker.sampling.settings import RowSampling
from worker.structure.sampler import Constrained, ConstrainedSampler
from worker.vision import PictureInputs


class EngineNeed(NamedTuple):
    """The memory that an engine needs, as limits of the whole process in bytes; 0 while there is
    nothing to do.

    `used_bytes` holds the sequences that run; with `wanted_bytes` all that wait could run too; with
    less than `least_bytes` not even the first sequence can. `prompt` numbers the prompt that the
    first sequence is computing; 0 if it computes none. Beside that the prompt cache has
    `cache_bytes`, and could use `cache_wanted_bytes`.
    """

    used_bytes: int
    wanted_bytes: int
    least_bytes: int
    prompt: int = 0
    cache_bytes: int = 0
    cache_wanted_bytes: int = 0


@dataclass(frozen=True)
class Sequence:
    """A request ready for the engine. `sampling` None is greedy."""

    request_id: str
    token_ids: list[int]
    max_tokens: int
    sampling: RowSampling | None
    ignore_eos: bool
    priority: int = 0
    # Bounds the reasoning. Called as mlx-lm calls processors of logits.
    budget: Callable[[mx.array, mx.array], mx.array] | None = None
    adjustments: Adjustments | None = None
    # Tokens that end this sequence, beside those that end any.
    stop_token_ids: tuple[int, ...] = ()
    # None: the prompt cache neither gives nor keeps anything of it.
    path: Path | None = None
    # How many alternatives each token's score has; None: no scores.
    logprobs: int | None = None
    # The same for the tokens of the prompt. Their scores come with the first token of the answer.
    prompt_logprobs: int | None = None
    pictures: PictureInputs | None = None
    constrained: Constrained | None = None

    @property
    def ends_at_eos(self) -> bool:
        """Whether the end-of-sequence token ends it. With a constraint it always does: the answer
        is whole.
        """
        return not self.ignore_eos or self.constrained is not None

    def join(self, sampler: ConstrainedSampler[Any], row: int) -> None:
        """Have a sampler choose the tokens of this sequence, as those of `row`."""
        sampler.add(
            row, self.sampling, self.adjustments, self.token_ids, self.logprobs, self.constrained
        )

    def rest(self, generated: list[int]) -> Sequence:
        """The sequence that is left once these tokens are generated, for another run in an
        engine.
        """
        done = len(generated)
        return replace(
            self,
            token_ids=self.token_ids + generated,
            max_tokens=self.max_tokens - done,
            # mlx-lm samples one step before it gives a token out.
            sampling=None if self.sampling is None else self.sampling.again_after(done),
            constrained=None if self.constrained is None else self.constrained.after(generated),
            prompt_logprobs=None if done else self.prompt_logprobs,
        )


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token of one sequence; with "stop" it is the end-of-sequence token.

    `cached_tokens` of the sequence came from the prompt cache. `prompt_scores` come with the first
    token of an answer, and begin with the second token of the prompt.
    """

    request_id: str
    token_id: int
    finish_reason: FinishReason | None
    cached_tokens: int = 0
    score: Score | None = None
    prompt_scores: list[Score] | None = None
    # The first since the sequence began, or began anew.
    first: bool = False

    @property
    def awaited(self) -> bool:
        """A client waits for the first token of an answer, and for its end."""
        return self.first or self.finish_reason is not None


@dataclass(frozen=True, slots=True)
class Broken:
    """A sequence that can't go on, and why. Its constraint can't be followed any further; or, with
    `pictures`, its prompt can't be computed because of them. The tokens until then are valid.
    """

    request_id: str
    reason: str
    pictures: bool = False


class Engine(Protocol):
    """Runs sequences. Not thread-safe: the engine thread calls everything."""

    batching: bool

    @property
    def need(self) -> EngineNeed:
        """The memory that the engine needs."""

    @property
    def short(self) -> bool:
        """Sequences wait for memory and nothing else, and there is too little now."""

    @property
    def fetching(self) -> bool:
        """Sequences wait for blocks that are read from disk, or for memory in which these
        can stay.
        """

    def make_room(self) -> None:
        """Put sequences beyond the limit aside. They are computed anew when there is memory."""

    def take_hopeless(self) -> list[Sequence]:
        """Take out sequences that wait for more memory than there can ever be."""

    def take_broken(self) -> list[Broken]:
        """Take out sequences that can't go on."""

    @property
    def active(self) -> int:
        """How many sequences generate, or have their prompt computed."""

    @property
    def waiting(self) -> int:
        """How many sequences were added and have not begun."""

    def add(self, sequence: Sequence) -> None: ...

    def remove(self, request_ids: Iterable[str]) -> None:
        """Drop sequences; unknown ids are ignored."""

    def step(self) -> list[Token]:
        """One decoding step of all sequences that decode, and one chunk of prompts."""

    def keep(self) -> None:
        """Keep the blocks that the last step computed, for prompts that begin alike.

        It takes milliseconds a row, so it is called once the step's tokens are on their way;
        otherwise the next step begins with it. A second call in a row leaves nothing that waits to
        be computed.
        """

    def clear_prompts(self) -> int:
        """Drop all prompts that are kept in memory; returns how many bytes they had."""

    def begin_anew(self) -> bool:
        """After a failure of the device, which may have spoilt all caches: put all sequences aside,
        to be computed anew in shorter chunks. False if the engine can't.
        """

    def close(self) -> None:
        """Drop the caches and the model."""
