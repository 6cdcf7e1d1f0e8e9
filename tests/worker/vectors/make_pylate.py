"""Writes pylate.json beside this file: the scores that PyLate makes of some texts.

The suite doesn't run it: it takes torch 2.13.0 and PyLate 1.6.0, in an environment of its own.
`python make_pylate.py FOLDER` gets the folder of all-MiniLM-L6-v2.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pylate import models

QUERY = "Which ship sails, and where?"
DOCUMENTS = [
    "The ship leaves the harbour; its sails are full.",
    "Bread rises, slowly.",
    "short",
    "",
    "A bulkhead divides the hold of a ship, so that a leak floods one part alone.",
]
# What isn't in a case has PyLate's default.
CASES: list[dict[str, Any]] = [
    {},
    {"attend_to_expansion_tokens": True},
    {"do_query_expansion": False},
    {"skiplist_words": ["ship", "."]},
]
SETTINGS = {
    "query_prefix": "[unused0]",
    "document_prefix": "[unused1]",
    "query_length": 16,
    "document_length": 64,
}
WIDTH = 24


def main(folder: str) -> None:
    cases = [{**SETTINGS, **case} for case in CASES]
    written = {
        "query": QUERY,
        "documents": DOCUMENTS,
        "cases": [{"settings": case, "scores": _scores(folder, case)} for case in cases],
    }
    Path(__file__).with_name("pylate.json").write_text(json.dumps(written, indent=1) + "\n")


def layer() -> np.ndarray:
    """The same weights on every run, (WIDTH, 384)."""
    return np.random.RandomState(7).randn(WIDTH, 384).astype(np.float32)


def _scores(folder: str, settings: dict[str, Any]) -> list[float]:
    model = models.ColBERT(folder, device="cpu", **settings)
    del model[1:]
    dense = models.Dense(384, WIDTH, bias=False)
    dense.linear.weight.data = torch.tensor(layer())
    model.append(dense)
    model.eval()
    (query,) = model.encode([QUERY], is_query=True)
    documents = model.encode(DOCUMENTS, is_query=False)
    scores = [(np.array(query) @ np.array(vectors).T).max(axis=1).sum() for vectors in documents]
    return [round(float(score), 5) for score in scores]


if __name__ == "__main__":
    main(sys.argv[1])
