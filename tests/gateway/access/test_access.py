from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access.caller import (
    ANYBODY,
    STRANGER,
    Caller,
    proxy_header,
    sharer_at,
    shown_key,
)


@pytest.mark.parametrize(
    ("headers", "shown"),
    [
        ([], None),
        ([(b"authorization", b"Bearer k")], b"k"),
        ([(b"authorization", b"bearer  k ")], b"k"),
        ([(b"x-api-key", b" k")], b"k"),
        ([(b"authorization", b"Bearer k"), (b"x-api-key", b"other")], b"k"),
        ([(b"authorization", b"Basic abc"), (b"x-api-key", b"k")], b"k"),
        ([(b"authorization", b"Bearer a"), (b"authorization", b"Bearer b")], None),
        ([(b"authorization", b"Bearer a"), (b"authorization", b"Bearer a")], b"a"),
        ([(b"x-api-key", b"a"), (b"x-api-key", b"b")], None),
        ([(b"authorization", b"Bearer")], None),
        ([(b"cookie", b"x-api-key=k")], None),
    ],
)
def test_shown_key_is_read_from_headers(
    headers: list[tuple[bytes, bytes]], shown: bytes | None
) -> None:
    assert shown_key(headers) == shown


@given(
    st.none() | st.integers(-1000, 1000),
    st.none() | st.integers(-1000, 1000),
    st.integers(-1000, 1000),
)
def test_no_priority_goes_above_the_ceiling(
    ceiling: int | None, wanted: int | None, of_model: int
) -> None:
    caller = Caller(name="a", priority=ceiling)
    given_ = caller.priority_of(wanted, of_model)
    effective = of_model if given_ is None else given_
    assert effective <= (of_model if ceiling is None else ceiling)
    if wanted is not None:
        assert effective <= wanted
    assert ANYBODY.priority_of(wanted, of_model) == wanted


@given(st.none() | st.floats(0, allow_nan=False), st.floats(0, 1e6))
def test_no_key_sends_a_model_away_before_its_time(wanted: float | None, ttl_s: float) -> None:
    own = ttl_s or math.inf
    given_ = Caller(name="a").keep_alive_of(wanted, ttl_s)
    assert (own if given_ is None else given_) == max(own, own if wanted is None else wanted)
    for operator in (ANYBODY, Caller(name="admin", admin=True)):
        assert operator.keep_alive_of(wanted, ttl_s) == wanted


def test_models_by_id_or_alias() -> None:
    some = Caller(name="a", models=("org/big", "default"))
    assert some.may_use("org/big")
    assert some.may_use("other", ("default",))
    assert not some.may_use("other", ("fast",))
    assert not some.may_use("org/bigger")
    assert not STRANGER.may_use("org/big")
    assert Caller(name="a").may_use("anything")
    several = Caller(name="a", models=("box/qwen*", "*-4bit"))
    assert several.may_use("box/qwen3-30b")
    assert several.may_use("other", ("x-4bit",))
    for other in ("qwen3-30b", "a/box/qwen3", "box/llama", "x-4bits", "x-4bit\n"):
        assert not several.may_use(other), other
    assert not Caller(name="a", models=("a.c*", "[ab]*")).may_use("abc"), "only * is special"


@pytest.mark.parametrize(
    "name",
    [
        "forwarded",
        "via",
        "x-forwarded",
        "x-forwarded-host",
        "x_forwarded_for",
        "x-real-ip",
        "cf-connecting-ip",
        "cdn-loop",
        "fly-client-ip",
        "tailscale-user-login",
        "true-client-ip",
        "x-envoy-external-address",
    ],
)
def test_a_proxy_is_known_by_what_it_adds(name: str) -> None:
    assert proxy_header([(b"host", b"mac"), (name.encode(), b"192.0.2.60")]) == name
    assert proxy_header([(b"host", name.encode()), (b"viaduct", b"1")]) is None


@pytest.mark.parametrize(
    ("address", "sharer"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("testclient", "testclient"),
    ],
)
def test_clients_without_keys_share_by_address(address: str, sharer: str) -> None:
    assert sharer_at(address) == sharer
