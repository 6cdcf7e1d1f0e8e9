"""What the hub's answers mean, asked of a hub by HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest

from gateway.library import hub as hub_module
from gateway.library.hub import Hub as HubSource
from gateway.library.hub import _plain, _retry_after_s
from gateway.library.hub_process import Candidate, HubError
from gateway.library.reference import parse_reference
from gateway.library.sources import (
    ChangedError,
    MismatchError,
    MissingError,
    RemoteFile,
    TroubleError,
    UnreachableError,
)
from tests.support.hub import Answer, Hub

NAME = "org/model"
CONFIG = json.dumps({"model_type": "qwen3", "hidden_size": 64}).encode()
WEIGHTS = bytes(1000)
FILES = {"config.json": CONFIG, "model.safetensors": WEIGHTS}
# A digest that no file has.
OTHER = f'"{"0" * 40}"'


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub({NAME: FILES}) as running:
        yield running


@pytest.fixture
def source(hub: Hub) -> HubSource:
    return HubSource(f"{hub.url}/", 30.0)


def _read(source: HubSource, name: str, begin: int = 0) -> tuple[int, bytes]:
    listing = source.listing(NAME)
    (file,) = (file for file in listing.files if file.name == name)
    with source.read(listing, file, begin) as body:
        return body.begin, b"".join(body.chunks)


def test_a_file_is_read_from_any_place_on(hub: Hub, source: HubSource) -> None:
    assert _read(source, "config.json") == (0, CONFIG)
    assert _read(source, "config.json", 7) == (7, CONFIG[7:])
    assert _read(source, "model.safetensors", 999) == (999, WEIGHTS[999:])
    assert hub.ranges[-1] == "bytes=999-999"
    hub.plan = lambda _name: Answer(ranges=False)
    assert _read(source, "config.json", 7) == (0, CONFIG)


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (Answer(status=206), TroubleError, "another part came"),
        (
            Answer(status=206, headers={"content-range": f"bytes 5-9/{len(CONFIG)}"}),
            TroubleError,
            "another part came",
        ),
        (
            Answer(status=206, headers={"content-range": "bytes 0-9/11"}),
            MismatchError,
            f"config.json has 11 bytes, not {len(CONFIG)}",
        ),
        (Answer(body=b"short"), MismatchError, f"config.json has 5 bytes, not {len(CONFIG)}"),
        (Answer(status=416), MismatchError, f"has no {len(CONFIG)} bytes"),
        (Answer(status=404), ChangedError, "config.json is gone"),
        (Answer(status=410), ChangedError, "config.json is gone"),
        (Answer(status=206, headers={"etag": OTHER}), ChangedError, "has changed"),
        (Answer(status=400, headers={"etag": OTHER}), HubError, "answers 400 when"),
        (Answer(status=401), MissingError, "There is no model org/model"),
        (Answer(status=403), HubError, "org/model is gated"),
        (Answer(status=403, headers={"x-error-code": "RepoNotFound"}), HubError, "answers 403"),
        (Answer(status=418), HubError, "answers 418 when it is asked for org/model"),
        (Answer(status=408), TroubleError, "answers 408"),
        (Answer(status=500), TroubleError, "answers 500"),
        (Answer(status=429), TroubleError, "says that we ask too often"),
    ],
)
def test_a_refused_file_says_why(
    hub: Hub, source: HubSource, answer: Answer, kind: type[Exception], said: str
) -> None:
    hub.plan = lambda _name: answer
    with pytest.raises((TroubleError, ChangedError, HubError)) as caught:
        _read(source, "config.json")
    assert type(caught.value) is kind
    assert said in str(caught.value)


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_an_address_of_the_cdn_that_expired_is_asked_for_again(
    hub: Hub, source: HubSource, status: int
) -> None:
    hub.plan = lambda _name: Answer(status=status, at_cdn=True)
    with pytest.raises(TroubleError, match=f"^the CDN says {status}$"):
        _read(source, "model.safetensors")


def test_the_wait_that_a_hub_asks_for_is_told(hub: Hub, source: HubSource) -> None:
    hub.plan = lambda _name: Answer(status=429, headers={"retry-after": "7"})
    with pytest.raises(TroubleError) as caught:
        _read(source, "config.json")
    assert caught.value.retry_after_s == 7.0


def test_a_wait_is_seconds_or_a_date() -> None:
    assert _retry_after_s(None) is None
    assert _retry_after_s("soon") is None
    assert _retry_after_s("12") == 12.0
    now = datetime.now(UTC)
    assert _retry_after_s(format_datetime(now - timedelta(hours=1))) == 0.0
    ahead_s = _retry_after_s(format_datetime(now + timedelta(hours=2)))
    assert ahead_s is not None
    assert 3600.0 < ahead_s <= 7200.0


def test_errors_are_told_without_addresses() -> None:
    assert _plain(OSError("no way to https://cdn.test/a?signature=b now")) == "no way to ... now"
    assert _plain(httpx.ReadError("")) == "ReadError"


@pytest.mark.parametrize(
    ("token", "said"), [(None, "or it takes a token (HF_TOKEN)."), ("hf_a", "may not see it.")]
)
def test_a_missing_model_says_what_a_token_may_help(
    source: HubSource, monkeypatch: pytest.MonkeyPatch, token: str | None, said: str
) -> None:
    monkeypatch.setattr(hub_module, "get_token", lambda: token)
    with pytest.raises(MissingError) as caught:
        source.listing("org/other")
    assert caught.value.code == "not_found"
    assert caught.value.message.endswith(said)


def test_a_listing_has_the_digests_of_small_and_large_files(source: HubSource) -> None:
    listing = source.listing(NAME)
    small, large = listing.files
    assert (small.name, small.size_bytes, len(small.digest)) == ("config.json", len(CONFIG), 40)
    assert (large.name, large.size_bytes, len(large.digest)) == ("model.safetensors", 1000, 64)
    assert isinstance(small, RemoteFile)
    assert listing.dtypes == {}


def test_similar_names_are_those_of_quantizations_if_there_are_any() -> None:
    names = [f"mlx-community/{name}" for name in ("big-8bit", "big-4bit", "not-big-4bit", "other")]
    with Hub(dict.fromkeys([*names, "org/big-4bit"], FILES)) as hub:
        source = HubSource(hub.url, 30.0)
        exact = source.alike(parse_reference("org/big:3bit"))
        assert exact == ["mlx-community/big-4bit", "mlx-community/big-8bit"]
        assert source.alike(parse_reference("org/not")) == ["mlx-community/not-big-4bit"]
        assert source.alike(parse_reference("org/the")) == ["mlx-community/other"]
        assert source.alike(parse_reference("org/none")) == []
        hub.search_answers = [Answer(status=500)]
        assert source.alike(parse_reference("org/big")) == []


def test_hub_listing_is_described(hub: Hub, source: HubSource) -> None:
    hub.told[NAME] = {
        "safetensors": {"parameters": {"BF16": 100, "F32": 10, "U8": 3}},
        "usedStorage": 10_000,
        "gated": "manual",
    }
    (found,) = source.search("model")
    assert found == Candidate(
        repository=NAME,
        weight_bytes=243,
        downloads=1000,
        changed_at=datetime(2025, 9, 1, 12, tzinfo=UTC).timestamp(),
        mlx=True,
        gated=True,
    )
    assert [query["sort"][0] for query in hub.searches] == [
        "downloads",
        "lastModified",
        "downloads",
    ]
    assert {query["direction"][0] for query in hub.searches} == {"-1"}


def test_unknown_facts_of_hub_stay_unknown(hub: Hub, source: HubSource) -> None:
    hub.search_answers = [
        Answer(body=b'[{"id": "org/bare"}, {"id": "without-owner"}]'),
        Answer(body=b'[{"id": "org/stored", "usedStorage": 5, "config": {"a": 1}}]'),
        Answer(body=b'[{"id": "org/bare", "downloads": 3}]'),
    ]
    assert source.search("x") == [
        Candidate(repository="org/bare"),
        Candidate(repository="org/stored", weight_bytes=5),
    ]


def test_encoders_and_what_nothing_loads_are_told(hub: Hub, source: HubSource) -> None:
    body = [
        {"id": "org/encoder", "config": {"model_type": "bert", "architectures": ["BertModel"]}},
        {"id": "org/odd", "config": {"model_type": "nothing_loads_this"}},
    ]
    hub.search_answers = [
        Answer(body=json.dumps(body).encode()),
        *(Answer(body=b"[]") for _ in range(2)),
    ]
    encoder, odd = source.search("x")
    assert encoder.embeds
    assert not odd.embeds
    assert odd.problem is not None


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(body=b"<html>"), "is no Hugging Face hub"),
        (Answer(status=403), "refuses to search models"),
        (Answer(status=404), "refuses to search models"),
        (Answer(status=418), "answers 418"),
    ],
)
def test_a_search_that_fails_says_why(
    hub: Hub, source: HubSource, answer: Answer, said: str
) -> None:
    hub.search_answers = [answer]
    with pytest.raises(HubError) as caught:
        source.search("x")
    assert (caught.value.code, said in caught.value.message) == ("broken", True)


def test_answers_about_models_have_a_bound(
    hub: Hub, source: HubSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "_MOST_BYTES", 100)
    hub.search_answers = [Answer(body=b"[" + b" " * 98 + b"]") for _ in range(3)]
    assert source.search("x") == []
    hub.search_answers = [Answer(body=b"[" + b" " * 99 + b"]")]
    with pytest.raises(HubError, match="without an end"):
        source.search("x")


def test_a_hub_that_is_not_there_is_unreachable() -> None:
    with pytest.raises(UnreachableError, match=r"^http://127.0.0.1:9 can't be reached: \w"):
        HubSource("http://127.0.0.1:9", 5.0).listing(NAME)
