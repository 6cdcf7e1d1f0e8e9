"""API keys: the record of a key, the comparison of a shown secret with all keys, and the
bodies for operators.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from gateway.access.caller import ADMIN, OPERATOR, Caller

# Programs that search files for leaked keys recognise OpenAI's keys, and so these, by "sk-".
_PREFIX: Final = "sk-bulkhead-"
_RANDOM_BYTES: Final = 32
_ID_BYTES: Final = 8
# Separates name and id in an owner. No name of a key contains this character.
_BEFORE_ID: Final = "#"
# Names stand in addresses, log lines and metrics, and must not need escapes in any of them.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")

# A larger share would make others wait, for which there are priorities.
LARGEST_SHARE: Final = 100
LARGEST_LIMIT: Final = (1 << 31) - 1

Limit = Annotated[int, Meta(ge=1, le=LARGEST_LIMIT)]
Models = Annotated[tuple[Annotated[str, Meta(min_length=1)], ...], Meta(min_length=1)]
Priority = Annotated[int, Meta(ge=-1000, le=1000)]
Share = Annotated[int, Meta(ge=1, le=LARGEST_SHARE)]
# The last second of the year 9999, which is the last year of Python's calendar.
LATEST_EXPIRY: Final = 253_402_300_799
Expiry = Annotated[float, Meta(le=LATEST_EXPIRY)]


class KeyTerms(Struct, frozen=True, kw_only=True):
    """The rights and limits of a key. A field that is None sets no limit.

    `models` are ids and aliases of the models that the key may use, with `*` for any text.
    `priority` is the highest priority that its requests may have. `rpm` and `tpm` are the most
    requests and tokens a minute, `concurrent` the most answers at once. While several keys want a
    model, each gets seconds of it in proportion to its `share`; None is 1. `expires_at` is a Unix
    time. A key that `reads` may look at the gateway, and do nothing else.
    """

    models: Models | None = None
    priority: Priority | None = None
    rpm: Limit | None = None
    tpm: Limit | None = None
    concurrent: Limit | None = None
    share: Share | None = None
    expires_at: float | None = None
    reads: bool = False

    @property
    def complaint(self) -> str | None:
        """Why no key can have these terms; None if one can."""
        about_work = ("models", "priority", "rpm", "tpm", "concurrent", "share")
        given = [name for name in about_work if getattr(self, name) is not None]
        if not self.reads or not given:
            return None
        return (
            f"A key that reads makes no model work, so it has no {', '.join(given)}: only "
            "a time at which it expires."
        )


class ApiKey(KeyTerms, frozen=True, kw_only=True):
    """The record of a key. `digest` is the SHA-256 of its secret in hexadecimal digits. `id` tells
    the key from earlier keys of the same name; records of older versions have no id, and have
    revoked keys, with the time as `revoked_at`. Times are Unix times in seconds.
    """

    name: str
    digest: str
    id: str = ""
    created_at: float
    revoked_at: float | None = None

    @property
    def caller(self) -> Caller:
        return Caller(
            name=self.name,
            owner=self.owner,
            models=self.models,
            priority=self.priority,
            share=self.share or 1,
            reads=self.reads,
        )

    @property
    def owner(self) -> str:
        """The owner of answers that are stored for this key, and not for later keys of its name."""
        return f"{self.name}{_BEFORE_ID}{self.id}" if self.id else self.name

    def expired(self, now: float) -> bool:
        return self.expires_at is not None and now >= self.expires_at


def new_secret() -> str:
    """A new secret of 256 random bits. It can't be guessed, so a fast hash protects it enough."""
    return _PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)


def new_id() -> str:
    return secrets.token_hex(_ID_BYTES)


def name_of_owner(owner: str) -> str | None:
    """The name of an owner's key, which may be revoked by now; None for the owner without a key."""
    return owner.partition(_BEFORE_ID)[0] or None


def digest_of(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


def name_complaint(name: str) -> str | None:
    """Why a key can't have this name; None if it can."""
    if name == ADMIN:
        return f"{ADMIN} is the name of the operator's own key: choose another"
    if _NAME.fullmatch(name) is None:
        return (
            f"{name[:100]!r} is no name of a key: 1 to 64 letters, digits or ._@- that begin with "
            "a letter or digit"
        )
    return None


# No key is longer. Only so many bytes are hashed, since the time of a hash grows with the length.
LONGEST: Final = 512


class HeldKey(Struct, frozen=True):
    """A key in force, and its caller. `key` is None for the operator's own key, and for the secret
    of a session of the page.
    """

    digest: bytes
    caller: Caller
    key: ApiKey | None


class KeyRing:
    """Finds keys by their secrets. Every search takes one hash, one look into a table and one
    comparison in constant time, whether the secret is right, nearly right or wrong.

    The time of the look into the table reveals nothing. The table is keyed by SHA-256 hashes, whose
    first bytes a client can't choose, and Python hashes these once more with a secret of the
    process.
    """

    def __init__(self, keys: Iterable[ApiKey], admin_secret: str) -> None:
        self._nobody = HeldKey(secrets.token_bytes(32), Caller(), None)
        admin = HeldKey(digest_of(admin_secret.encode()), OPERATOR, None)
        held = [HeldKey(bytes.fromhex(key.digest), key.caller, key) for key in keys]
        self._held = {key.digest: key for key in (*held, admin)}

    def find(self, secret: bytes) -> HeldKey | None:
        """The key with this secret, which may have expired; None if there is none."""
        digest = digest_of(secret[:LONGEST])
        held = self._held.get(digest, self._nobody)
        same = hmac.compare_digest(held.digest, digest)
        return held if same and len(secret) <= LONGEST else None


class NewKey(KeyTerms, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An order to make a key, with the fields of `KeyTerms`."""

    name: str
    expires_at: Expiry | None = None

    @property
    def terms(self) -> KeyTerms:
        return KeyTerms(**{name: getattr(self, name) for name in KeyTerms.__struct_fields__})


class KeyChange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """An order to change the terms of a key. A field that is left out stays as it is, and None
    removes the limit.
    """

    models: Models | UnsetType | None = UNSET
    priority: Priority | UnsetType | None = UNSET
    rpm: Limit | UnsetType | None = UNSET
    tpm: Limit | UnsetType | None = UNSET
    concurrent: Limit | UnsetType | None = UNSET
    share: Share | UnsetType | None = UNSET
    expires_at: Expiry | UnsetType | None = UNSET

    def of(self, key: ApiKey) -> ApiKey:
        """The key with the new terms."""
        given = {
            name: value
            for name in self.__struct_fields__
            if (value := getattr(self, name)) is not UNSET
        }
        return msgspec.structs.replace(key, **given)


class KeyBody(KeyTerms, frozen=True, kw_only=True):
    """The record of a key without its hash. `key` is the secret, which is shown once, when the key
    is made. Times are Unix times in seconds.
    """

    name: str
    created_at: float
    key: str | None = None

    @classmethod
    def of(cls, key: ApiKey, secret: str | None = None) -> KeyBody:
        fields = msgspec.structs.asdict(key)
        del fields["digest"], fields["id"], fields["revoked_at"]
        return cls(**fields, key=secret)


class KeyList(Struct, omit_defaults=True):
    """`required`: requests need a key. That may be so while there are no keys. `why_required` says
    why the gateway can't go on without keys, and what to do first; None: it can.
    """

    keys: list[KeyBody]
    required: bool
    why_required: str | None = field(default=None, name="kept")
