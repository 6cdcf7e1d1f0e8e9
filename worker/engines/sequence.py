"""What engines take and give, and what any engine does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import mlx.core as mx

from protocol.answers import FinishReason
from worker.prompt_cache.path import Path
from worker.sampling.adjustments import Adjustments
from worker.sampling.scores import Score
from worker.sampling.settings import RowSampling
from worker.structure.sampler import Constrained
from worker.vision.inputs import PictureInputs


class EngineNeed(NamedTuple):
    """As limits of the whole process, in bytes; 0 while there is nothing to do.

    `used_bytes` holds what runs now; with `wanted_bytes` everything that waits could run too; with
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
    # Of its reasoning: called as mlx-lm calls what changes logits.
    budget: Callable[[mx.array, mx.array], mx.array] | None = None
    adjustments: Adjustments | None = None
    # They end it, beside those that end any.
    stop_token_ids: tuple[int, ...] = ()
    # None: neither taken from the prompt cache nor kept there.
    path: Path | None = None
    # How many alternatives beside its own score each token has; None: no score.
    logprobs: int | None = None
    # The same of the prompt's tokens, before the first one of the answer.
    prompt_logprobs: int | None = None
    pictures: PictureInputs | None = None
    constrained: Constrained | None = None

    @property
    def ends_at_eos(self) -> bool:
        """With a constraint that token says that the answer is whole."""
        return not self.ignore_eos or self.constrained is not None

    def rest(self, generated: list[int]) -> Sequence:
        """What is left to do for another turn in an engine."""
        done = len(generated)
        return replace(
            self,
            token_ids=self.token_ids + generated,
            max_tokens=self.max_tokens - done,
            # mlx-lm samples a step ahead of what it gives out.
            sampling=None if self.sampling is None else self.sampling.again_after(done),
            constrained=None if self.constrained is None else self.constrained.after(generated),
            prompt_logprobs=None if done else self.prompt_logprobs,
        )


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token of one sequence; with "stop" it is the end-of-sequence token. So many
    tokens before it came from the prompt cache. The first one may have the scores of the prompt's
    tokens but the first.
    """

    request_id: str
    token_id: int
    finish_reason: FinishReason | None
    cached_tokens: int = 0
    score: Score | None = None
    prompt_scores: list[Score] | None = None
    # Since the sequence began, here or anew.
    first: bool = False

    @property
    def awaited(self) -> bool:
        """Somebody waits for the first of an answer, and for its end."""
        return self.first or self.finish_reason is not None


@dataclass(frozen=True, slots=True)
class Broken:
    """A sequence whose constraint can't be followed any further, and why. Its tokens until then
    match. With `pictures` it is one whose prompt can't be computed, because of these.
    """

    request_id: str
    reason: str
    pictures: bool = False


class Engine(Protocol):
    """Runs sequences. Not thread-safe: the engine thread calls everything."""

    batching: bool

    @property
    def need(self) -> EngineNeed:
        """What it could use of memory."""

    @property
    def short(self) -> bool:
        """Sequences wait for memory alone, of which there is too little as things are."""

    @property
    def fetching(self) -> bool:
        """Sequences wait for what is read from disk, or for room in which it can stay."""

    def make_room(self) -> None:
        """Put aside what is beyond the limit, to be computed anew when there is room."""

    def take_hopeless(self) -> list[Sequence]:
        """Take out what waits for more than can be had."""

    def take_broken(self) -> list[Broken]:
        """Take out what can't go on as it must."""

    @property
    def active(self) -> int:
        """Sequences that generate or prefill."""

    @property
    def waiting(self) -> int:
        """Sequences added and not begun."""

    def add(self, sequence: Sequence) -> None: ...

    def remove(self, request_ids: Iterable[str]) -> None:
        """Drop sequences; unknown ids are ignored."""

    def step(self) -> list[Token]:
        """One decoding step of everything that decodes, and one chunk of prefill."""

    def keep(self) -> None:
        """What the last step computed is kept for prompts that begin alike. Called once its tokens
        are on their way, as it takes milliseconds a row; otherwise the next step begins with it.
        Called once more, nothing of it waits to be computed.
        """

    def clear_prompts(self) -> int:
        """Let go of all prompts that are kept in memory; returns how many bytes that were."""

    def begin_anew(self) -> bool:
        """After a failure of the device, which may have spoilt whatever is kept: put all aside, to
        be computed anew in shorter chunks. False if that can't be.
        """

    def close(self) -> None:
        """Let go of caches and of the model."""
