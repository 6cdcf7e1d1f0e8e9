"""Well-known models, for who has none yet. The list is part of the package, and nothing is fetched
for it.
"""

from __future__ import annotations

from typing import Final

from gateway.library.search_process import Candidate

# When the list was made: better models may have come since.
DATED: Final = "2026-10"


def _known(name: str, weight_gigabytes: float) -> Candidate:
    return Candidate(
        repository=f"mlx-community/{name}", weight_bytes=int(weight_gigabytes * 1e9), mlx=True
    )


# From small to large. Sizes are 4.5 bits for each parameter, or as reported.
WELL_KNOWN: Final = (
    _known("Qwen3-0.6B-4bit", 0.34),
    _known("Qwen3-1.7B-4bit", 0.97),
    _known("Llama-3.2-3B-Instruct-4bit", 1.8),
    _known("Qwen3-4B-4bit", 2.3),
    _known("Qwen3-8B-4bit", 4.6),
    _known("Qwen3.5-9B-4bit", 6.0),
    _known("gpt-oss-20b-MXFP4-Q8", 12.1),
    _known("Qwen3.6-27B-4bit", 16.0),
    _known("Qwen3.6-35B-A3B-4bit", 20.0),
    _known("Llama-3.3-70B-Instruct-4bit", 39.7),
    _known("GLM-4.5-Air-4bit", 60.1),
    _known("Qwen3-235B-A22B-4bit", 132.2),
)
