"""A rank's part of a model, as mlx-lm's models make it."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from protocol.ranks import RankSplit, undivided
from worker.mlx_lm.collectives import keep_apart
from worker.mlx_lm.models import splits_of, splittable
from worker.system.errors import ModelError, one_sentence


def split_model(model: Any, config: dict[str, Any], group: Any, split: RankSplit) -> None:
    """Leave of a model, whose weights aren't read yet, what this rank computes.

    Raises:
        ModelError: mlx-lm can't split it like this.
    """
    kind = str(config.get("model_type"))
    splits = splits_of(model)
    if split not in splits:
        raise ModelError(_refusal(kind, split, next(iter(splits), None)))
    try:
        if split == "tensor" and (reason := undivided(config, group.size())) is not None:
            raise ValueError(reason)
        splits[split](group)
        if not mx.cuda.is_available():
            # Nobody bounds the commands of a card.
            keep_apart(model)
    except (ValueError, RuntimeError) as error:
        raise ModelError(
            f'split: a {kind} can\'t be split over {group.size()} ranks by "{split}": '
            f"{one_sentence(error)}"
        ) from error


def _refusal(kind: str, split: str, other: str | None) -> str:
    if other is not None:
        return f'split: mlx-lm can\'t split a {kind} by "{split}", but it can by "{other}".'
    return (
        f"mlx-lm can't split a {kind} over ranks. Those that it can, by tensors: "
        f"{', '.join(splittable())}."
    )
