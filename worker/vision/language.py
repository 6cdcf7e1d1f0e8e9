"""The part of mlx-vlm's models that writes text, callable as mlx-lm's models are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx

from worker import mlx_vlm
from worker.mlx_lm.added_caches import RowShifts
from worker.vision.prompt import SHIFT


def load_language(folder: Path) -> tuple[LanguagePart, dict[str, Any]]:
    """The part that writes text of the model in a folder, and the model's configuration. Its
    weights are read when they are used, and those of other parts never.

    Raises:
        Exception: the files can't be understood; each architecture fails in its own way.
    """
    config: dict[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
    return LanguagePart(mlx_vlm.read_language(folder)), config


class LanguagePart:
    """The part of a model that writes text. As mlx-lm's models do, it computes rows of texts
    together.

    mlx-vlm's may keep the positions of one sequence in itself, from call to call. Here it gets the
    shift of each row's positions with every call.
    """

    def __init__(self, language: Any) -> None:
        self._language = language
        self._shifts = mlx_vlm.keeps_positions(language)

    @property
    def layers(self) -> Any:
        return self._language.layers

    @property
    def attends_across(self) -> bool:
        """Whether steps of a row need more of its pictures than the row's caches and shift."""
        return mlx_vlm.attends_across(self._language)

    @property
    def choices(self) -> list[tuple[Any, int]]:
        """The modules that choose among earlier tokens, and how many each chooses at most."""
        return mlx_vlm.choices_of(self._language)

    def parameters(self) -> Any:
        return self._language.parameters()

    def make_cache(self) -> list[Any]:
        caches = mlx_vlm.make_caches(self._language)
        return [*caches, RowShifts()] if self._shifts else caches

    def __call__(self, tokens: mx.array, cache: list[Any] | None = None) -> mx.array:
        """Token ids (rows, tokens) of texts to logits (rows, tokens, vocabulary)."""
        if cache is None or not self._shifts:
            mlx_vlm.forget_positions(self._language)
            return self._compute(tokens, cache)
        *layers, shifts = cache
        # Some models read the shifts here, others among the arguments.
        mlx_vlm.forget_positions(self._language, shifts.array)
        logits = self._compute(tokens, layers, **{SHIFT: shifts.array})
        # Some models put other caches into the list.
        cache[:-1] = layers
        return logits

    def _compute(self, tokens: mx.array, cache: list[Any] | None, **beside: Any) -> mx.array:
        output = self._language(tokens, cache=cache, **beside)
        # Some models give the logits alone.
        logits: mx.array = getattr(output, "logits", output)
        return logits
