"""The policies of connections and of origins, without a connection."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from gateway.http.wire.access_log import request_id, unique
from gateway.http.wire.auth import complaint
from gateway.http.wire.connection_limits import (
    BODY_BYTES_PER_S,
    BODY_S,
    HEAD_S,
    IDLE_S,
    SPARE_PLACES,
    UNREAD_S,
    ClientTimeouts,
    ConnectionTable,
    Doing,
    Place,
    capacity,
    network_of,
)
from gateway.requests.share import MOST_BYTES, ByteBudget, Share
from gateway.system.refusal import Refusal


def test_a_head_gets_no_more_time_by_going_on() -> None:
    timeouts = ClientTimeouts(100.0)
    assert timeouts.deadline_at == 100.0 + IDLE_S
    timeouts.turn(Doing.HEAD, 110.0)
    timeouts.turn(Doing.HEAD, 120.0)
    assert timeouts.deadline_at == 110.0 + HEAD_S


def test_a_body_gets_time_for_what_has_come() -> None:
    timeouts = ClientTimeouts(0.0)
    timeouts.turn(Doing.BODY, 10.0)
    timeouts.received(4 * BODY_BYTES_PER_S)
    assert timeouts.deadline_at == 10.0 + BODY_S + 4
    timeouts.turn(Doing.SERVED, 12.0)
    timeouts.received(BODY_BYTES_PER_S)
    assert timeouts.deadline_at == math.inf, "now it is our turn"


def test_an_answer_must_be_taken() -> None:
    timeouts = ClientTimeouts(0.0)
    timeouts.turn(Doing.SERVED, 1.0)
    timeouts.blocked(5.0)
    assert timeouts.deadline_at == 5.0 + UNREAD_S
    timeouts.unblocked()
    assert timeouts.deadline_at == math.inf


def test_idle_connections_outlive_the_pools_of_clients() -> None:
    assert IDLE_S > 60, "nginx keeps its own for 60 s"


def test_the_longest_idle_makes_place() -> None:
    table: ConnectionTable[str] = ConnectionTable()
    for name in "abc":
        assert table.add(name, 3) == (Place.FULL, None)
    table.turn("a", Doing.SERVED)
    table.turn("a", Doing.IDLE)
    assert table.add("d", 3) == (Place.FULL, "b")
    table.turn("c", Doing.BODY)
    assert [table.add(name, 3)[1] for name in "ef"] == ["a", "d"]
    assert len(table) == 3


def test_neighbours_make_place_for_each_other_alone() -> None:
    table: ConnectionTable[str] = ConnectionTable()
    for name in ("mine", "a", "b"):
        assert table.add(name, 99, None if name == "mine" else "there", 2)[0] is Place.FULL
    assert table.add("c", 99, "there", 2) == (Place.FULL, "a")
    table.turn("b", Doing.SERVED)
    table.turn("c", Doing.SERVED)
    assert table.add("d", 99, "there", 2) == (Place.TOO_MANY, None)
    assert table.add("e", 99, "elsewhere", 2) == (Place.FULL, None)
    assert table.add("f", 99, None, 2) == (Place.FULL, None), "this machine has no bound"
    table.remove("b")
    assert table.add("d", 99, "there", 2) == (Place.FULL, None)
    assert len(table) == 5


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from([None, "x", "y"]), st.sampled_from(Doing)),
        min_size=1,
        max_size=60,
    )
)
def test_no_place_ever_has_more_than_its_bound(steps: list[tuple[int, str | None, Doing]]) -> None:
    table: ConnectionTable[int] = ConnectionTable()
    networks: dict[int, str | None] = {}
    for number, (connection, network, doing) in enumerate(steps):
        if doing is Doing.LEAVING and connection in networks:
            table.remove(connection)
            del networks[connection]
        elif connection in networks:
            table.turn(connection, doing)
        else:
            place, victim = table.add(connection, 4, network, 2)
            networks.pop(victim, None)  # type: ignore[arg-type]
            if place in (Place.FULL, Place.PROBE):
                networks[connection] = network
        assert len(table) == len(networks), number
        for text in ("x", "y"):
            assert list(networks.values()).count(text) <= 2


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("127.0.0.1", None),
        ("127.9.9.9", None),
        ("::1", None),
        ("::ffff:127.0.0.1", None),
        ("", None),
        ("192.168.1.7", "192.168.1.7"),
        ("::ffff:192.168.1.7", "192.168.1.7"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%en0", "fe80::/64"),
    ],
)
def test_network_of_client(host: str, network: str | None) -> None:
    assert network_of(host) == network


def test_served_connection_is_never_ended() -> None:
    table: ConnectionTable[int] = ConnectionTable()
    for number in range(3):
        table.add(number, 3)
        table.turn(number, Doing.SERVED)
    for number in range(SPARE_PLACES):
        # They would be the first to make place again.
        assert table.add(100 + number, 3) == (Place.PROBE, None)
        table.turn(100 + number, Doing.SERVED)
    assert table.add(999, 3) == (Place.NONE, None)
    table.turn(100, Doing.IDLE)
    assert table.add(200, 3) == (Place.PROBE, 100), "it has no better place than who made it"
    table.turn(200, Doing.SERVED)
    table.remove(999)
    table.remove(1)
    assert len(table) == 2 + SPARE_PLACES


def test_unfinished_requests_make_place_after_idle_ones() -> None:
    table: ConnectionTable[str] = ConnectionTable()
    for name, doing in (("body", Doing.BODY), ("head", Doing.HEAD), ("idle", Doing.IDLE)):
        table.add(name, 9)
        table.turn(name, doing)
    assert [table.add(f"new {n}", 3)[1] for n in range(1)] == ["idle"]
    table.turn("new 0", Doing.SERVED)
    assert table.add("new 1", 3)[1] == "head"


@given(
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from(["enter", "leave", *Doing])), min_size=1)
)
def test_a_crowd_stays_within_its_bound(steps: list[tuple[int, object]]) -> None:
    table: ConnectionTable[int] = ConnectionTable()
    inside: set[int] = set()
    for key, step in steps:
        if step == "enter":
            if key in inside:
                continue
            place, victim = table.add(key, 4)
            inside.discard(victim)  # type: ignore[arg-type]
            if place is not Place.NONE:
                inside.add(key)
        elif step == "leave":
            table.remove(key)
            inside.discard(key)
        else:
            assert isinstance(step, Doing)
            table.turn(key, step)
        assert len(table) == len(inside) <= 4 + SPARE_PLACES


def test_budget_of_bytes_is_bounded() -> None:
    budget = ByteBudget(10)
    assert budget.reserve(10)
    assert not budget.reserve(1)
    budget.give_back(4)
    assert budget.reserve(4)


def test_last_holder_gives_share_back() -> None:
    budget = ByteBudget(100)
    share, other = Share(budget, free_bytes=10), Share(budget)
    share.reserve(8)
    assert (share.size_bytes, budget.left_bytes) == (8, 100)
    share.reserve(52)
    other.reserve(40)
    assert budget.left_bytes == 10
    with pytest.raises(Refusal) as refused:
        share.reserve(11)
    assert (refused.value.code, refused.value.retry_after_s) == ("overloaded", 5)
    share.hold()
    share.release()
    assert budget.left_bytes == 10
    share.release()
    assert budget.left_bytes == 60
    # A thread that works for nobody any more takes nothing.
    share.reserve(50)
    assert budget.left_bytes == 60


def test_single_request_has_bound_of_its_own() -> None:
    share = Share(ByteBudget(1 << 40))
    share.reserve(MOST_BYTES)
    with pytest.raises(Refusal) as refused:
        share.reserve(1)
    assert (refused.value.status, refused.value.retry_after_s) == (413, None)


@pytest.mark.parametrize(
    ("most", "files", "workers", "expected"),
    [(2048, 10240, 3, 2048), (2048, 256, 2, 128), (2048, 64, 1, 8), (100, 256, 1, 100)],
)
def test_connections_leave_descriptors_to_workers(
    most: int, files: int, workers: int, expected: int
) -> None:
    assert capacity(most, files, workers, passes=False) == expected


def test_forwarded_request_takes_two_descriptors() -> None:
    assert capacity(2048, 1120, 4, passes=False) == 960
    assert capacity(2048, 1120, 4, passes=True) == 480


def _complaint(http_1_0: bool = False, **headers: str) -> str | None:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return complaint(
        Headers(raw=raw),
        http_1_0=http_1_0,
        hosts=("mac.example",),
        origins=("https://chat.example",),
    )


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "localhost:8642"},
        {"host": "LOCALHOST"},
        {"host": "[::1]:8642"},
        {"host": "mac.example:443"},
        {"host": "127.0.0.1:8642", "origin": "http://127.0.0.1:8642"},
        {"host": "mac.example", "origin": "https://mac.example"},
        {"host": "localhost", "origin": "https://chat.example"},
        {"host": "localhost", "origin": "https://chat.example", "sec_fetch_site": "cross-site"},
        {"host": "localhost", "sec_fetch_site": "none"},
        {"host": "localhost", "sec_fetch_site": "same-origin"},
    ],
)
def test_allowed_hosts_and_origins(headers: dict[str, str]) -> None:
    assert _complaint(**headers) is None


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": ""},
        {"host": "evil.example"},
        {"host": "localhost.evil.example"},
        {"host": "evil.example@localhost"},
        {"host": "0.0.0.0:8642"},
        {"host": "localhost", "origin": "null"},
        {"host": "localhost", "origin": ""},
        {"host": "localhost", "origin": "http://["},
        {"host": "localhost:8642", "origin": "http://localhost:3000"},
        {"host": "localhost", "origin": "https://chat.example.evil.example"},
        {"host": "localhost", "origin": "http://evil@localhost"},
        {"host": "localhost", "sec_fetch_site": "cross-site"},
        {"host": "localhost", "sec_fetch_site": "same-site"},
    ],
)
def test_foreign_page_is_refused(headers: dict[str, str]) -> None:
    assert _complaint(**headers) is not None


def test_a_page_cannot_leave_its_host_out() -> None:
    assert _complaint(http_1_0=True) is None
    assert _complaint(http_1_0=True, host="evil.example") is not None
    assert _complaint(http_1_0=True, origin="http://evil.example") is not None


def test_headers_that_come_twice() -> None:
    twice = [(b"host", b"localhost"), (b"host", b"evil.example")]
    assert complaint(Headers(raw=twice), http_1_0=False, hosts=(), origins=())


@pytest.mark.parametrize("given", ["a", "0af7651916cd43dd", "x" * 128, "trace:1/2_3.4~5=6@7-8"])
def test_a_sane_id_is_taken_over(given: str) -> None:
    assert request_id([(b"host", b"x"), (b"x-request-id", given.encode())]) == given


@pytest.mark.parametrize("given", [b"", b"a b", b"x" * 129, b"\xc3\xa9", b'"', b"a\x00", b"-"])
def test_invalid_id_is_replaced(given: bytes) -> None:
    made = request_id([(b"x-request-id", given)])
    assert made.startswith("req_")
    assert made != request_id([])
    assert request_id([(b"x-request-id", b"a"), (b"x-request-id", b"b")]).startswith("req_")


def test_requests_of_same_id_get_unique_names() -> None:
    assert unique("mine") != unique("mine")
    assert unique("mine").startswith("mine.")
