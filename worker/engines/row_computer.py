"""The model, the sampler and the guesser that compute the rows of a batch and draw their tokens."""

from __future__ import annotations

from itertools import count
from typing import Any, NamedTuple

from protocol.life import STATE_TOKENS
from worker.engines.room import CacheSizes, measure
from worker.guesses.costs import StepCosts
from worker.guesses.guesser import BatchGuesser, Drafts, Shares
from worker.mlx_lm.caches import can_be_merged, in_words, keeps_states, make_caches, takes_padding
from worker.mlx_lm.drafting import DraftModel
from worker.mlx_lm.eagle3 import Eagle3, Eagle3Drafter
from worker.mlx_lm.generator import Generator, MakeGenerator, Tap
from worker.mlx_lm.guessing import Draft
from worker.mlx_lm.heads import HeadDrafter
from worker.mlx_lm.row_groups import ONE_GROUP, Grouping
from worker.sampling.scores import scored_chunk
from worker.structure.sampler import ConstrainedSampler
from worker.system.errors import ModelError


class EngineStatistics(NamedTuple):
    """What all batches of an engine learn: the costs of steps, and how many guesses are right, of
    those that are found and of those of the `draft`. `shares` None: nothing is guessed.
    """

    costs: StepCosts
    shares: Shares | None
    draft: Draft | None
    draft_shares: Shares


class RowComputer:
    """What computes the rows of a batch and draws their tokens: a model, a sampler, and perhaps a
    guesser. Batches that share it can join.
    """

    def __init__(
        self,
        model: Any,
        working_bytes: int = 0,
        learned: EngineStatistics | None = None,
        grouping: Grouping = ONE_GROUP,
        make_generator: MakeGenerator | None = None,
    ) -> None:
        """A step may take `working_bytes`; 0: this isn't known. `learned` None: nothing is learned,
        nor guessed. `grouping` says which rows are padded to the same length. `make_generator`
        makes generators of another kind, which do without these three.
        """
        self.tap = Tap(model)
        self.working_bytes = working_bytes
        self.grouping = grouping
        self.sampler = ConstrainedSampler[int](self.tap.rows, self.tap.pop_logits)
        self.guesser: BatchGuesser | None = None
        self._numbers = count()
        self._make_generator = make_generator
        self._observe = self._drafter = None
        if learned is None:
            return
        costs, shares, draft, draft_shares = learned
        self._observe = costs.observe
        self._drafter = None if draft is None else draft.drafter
        if shares is not None:
            self.guesser = BatchGuesser(
                costs,
                shares,
                Drafts(0 if draft is None else draft.tokens, draft_shares),
                self.sampler.forced,
                self._most_width,
                redoes=keeps_states(model),
            )

    def generator(self, rows: int, prompts: int) -> Generator:
        """A generator in which at most `rows` rows decode, and which computes at most `prompts`
        prompts at a time.
        """
        if self._make_generator is not None:
            return self._make_generator(self.tap, self.sampler, rows, prompts)
        return Generator(
            self.tap,
            self.sampler,
            rows,
            prompts,
            self.guesser,
            self._observe,
            self._drafter,
            grouping=self.grouping,
            numbers=self._numbers,
        )

    def _most_width(self, rows: int) -> int:
        """The most tokens a row whose logits fit into the memory of a step with so many rows."""
        return scored_chunk(rows, self.tap.vocabulary, self.working_bytes)


def make_draft(model: Any, draft: Any, tokens: int) -> Draft:
    """A draft model, or EAGLE-3, that guesses at most `tokens` tokens at a time.

    Raises:
        ModelError: guesses can't be checked in this model's batches, or the draft model can't
            forget wrong ones, or is EAGLE-3 of another model.
    """
    if not can_be_merged(make_caches(model)) or not takes_padding(model):
        raise ModelError(
            f"draft_model: guesses are checked in batches, and a batch of this model, which has "
            f"{in_words(make_caches(model))}, can't have different numbers of tokens a row."
        )
    if isinstance(draft, Eagle3):
        try:
            return Draft(Eagle3Drafter(draft, model, tokens), tokens)
        except ValueError as error:
            raise ModelError(f"draft_model: EAGLE-3 doesn't fit the model: {error}.") from error
    unfit = DraftModel.unfit(draft)
    if unfit:
        raise ModelError(
            f"draft_model: a draft model takes wrong guesses back from its caches, and this one "
            f"has {in_words(unfit)}, which can't forget single tokens."
        )
    return Draft(DraftModel(draft), tokens)


def make_head_draft(model: Any, tokens: int) -> Draft | None:
    """A model's own head, which guesses at most `tokens` tokens at a time, if the model has one."""
    drafter = HeadDrafter.of(model, tokens)
    if drafter is None or not can_be_merged(make_caches(model)) or not takes_padding(model):
        return None
    return Draft(drafter, tokens)


def sizes_with(draft: Draft, sizes: CacheSizes) -> CacheSizes:
    """The sizes of a sequence's caches with those of a drafter, and with the states for it."""
    drafter = draft.drafter
    drafted = measure(lambda tokens, cache: drafter(tokens, None, cache), drafter.make_cache)
    return sizes._replace(
        row_bytes=sizes.row_bytes + STATE_TOKENS * drafter.state_bytes,
        draft_token_bytes=drafted.token_bytes,
    )
