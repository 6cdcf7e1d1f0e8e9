"""How processes of one model reach each other, as mlx.distributed calls it, and what each has."""

from __future__ import annotations

from typing import Literal, TypeAlias

RankBackend: TypeAlias = Literal["ring", "jaccl", "nccl"]
RankSplit: TypeAlias = Literal["tensor", "pipeline"]
