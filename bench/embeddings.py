"""`python -m bench.embeddings`: texts a second, by mlx-embeddings in one process and by Bulkhead.

The library takes the texts in their order, in batches of 32 and of 128; the better one counts.
Bulkhead gets them all in one request over HTTP. Both take turns.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.machine import describe_machine
from bench.models import model_parser
from tests.support.gateway import Gateway
from tests.support.minilm import minilm

_BATCHES: Final = (32, 128)
_TARGET: Final = 0.9
_WORDS: Final = (
    "ship",
    "harbour",
    "storm",
    "door",
    "memory",
    "model",
    "the",
    "of",
    "before",
    "answers",
)


def main() -> int:
    parser = model_parser(
        "bench.embeddings", __doc__, rounds=5, model=None, shown="all-MiniLM-L6-v2"
    )
    parser.add_argument("--texts", type=int, default=1000, metavar="N")
    parsed = parser.parse_args()
    texts = _texts(parsed.texts)
    print(f"{describe_machine()}; {len(texts)} texts of 3 to 24")
    print(f"words, medians of {parsed.rounds} rounds.\n")
    folder = minilm() if parsed.model is None else parsed.model
    subjects = {f"mlx-embeddings, {size} a batch": _library(folder, size) for size in _BATCHES}
    gateway = Gateway(models=(f"{folder}=model",))
    try:
        subjects["Bulkhead"] = lambda values: _ask(gateway, values)
        rates = _measure(subjects, texts, parsed.rounds)
    finally:
        gateway.stop()
    print("| | texts a second |")
    print("| --- | ---: |")
    for name, rate in rates.items():
        print(f"| {name} | {rate:.1f} |")
    best = max(rate for name, rate in rates.items() if name != "Bulkhead")
    print(f"\nBulkhead makes {rates['Bulkhead'] / best:.2f} of the better one; target {_TARGET}.")
    return 0


def _texts(number: int) -> list[str]:
    chance = random.Random(7)
    return [" ".join(chance.choices(_WORDS, k=chance.randint(3, 24))) for _ in range(number)]


def _measure(
    subjects: dict[str, Callable[[list[str]], np.ndarray[Any, Any]]], texts: list[str], rounds: int
) -> dict[str, float]:
    """Texts a second of each subject. Their vectors must be the same."""
    vectors = [make(texts[:8]) for make in subjects.values()]
    for vector in vectors[1:]:
        np.testing.assert_allclose(vector, vectors[0], atol=1e-3)
    rates: dict[str, list[float]] = {name: [] for name in subjects}
    for number in range(rounds):
        for name, make in subjects.items():
            began = time.perf_counter()
            make(texts)
            rates[name].append(len(texts) / (time.perf_counter() - began))
            print(f"{number}: {name}: {rates[name][-1]:.1f}", file=sys.stderr)
    return {name: statistics.median(rate) for name, rate in rates.items()}


def _library(folder: Path, size: int) -> Callable[[list[str]], np.ndarray[Any, Any]]:
    import mlx_embeddings

    # Since transformers 5 its wrapper of tokenizers can't be called any more.
    model, wrapper = mlx_embeddings.load(str(folder))

    def make(texts: list[str]) -> np.ndarray[Any, Any]:
        made = [
            np.array(
                mlx_embeddings.generate(
                    model, wrapper._tokenizer, texts[index : index + size]
                ).text_embeds
            )
            for index in range(0, len(texts), size)
        ]
        return np.concatenate(made)

    return make


def _ask(gateway: Gateway, texts: list[str]) -> np.ndarray[Any, Any]:
    answer = gateway.client.post(
        "/v1/embeddings", json={"model": "model", "input": texts}, timeout=3600
    )
    return np.array([item["embedding"] for item in answer.raise_for_status().json()["data"]])


if __name__ == "__main__":
    sys.exit(main())
