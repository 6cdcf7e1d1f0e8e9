"""What computes the rows of a batch and draws their tokens."""

from __future__ import annotations

from itertools import count
from typing import Any, NamedTuple

from worker.guesses.costs import StepCosts
from worker.guesses.guesser import BatchGuesser, Drafts, Shares
from worker.mlx_lm.caches import keeps_states
from worker.mlx_lm.generator import Generator, MakeGenerator, Tap
from worker.mlx_lm.guessing import Draft
from worker.mlx_lm.row_groups import ONE_GROUP, Grouping
from worker.sampling.scores import scored_chunk
from worker.structure.sampler import ConstrainedSampler


class Learned(NamedTuple):
    """What all batches of an engine learn: the costs of steps, and how many guesses are right, of
    those that are found and of those of the `draft`. `shares` None: nothing is guessed.
    """

    costs: StepCosts
    shares: Shares | None
    draft: Draft | None
    draft_shares: Shares


class Drawing:
    """What computes the rows of a batch and draws their tokens: a model, a sampler, and perhaps a
    guesser. Batches that share it can join.
    """

    def __init__(
        self,
        model: Any,
        working_bytes: int = 0,
        learned: Learned | None = None,
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
        self.sampler = ConstrainedSampler[int](self.tap.rows, self.tap.take)
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
