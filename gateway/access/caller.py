"""Who makes a request, and what it may do. No I/O."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Final

from msgspec import Struct

# Of the operator's own key; no other may be called so.
ADMIN: Final = "admin"


class Caller(Struct, frozen=True, kw_only=True):
    """`name` is that of the key, and None if there are none, or none was shown. `owner` is who has
    what is kept for it, and empty then.

    `models` are the ids and aliases that it may use, None for all. `priority` is the highest that
    its requests may have, None for the model's own; it doesn't bind who is `admin`.
    """

    name: str | None = None
    owner: str = ""
    admin: bool = False
    models: tuple[str, ...] | None = None
    priority: int | None = None

    def may_use(self, model_id: str, aliases: Collection[str] = ()) -> bool:
        """Whether it may know of a model at all."""
        return (
            self.models is None
            or model_id in self.models
            or any(alias in self.models for alias in aliases)
        )

    def cache_salt(self, wanted: str, *, shared: bool) -> str:
        """What becomes of the salt that a request asks for: each key has prompts of its own, unless
        they are `shared`.
        """
        return wanted if shared or not self.owner else f"{self.owner}\0{wanted}"

    def priority_of(self, wanted: int | None, model_priority: int) -> int | None:
        """What becomes of the priority that a request asks for; None is the model's own."""
        if self.admin:
            return wanted
        ceiling = model_priority if self.priority is None else self.priority
        if wanted is None:
            return None if model_priority <= ceiling else ceiling
        return min(wanted, ceiling)

    def keep_alive_of(self, wanted_s: float | None, ttl_s: float) -> float | None:
        """What becomes of how long a request asks that its model stays; None is the model's own,
        which is `ttl_s`, or for ever. A shorter one would unload it for everybody: that is for
        operators.
        """
        own_s = ttl_s or math.inf
        return wanted_s if self.admin or wanted_s is None or wanted_s >= own_s else None


# Without keys.
ANYBODY: Final = Caller(admin=True)
# Who shows none where none is needed.
STRANGER: Final = Caller(models=())
