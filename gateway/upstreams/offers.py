"""The models that an upstream offers, as its list tells. No I/O."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta, Struct

from protocol.life import Ability

MOST_MODELS: Final = 1000
# The most gateways in a row. Where all gateways know each other, the number of ways grows with each
# further gateway.
MOST_GATEWAYS: Final = 4
_LONGEST_NAME: Final = 300


_LONGEST_REASON: Final = 1000
# A larger number is no count, and couldn't be written.
_Count: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 32)]


class Offer(Struct, frozen=True):
    """A model of an upstream. Another Bulkhead shows more than OpenAI's list has: `aliases`,
    `state`, `reason`, how many requests run and wait there, and `via`: the instances of the
    gateways that a request for the model passes, the upstream first. vLLM has `max_model_len`, too.
    """

    id: str
    aliases: tuple[str, ...] = ()
    state: str | None = None
    reason: str | None = None
    max_model_len: _Count | None = None
    input_modalities: tuple[str, ...] | None = None
    abilities: tuple[Ability, ...] | None = None
    active_requests: _Count | None = None
    queue_depth: _Count | None = None
    via: tuple[str, ...] = ()

    @property
    def of_bulkhead(self) -> bool:
        return bool(self.via)

    @property
    def names(self) -> tuple[str, ...]:
        """All names by which the upstream knows the model."""
        return (self.id, *self.aliases)

    @property
    def load(self) -> int:
        """The requests that run and wait there, as far as they are known."""
        return (self.active_requests or 0) + (self.queue_depth or 0)


class _Listing(Struct):
    data: list[Offer]


class CycleError(ValueError):
    """The upstream is the gateway that asks it."""

    def __init__(self) -> None:
        super().__init__("is this gateway itself, under another address")


def read_offers(body: bytes, instance: str) -> list[Offer]:
    """The offers in a list of models. Models that the upstream has from this gateway are left out,
    as a request for them would come back. `instance` is this gateway's.

    Raises:
        CycleError: it is this gateway's own list, as behind a proxy that takes Via out.
        ValueError: it is no such list; the text completes "the upstream ...".
    """
    try:
        offers = msgspec.json.decode(body, type=_Listing).data
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"answered with no list of models: {error}") from error
    if len(offers) > MOST_MODELS:
        raise ValueError(f"lists {len(offers):,} models, of {MOST_MODELS:,} at most")
    if any(offer.via[:1] == (instance,) for offer in offers):
        raise CycleError
    return [
        msgspec.structs.replace(offer, reason=offer.reason and offer.reason[:_LONGEST_REASON])
        for offer in offers
        if instance not in offer.via
        and len(offer.via) <= MOST_GATEWAYS
        and all(_is_name(name) for name in offer.names)
    ]


def _is_name(name: str) -> bool:
    return 0 < len(name) <= _LONGEST_NAME and name.isprintable()
