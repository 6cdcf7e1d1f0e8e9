from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access import api_key
from gateway.access import api_key as ring
from gateway.access.api_key import ApiKey, KeyRing, digest_of, name_complaint, new_secret

ADMIN = "sk-bulkhead-admin"
GOOD = "sk-bulkhead-good"


def key(name: str, secret: str, **fields: object) -> ApiKey:
    digest = digest_of(secret.encode()).hex()
    return ApiKey(name=name, digest=digest, created_at=0.0, **fields)  # type: ignore[arg-type]


RING = KeyRing([key("good", GOOD, priority=3)], ADMIN)


def test_finds_whose_key_it_is() -> None:
    held = RING.find(GOOD.encode())
    assert held is not None
    assert (held.caller.name, held.caller.priority, held.caller.admin) == ("good", 3, False)
    admin = RING.find(ADMIN.encode())
    assert admin is not None
    assert admin.caller.admin


@given(st.binary(max_size=600))
def test_nothing_else_opens(secret: bytes) -> None:
    assert RING.find(secret) is None


@pytest.mark.parametrize("wrong", ["", GOOD + " ", GOOD[:-1], GOOD.upper()])
def test_not_what_is_nearly_right(wrong: str) -> None:
    assert RING.find(wrong.encode()) is None


def test_a_long_one_that_begins_with_a_key_is_none() -> None:
    secret = "k" * 512
    assert KeyRing([key("long", secret)], ADMIN).find(secret.encode()) is not None
    assert KeyRing([key("long", secret)], ADMIN).find(secret.encode() + b"k") is None


@pytest.mark.parametrize("keys", [1, 300])
def test_every_try_is_the_same_work(monkeypatch: pytest.MonkeyPatch, keys: int) -> None:
    """Counted, not timed: one hash of what is shown, one comparison in constant time of whole
    hashes, and no comparison of keys or of hashes beside it that could end early.
    """
    secrets = [f"{GOOD}{number:04}" for number in range(keys)]
    opening = KeyRing([key(f"k{i}", secret) for i, secret in enumerate(secrets)], ADMIN)
    work: list[tuple[str, int]] = []

    def sha256(data: bytes) -> object:
        work.append(("hash", len(data)))
        return hashlib.sha256(data)

    def compare_digest(one: bytes, other: bytes) -> bool:
        work.append(("compare", min(len(one), len(other))))
        return hmac.compare_digest(one, other)

    monkeypatch.setattr(api_key, "hashlib", type("Counted", (), {"sha256": staticmethod(sha256)}))
    monkeypatch.setattr(
        ring, "hmac", type("Counted", (), {"compare_digest": staticmethod(compare_digest)})
    )
    right, length = secrets[-1], len(secrets[-1])
    tries = [
        right,
        right[:-1] + "x",
        "x" + right[1:],
        "x" * length,
        f"{GOOD}{keys:04}",
    ]
    for text in tries:
        work.clear()
        opening.find(text.encode())
        assert work == [("hash", length), ("compare", 32)], text


def test_keys_are_random_and_only_their_hash_is_known() -> None:
    made = {new_secret() for _ in range(100)}
    assert len(made) == 100
    assert all(len(text) >= len("sk-bulkhead-") + 43 for text in made), "256 bits"
    assert GOOD not in repr(RING.find(GOOD.encode()))


@pytest.mark.parametrize("name", ["", "admin", "a/b", "../x", "a b", "ä", "-a", "x" * 65, "a\n"])
def test_names_that_would_need_escaping(name: str) -> None:
    assert name_complaint(name) is not None


@pytest.mark.parametrize("name", ["laptop", "n8n.io", "me@home", "A-1_b"])
def test_names(name: str) -> None:
    assert name_complaint(name) is None
