"""Keys and what was used under them, as the operator sees them."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from gateway.access.accounts import Counts
from gateway.access.api_key import ApiKey, Terms

# The last second of the year 9999: calendars go no further.
LATEST_EXPIRY: Final = 253_402_300_799


class NewKey(Terms, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be made, by the fields of `Terms`."""

    name: str
    expires_at: Annotated[float, Meta(le=LATEST_EXPIRY)] | None = None

    @property
    def terms(self) -> Terms:
        return Terms(**{each: getattr(self, each) for each in Terms.__struct_fields__})


class KeyBody(Terms, frozen=True, kw_only=True):
    """A key without its hash; `key` is the key itself, said once, when it is made. Times are Unix
    times in seconds.
    """

    name: str
    created_at: float
    revoked_at: float | None
    key: str | None = None

    @classmethod
    def of(cls, key: ApiKey, secret: str | None = None) -> KeyBody:
        fields = msgspec.structs.asdict(key)
        del fields["digest"], fields["id"]
        return cls(**fields, key=secret)


class KeyList(Struct):
    keys: list[KeyBody]


class KeyUsage(Struct):
    """`today` and `month` are those of the gateway's time zone."""

    name: str
    today: Counts
    month: Counts


class UsageList(Struct):
    keys: list[KeyUsage]
