"""How processes of one model reach each other, as mlx.distributed calls it, and what each has."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from msgspec import Struct

RankBackend: TypeAlias = Literal["ring", "jaccl", "nccl"]
RankSplit: TypeAlias = Literal["tensor", "pipeline"]

# The exit status of a rank that ends because it has lost another one.
LEFT_ALONE: Final = 3


class Ranks(Struct, frozen=True, kw_only=True):
    """The processes that compute one model together; rank 0 is told this, and the others follow it.

    `addresses` has for each rank the places, host:port, at which its neighbours reach it; of NCCL
    and JACCL only the first one of rank 0 counts. `devices` are JACCL's: for each rank its RDMA
    device towards each other one, None towards itself. The followers connect to `endpoint`, a
    ZeroMQ address, and prove themselves by the first of the `keys`. One that is silent for
    `silence_s` is lost.
    """

    size: int
    backend: RankBackend
    split: RankSplit
    addresses: tuple[tuple[str, ...], ...]
    endpoint: str
    keys: tuple[bytes, bytes]
    silence_s: float
    devices: tuple[tuple[str | None, ...], ...] = ()
