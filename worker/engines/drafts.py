"""What guesses tokens for a model: a draft model, if both can work together, or its own head."""

from __future__ import annotations

from functools import partial
from typing import Any

from protocol.life import STATE_TOKENS
from worker.engines.room import CacheSizes, measure
from worker.mlx_lm.caches import can_be_merged, in_words, make_caches, takes_padding
from worker.mlx_lm.drafting import DraftModel
from worker.mlx_lm.guessing import Draft
from worker.mlx_lm.heads import HeadDrafter
from worker.system.errors import ModelError


def make_draft(model: Any, draft: Any, tokens: int) -> Draft:
    """A draft model that guesses at most `tokens` tokens at a time.

    Raises:
        ModelError: guesses can't be checked in this model's batches, or the draft model can't
            forget wrong ones.
    """
    if not can_be_merged(make_caches(model)) or not takes_padding(model):
        raise ModelError(
            f"draft_model: guesses are checked in batches, and a batch of this model, which has "
            f"{in_words(make_caches(model))}, can't have different numbers of tokens a row."
        )
    unfit = DraftModel.unfit(draft)
    if unfit:
        raise ModelError(
            f"draft_model: a draft model takes wrong guesses back from its caches, and this one "
            f"has {in_words(unfit)}, which can't forget single tokens."
        )
    return Draft(DraftModel(draft), tokens)


def own_draft(model: Any, tokens: int, sizes: CacheSizes) -> tuple[Draft | None, CacheSizes]:
    """A model's own head, which guesses at most `tokens` tokens at a time, if the model has one.
    Then the sizes of a sequence's caches include those of the head and of the states for it.
    """
    drafter = HeadDrafter.of(model, tokens)
    if drafter is None or not can_be_merged(make_caches(model)) or not takes_padding(model):
        return None, sizes
    own = measure(partial(drafter, hidden=None), drafter.make_cache)
    return Draft(drafter, tokens), sizes._replace(
        row_bytes=sizes.row_bytes + STATE_TOKENS * drafter.state_bytes,
        draft_token_bytes=own.token_bytes,
    )
