"""The policies of upstreams: health, choice, and which of the listed models count."""

from __future__ import annotations

import msgspec
import pytest

from gateway.access.caller import proxy_header
from gateway.upstreams.health import UpstreamHealth
from gateway.upstreams.offers import MOST_GATEWAYS, MOST_MODELS, read_offers
from gateway.upstreams.route import comes_back, new_instance, via_value
from gateway.upstreams.upstreams import UpstreamCandidate, ranked


class TestHealth:
    def test_looks_that_fail_are_made_more_and_more_rarely(self) -> None:
        health = UpstreamHealth()
        assert health.trouble(0.0) is not None
        pauses = []
        for _ in range(10):
            health.missed(0.0, "is away")
            pauses.append(health.pause_s())
        assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0, 60.0]
        assert health.trouble(0.0) == "is away"
        assert health.wait_s(20.0) == 40.0, "a client comes back when the next look is over"
        health.reached()
        assert health.trouble(0.0) is None
        assert health.wait_s(0.0) == 0.0
        health.missed(0.0, "is away")
        assert health.pause_s() == 1.0, "the pauses begin anew"

    def test_requests_that_fail_open_the_breaker_until_one_succeeds(self) -> None:
        health = UpstreamHealth()
        health.reached()
        for _ in range(2):
            health.failed(0.0, "fell silent")
            assert health.trouble(0.0) is None
        health.failed(0.0, "fell silent")
        health.reached()
        reason = health.trouble(1.0)
        assert reason is not None, "a list of models is no answer to a request"
        assert "fell silent" in reason
        assert health.wait_s(10.0) == 20.0
        assert health.trouble(30.0) is None
        health.sent(30.0)
        assert health.trouble(31.0) is not None, "one request is tried alone"
        health.served()
        assert health.trouble(31.0) is None

    def test_a_success_in_between_keeps_it_closed(self) -> None:
        health = UpstreamHealth()
        health.reached()
        for _ in range(10):
            health.failed(0.0, "fell silent")
            health.failed(0.0, "fell silent")
            health.served()
        assert health.trouble(0.0) is None


class TestChoice:
    def test_the_loaded_one_then_the_idle_one_then_whose_turn_it_is(self) -> None:
        order = [
            UpstreamCandidate("loaded", "ready", 1, 5.0),
            UpstreamCandidate("loaded long ago", "ready", 2, 1.0),
            UpstreamCandidate("loaded just now", "ready", 2, 5.0),
            UpstreamCandidate("stateless", None, 0, 0.0),
            UpstreamCandidate("loading", "loading", 0, 0.0),
            UpstreamCandidate("idle", "unloaded", 0, 0.0),
            UpstreamCandidate("broken", "failed", 0, 0.0),
            UpstreamCandidate("busy", "ready", 0, 0.0, busy=True),
        ]
        assert ranked(reversed(order)) == order


def _listing(*models: dict[str, object]) -> bytes:
    return msgspec.json.encode({"object": "list", "data": models})


class TestOffers:
    def test_openai_s_list_and_another_bulkhead_s(self) -> None:
        body = _listing(
            {"id": "plain", "object": "model", "owned_by": "x", "created": 1},
            {"id": "more", "aliases": ["m"], "state": "ready", "reason": None, "via": ["b"]},
        )
        plain, more = read_offers(body, "a")
        assert (plain.names, plain.state, plain.of_bulkhead) == (("plain",), None, False)
        assert (more.names, more.state, more.of_bulkhead) == (("more", "m"), "ready", True)

    def test_own_models_and_long_ways_are_left_out(self) -> None:
        ways = [str(number) for number in range(MOST_GATEWAYS + 1)]
        body = _listing(
            {"id": "a/own", "via": ["b", "a"]},
            {"id": "far", "via": ways},
            {"id": "near", "via": ways[1:]},
            {"id": "two\nlines"},
            {"id": ""},
        )
        assert [offer.id for offer in read_offers(body, "a")] == ["near"]

    def test_a_long_reason_is_cut(self) -> None:
        (offer,) = read_offers(_listing({"id": "m", "reason": "x" * 100_000}), "a")
        assert offer.reason == "x" * 1000

    @pytest.mark.parametrize(
        "body",
        [
            *(
                b'{"data": [{"id": "m", "queue_depth": %b}]}' % data
                for data in (b"-1", b"9" * 4300)
            ),
            *(b"", b"<html>", b"[]", b'{"data": 1}', b'{"data": [{"id": 1}]}', b'{"data": [{}]}'),
            b"[" * 100_000,
            _listing(*({"id": str(index)} for index in range(MOST_MODELS + 1))),
        ],
    )
    def test_other_answers_are_refused(self, body: bytes) -> None:
        with pytest.raises(ValueError, match=r"^(answered with no list|lists 1,001)"):
            read_offers(body, "a")


class TestRoute:
    def test_a_request_that_was_here_is_known_among_others(self) -> None:
        own, other = new_instance(), new_instance()
        way = [(b"via", b"1.0 proxy, " + via_value(other)), (b"via", via_value(own))]
        assert comes_back(way, own)
        assert comes_back(way, other)
        assert not comes_back(way, new_instance())

    def test_without_keys_only_other_gateways_may_pass_requests_on(self) -> None:
        ours = via_value(new_instance())
        assert proxy_header([(b"via", ours)]) is None
        assert proxy_header([(b"via", ours + b", " + ours)]) is None
        assert proxy_header([(b"via", ours + b", 1.1 nginx")]) == "via"
        assert proxy_header([(b"via", ours), (b"x-forwarded-for", b"::1")]) == "x-forwarded-for"
