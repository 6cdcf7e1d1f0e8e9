"""Are the vectors of a model made as its folder says, and as it was trained?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import mlx.core as mx
import numpy as np

from protocol.answers import Embedded, OutputInvalid, RequestFailed
from protocol.check import CheckFinding
from protocol.requests import Embed, TextPrompt
from worker.engines.room import NO_CACHES, CacheRoom, Context, measure
from worker.errands.check.subject import Findings, SectionSkipped, Subject, Teller
from worker.mlx_embeddings import scores
from worker.mlx_lm.text import tokenizer_inside
from worker.system.errors import ModelError
from worker.vectors.backbones import Backbone, Decoder, Encoder, PaddedTexts
from worker.vectors.making import VectorServing, make_vectors
from worker.vectors.pooling import Pool, Pooling
from worker.vectors.recipe import encoder_pooling, read_recipe

TELL: Final = Teller("vectors")
# Pairs of sentences that say nearly the same, of different matters.
_PAIRS: Final = (
    ("The cat sleeps on the warm sofa.", "A kitten is napping on the couch."),
    ("Interest rates were raised by the central bank.", "The federal bank increased its rates."),
    ("He repaired the engine of his old car.", "The man fixed the motor of an ancient vehicle."),
)
_POOLINGS: Final[tuple[Pooling, ...]] = ("mean", "cls", "lasttoken")
# Another pooling tells the pairs apart better by so much, in cosines.
_BETTER: Final = 0.08
_SAME: Final = 0.999
# Decoders that were trained for the state of the last token.
_LAST: Final = ("qwen2", "qwen3", "mistral")


def check_the_vectors(subject: Subject) -> Findings:
    loaded = subject.loaded
    makes = loaded.is_encoder or (subject.folder / "modules.json").is_file()
    if not makes or scores(loaded.config):
        raise SectionSkipped("The model's files have no recipe for vectors.")
    pooling: Pooling = encoder_pooling(loaded.config) if loaded.is_encoder else "lasttoken"
    shape = NO_CACHES if loaded.is_encoder else measure(loaded.model)
    got: list[Embedded | OutputInvalid] = []
    try:
        serving = make_vectors(loaded, subject.order.source, CacheRoom(shape), 1.0, got.append)
    except ModelError as error:
        yield _unreadable(error.reason)
        return "The recipe for vectors can't be read."
    if serving is None:
        yield _unreadable("its pooling or a module isn't known here, or can't be read.")
        return "The recipe for vectors can't be read."
    recipe = read_recipe(subject.folder, loaded.config, pooling)
    if recipe.marks is not None:
        serving.engine.close()
        raise SectionSkipped("The model makes a vector of each token, and none of a text.")
    texts = [sentence for pair in _PAIRS for sentence in pair]
    together = _vectors(serving, got, texts)
    alone = _vectors(serving, got, texts[:1])
    serving.engine.close()
    yield from _sound(together, alone, normalized=recipe.normalized)
    backbone = Encoder(loaded.model) if loaded.is_encoder else Decoder.of(loaded.model)
    assert backbone is not None
    contrasts = _contrasts(subject, backbone, texts)
    yield from _pooling(subject, recipe.poolings, contrasts)
    if not recipe.normalized:
        yield TELL.remark(
            "The vectors aren't normalized.",
            "modules.json has no module Normalize.",
            "Compare vectors by the cosine, and not by the product alone.",
        )
    cosines = ", ".join(f"{name} {value:.2f}" for name, value in contrasts.items())
    return f"Pooling {' and '.join(recipe.poolings)}; related pairs are nearer by: {cosines}."


def _unreadable(reason: str) -> CheckFinding:
    return TELL.fault(
        "The recipe for vectors can't be followed.",
        reason,
        "Copy modules.json and the folders that it names from the original model.",
    )


def _vectors(
    serving: VectorServing, got: list[Embedded | OutputInvalid], texts: list[str]
) -> np.ndarray[Any, Any]:
    """The vectors of the texts, (texts, width); NaN if the model's numbers are invalid."""
    got.clear()
    embed = Embed(request_id="check", inputs=tuple(map(TextPrompt, texts)))
    job = serving.texts.prepare(embed, Context(512))
    if isinstance(job, RequestFailed):
        raise ValueError(job.message)
    serving.engine.add(job)
    parts: list[Embedded] = []
    while not (parts and parts[-1].last):
        serving.engine.start_batch(None)
        serving.engine.step(beside_decoding=False)
        if any(isinstance(part, OutputInvalid) for part in got):
            return np.full((len(texts), 1), np.nan)
        parts = [part for part in got if isinstance(part, Embedded)]
    numbers = np.frombuffer(b"".join(part.vectors for part in parts), "<f4")
    return numbers.reshape(len(texts), -1)


def _sound(
    together: np.ndarray[Any, Any], alone: np.ndarray[Any, Any], *, normalized: bool
) -> Iterator[CheckFinding]:
    lengths = np.linalg.norm(together, axis=1)
    if not np.isfinite(together).all() or not lengths.all():
        yield TELL.fault(
            "The vectors aren't finite numbers, or are 0.",
            f"The lengths of {len(lengths)} vectors are {np.round(lengths, 3).tolist()}.",
            "Pull the model again, or take another conversion.",
        )
        return
    if normalized and abs(lengths - 1).max() > 1e-3:
        yield TELL.fault(
            "The vectors aren't normalized, though the recipe says so.",
            f"Their lengths are {np.round(lengths, 3).tolist()}.",
            "Report it with the name of the model.",
            "bulkhead",
        )
    cosine = float(together[0] @ alone[0] / lengths[0] / np.linalg.norm(alone[0]))
    if cosine < _SAME:
        yield TELL.fault(
            "The vector of a text depends on the texts beside it.",
            f"The cosine of the vector alone and in a batch is {cosine:.4f}.",
            "Report it with the name of the model, and the output of bulkhead doctor.",
            "bulkhead",
        )


def _contrasts(subject: Subject, backbone: Backbone, texts: list[str]) -> dict[Pooling, float]:
    """For each pooling how much nearer related sentences are to each other than others are."""
    encoded = tokenizer_inside(subject.tokenizer)(texts, padding=False)
    ids, types = encoded["input_ids"], encoded.get("token_type_ids")
    lengths = [len(token_ids) for token_ids in ids]
    longest = max(lengths)

    def padded(rows: list[list[int]]) -> mx.array:
        return mx.array([list(row) + [0] * (longest - len(row)) for row in rows])

    batch = PaddedTexts(padded(ids), None if types is None else padded(types), lengths)
    states = backbone.states(batch, backbone.make_caches())
    return {pooling: _contrast(states, pooling, lengths) for pooling in _POOLINGS}


def _contrast(states: mx.array, pooling: Pooling, lengths: list[int]) -> float:
    pool = Pool((pooling,), lengths, [0] * len(lengths))
    pool.add(states)
    vectors = np.array(pool.result().astype(mx.float32))
    vectors = vectors / (np.linalg.norm(vectors, axis=1, keepdims=True) + 1e-12)
    cosines = vectors @ vectors.T
    related = [cosines[row, row + 1] for row in range(0, len(lengths), 2)]
    others = [
        cosines[row, column]
        for row in range(len(lengths))
        for column in range(row)
        if row // 2 != column // 2
    ]
    return float(np.mean(related) - np.mean(others))


def _pooling(
    subject: Subject, poolings: tuple[Pooling, ...], contrasts: dict[Pooling, float]
) -> Iterator[CheckFinding]:
    kind = str(subject.config.get("model_type"))
    used = poolings[0]
    remedy = "Copy modules.json and 1_Pooling/config.json of the original model."
    if len(poolings) > 1 or used not in contrasts:
        return
    best = max(contrasts, key=lambda pooling: contrasts[pooling])
    if not subject.loaded.is_encoder and used == "cls":
        yield TELL.fault(
            "The vector is the state of the first token, which sees no other token.",
            f"A model of type {kind} reads from left to right.",
            remedy,
        )
    elif not subject.loaded.is_encoder and used == "mean" and kind in _LAST:
        yield TELL.fault(
            "The vector is the mean of all states, and should be the state of the last token.",
            f"Models of type {kind} that make vectors are trained for the last token; related "
            f"sentences are nearer by {contrasts['lasttoken']:.2f} with that, and by "
            f"{contrasts['mean']:.2f} with the mean.",
            remedy,
        )
    elif contrasts[best] > contrasts[used] + _BETTER:
        yield TELL.fault(
            f"The pooling {used} isn't the one that the model was trained with.",
            f"Related sentences are nearer than others by {contrasts[used]:.2f} with {used}, and "
            f"by {contrasts[best]:.2f} with {best}.",
            remedy,
        )
