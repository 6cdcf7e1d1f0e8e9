"""What a loaded model makes beside text, and what that takes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from protocol.answers import Embedded
from protocol.life import Ability
from worker.engines.room import CacheRoom
from worker.load.loading import LoadedModel
from worker.mlx_embeddings import scores
from worker.system.errors import ModelError
from worker.vectors.engine import VectorEngine
from worker.vectors.heads import ClassHead, Head, VectorHead, YesHead
from worker.vectors.jobs import VectorKind
from worker.vectors.prepare import VectorTokenizer
from worker.vectors.recipe import Recipe, RecipeError, read_recipe
from worker.vectors.trunks import Decoder, Encoder, Trunk

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class VectorServing:
    """`texts` become jobs for the `engine`."""

    abilities: tuple[Ability, ...]
    texts: VectorTokenizer
    engine: VectorEngine


def make_vectors(
    loaded: LoadedModel,
    source: str,
    room: CacheRoom,
    stall_s: float,
    emit: Callable[[Embedded], None],
) -> VectorServing | None:
    """None: the model is a decoder that only writes. `source` is what it was loaded from.

    Raises:
        ModelError: an encoder's files ask for what isn't done here.
    """
    try:
        if loaded.is_encoder:
            return _of_encoder(loaded, room, stall_s, emit)
        return _of_decoder(loaded, source, room, stall_s, emit)
    except RecipeError as error:
        if loaded.is_encoder:
            raise ModelError(str(error)) from error
        logger.warning("The model makes no vectors: %s", error)
        return None


def _of_encoder(
    loaded: LoadedModel, room: CacheRoom, stall_s: float, emit: Callable[[Embedded], None]
) -> VectorServing:
    recipe = read_recipe(loaded.folder, loaded.config, "mean")
    trunk = Encoder(loaded.model)
    if scores(loaded.config):
        heads: dict[VectorKind, Head] = {"score": ClassHead(loaded.model, loaded.config)}
        return _making(loaded, recipe, trunk, heads, "score", room, stall_s, emit, pairs=True)
    vectors = VectorHead(recipe)
    heads = {"embedding": vectors, "cosine": vectors}
    return _making(loaded, recipe, trunk, heads, "cosine", room, stall_s, emit)


def _of_decoder(
    loaded: LoadedModel,
    source: str,
    room: CacheRoom,
    stall_s: float,
    emit: Callable[[Embedded], None],
) -> VectorServing | None:
    trunk = Decoder.of(loaded.model)
    if trunk is None:
        return None
    recipe = read_recipe(loaded.folder, loaded.config, "lasttoken")
    vectors = VectorHead(recipe)
    heads: dict[VectorKind, Head] = {"embedding": vectors, "cosine": vectors}
    score: VectorKind = "cosine"
    if (ids := recipe.yes_no or _yes_no(loaded, source)) is not None:
        heads["score"], score = YesHead(loaded.model, *ids), "score"
    return _making(loaded, recipe, trunk, heads, score, room, stall_s, emit)


def _making(
    loaded: LoadedModel,
    recipe: Recipe,
    trunk: Trunk,
    heads: dict[VectorKind, Head],
    score: VectorKind,
    room: CacheRoom,
    stall_s: float,
    emit: Callable[[Embedded], None],
    *,
    pairs: bool = False,
) -> VectorServing:
    tokenizer = loaded.tokenizer
    abilities: list[Ability] = [] if loaded.is_encoder or loaded.is_headless else ["text"]
    abilities += ["embedding", "score"] if "embedding" in heads else ["score"]
    pad = loaded.config.get("pad_token_id")
    pad_token_id = pad if isinstance(pad, int) and 0 <= pad < loaded.vocabulary else 0
    return VectorServing(
        tuple(abilities),
        VectorTokenizer(tokenizer, loaded.vocabulary, recipe, score, pairs=pairs),
        VectorEngine(trunk, heads, room, stall_s, pad_token_id, emit),
    )


def _yes_no(loaded: LoadedModel, source: str) -> tuple[int, int] | None:
    """Qwen3-Reranker's files don't say what it is: its name does."""
    kind = str(loaded.config.get("model_type"))
    if not kind.startswith("qwen3") or "rerank" not in source.lower():
        return None
    yes, no = (_only_token(loaded.tokenizer, word) for word in ("yes", "no"))
    return None if yes is None or no is None else (yes, no)


def _only_token(tokenizer: Any, word: str) -> int | None:
    ids = list(tokenizer.encode(word, add_special_tokens=False))
    return int(ids[0]) if len(ids) == 1 else None
