"""How processes of one model reach each other, as mlx.distributed calls it, and what each has."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

RankBackend: TypeAlias = Literal["ring", "jaccl", "nccl"]
RankSplit: TypeAlias = Literal["tensor", "pipeline"]

# The exit status of a rank that ends because it has lost another one.
LEFT_ALONE: Final = 3
