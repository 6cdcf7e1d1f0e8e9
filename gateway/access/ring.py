"""All keys that open something, found by what a request shows. No I/O."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from gateway.access.api_key import ApiKey, digest_of
from gateway.access.caller import ADMIN, Caller

# Longer ones are nobody's, and a hash takes time by its length.
_LONGEST: Final = 512


class Held(Struct, frozen=True):
    """`key` is None for the operator's own."""

    digest: bytes
    caller: Caller
    key: ApiKey | None


class KeyRing:
    """Every try takes one hash, one look into a table and one comparison in constant time, whether
    it is right, nearly right or wrong.

    The table tells nothing either: it is asked for SHA-256 hashes, which nobody can make begin
    like another, and Python hashes these once more with a secret of the process.
    """

    def __init__(self, keys: Iterable[ApiKey], admin_secret: str) -> None:
        self._nobody = Held(secrets.token_bytes(32), Caller(), None)
        operator = Caller(name=ADMIN, owner=ADMIN, admin=True)
        admin = Held(digest_of(admin_secret.encode()), operator, None)
        held = [
            Held(bytes.fromhex(each.digest), each.caller, each)
            for each in keys
            if each.revoked_at is None
        ]
        self._held = {each.digest: each for each in (*held, admin)}

    def find(self, secret: bytes) -> Held | None:
        """Whose key this is; it may have expired."""
        digest = digest_of(secret[:_LONGEST])
        held = self._held.get(digest, self._nobody)
        same = hmac.compare_digest(held.digest, digest)
        return held if same and len(secret) <= _LONGEST else None
