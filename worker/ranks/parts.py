"""A rank's part of a model, as mlx-lm's models make it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import mlx_lm.models

from protocol.ranks import RankSplit, undivided
from worker.ranks.collectives import keep_apart
from worker.system.errors import ModelError, one_sentence

_SHARDS: Final = "    def shard("


def split_model(model: Any, config: dict[str, Any], group: Any, split: RankSplit) -> None:
    """Leave of a model, whose weights aren't read yet, what this rank computes.

    Raises:
        ModelError: mlx-lm can't split it like this.
    """
    kind = str(config.get("model_type"))
    can = {"tensor": hasattr(model, "shard"), "pipeline": _stages(model) is not None}
    if not can[split]:
        raise ModelError(_refusal(kind, split, can))
    try:
        if split == "tensor":
            if (reason := undivided(config, group.size())) is not None:
                raise ValueError(reason)
            model.shard(group)
        else:
            _stages(model).pipeline(group)
        if not mx.cuda.is_available():
            # Nobody bounds the commands of a card.
            keep_apart(model)
    except (ValueError, RuntimeError) as error:
        raise ModelError(
            f'split: a {kind} can\'t be split over {group.size()} ranks by "{split}": '
            f"{one_sentence(error)}"
        ) from error


def _stages(model: Any) -> Any:
    inner = getattr(model, "model", None)
    return inner if hasattr(inner, "pipeline") else None


def _refusal(kind: str, split: str, can: dict[str, bool]) -> str:
    other = next((name for name, possible in can.items() if possible), None)
    if other is not None:
        return f'split: mlx-lm can\'t split a {kind} by "{split}", but it can by "{other}".'
    return (
        f"mlx-lm can't split a {kind} over ranks. Those that it can, by tensors: "
        f"{', '.join(_splittable())}."
    )


def _splittable() -> list[str]:
    """Looked for in the sources: to import them all would take seconds."""
    folder = Path(mlx_lm.models.__file__).parent
    return sorted(each.stem for each in folder.glob("*.py") if _SHARDS in each.read_text("utf-8"))
