"""The draft model of a model, if both can work together."""

from __future__ import annotations

from typing import Any

from worker.mlx_lm.caches import can_be_merged, in_words, make_caches, takes_padding
from worker.mlx_lm.drafting import DraftModel
from worker.mlx_lm.guessing import Draft
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
