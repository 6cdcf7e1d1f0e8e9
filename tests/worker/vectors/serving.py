"""A loaded model that serves vectors, and what it sends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from protocol.answers import Embedded, OutputInvalid
from protocol.requests import Embed, TextPrompt
from worker.engines.room import NO_CACHES, CacheRoom, Context
from worker.load.loading import LoadedModel, load
from worker.vectors.jobs import VectorJob
from worker.vectors.making import VectorServing, make_vectors

CONTEXT = Context(128)


def load_folder(folder: Path) -> LoadedModel:
    return load(str(folder), lambda _done, _total: None, lambda: False)


class Served:
    """A loaded model, and the vectors that it sends."""

    def __init__(self, folder: Path) -> None:
        self.loaded = load_folder(folder)
        self.sent: list[Embedded | OutputInvalid] = []
        serving = make_vectors(
            self.loaded, str(folder), CacheRoom(NO_CACHES), 0.1, self.sent.append
        )
        assert isinstance(serving, VectorServing)
        self.serving = serving

    def embedded(self) -> list[Embedded]:
        """The answers since the last `numbers`."""
        return [answer for answer in self.sent if isinstance(answer, Embedded)]

    def numbers(self, texts: Sequence[str], **fields: Any) -> np.ndarray:
        """The vectors or the scores of texts that are asked for at once."""
        embed = Embed(request_id="r", inputs=tuple(map(TextPrompt, texts)), **fields)
        job = self.serving.texts.prepare(embed, CONTEXT)
        assert isinstance(job, VectorJob), job
        self.sent.clear()
        self.serving.engine.add(job)
        while self.serving.engine.jobs:
            assert self.serving.engine.start_batch(None)
            self.serving.engine.step(beside_decoding=False)
        (answer,) = self.embedded()
        return np.frombuffer(answer.vectors, "<f4").reshape(len(texts), -1)
