"""Well-known models, for who has none yet. The list is part of the package, and nothing is fetched
for it.
"""

from __future__ import annotations

from typing import Final

from gateway.library.search_process import Candidate

# When the list was made: better models may have come since.
DATED: Final = "2025-10"


def _known(name: str, weight_gigabytes: float) -> Candidate:
    return Candidate(
        repository=f"mlx-community/{name}", weight_bytes=int(weight_gigabytes * 1e9), mlx=True
    )


# From small to large. The sizes follow from the numbers of parameters, at 4.5 bits each.
WELL_KNOWN: Final = (
    _known("Qwen3-0.6B-4bit", 0.34),
    _known("Qwen3-1.7B-4bit", 0.97),
    _known("Llama-3.2-3B-Instruct-4bit", 1.8),
    _known("Qwen3-4B-4bit", 2.3),
    _known("Qwen3-8B-4bit", 4.6),
    _known("Qwen3-14B-4bit", 8.3),
    _known("Qwen3-30B-A3B-4bit", 17.2),
    _known("Qwen3-32B-4bit", 18.4),
    _known("Llama-3.3-70B-Instruct-4bit", 39.7),
    _known("GLM-4.5-Air-4bit", 60.1),
    _known("Qwen3-235B-A22B-4bit", 132.2),
)
