"""Which card of this machine each rank computes on."""

from __future__ import annotations

import os

from gateway.system.memory import BackEnd, back_end
from protocol.ranks import RankBackend


def default_backend() -> RankBackend:
    """Of ranks on this machine."""
    return "nccl" if back_end() is BackEnd.CUDA else "ring"


def sharing(ranks: int) -> int:
    """How many of a model's ranks on this machine take from one budget. A card's is that of one
    card, and every rank has a card of its own: the first card, which has rank 0, is the fullest.
    """
    return 1 if back_end() is BackEnd.CUDA else ranks


def cards(ranks: int) -> list[str]:
    """What CUDA_VISIBLE_DEVICES is for each rank: one of those that this process may use. Empty
    where MLX computes on no card of its own.
    """
    if back_end() is not BackEnd.CUDA:
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(each) for each in range(ranks)]
