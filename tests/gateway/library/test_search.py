"""A search: what is asked of the hub, what its answers mean, and their order."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.library.findings import WELL_KNOWN, Room, rank_candidates, well_known
from gateway.library.hub_process import (
    Candidate,
    HubError,
    HubFailure,
    SearchJob,
    SearchResult,
    search_hub,
)
from gateway.library.hub_program import search
from gateway.library.reference import parse_reference, words_of
from tests.gateway.library.test_library import cached
from tests.support.hub import Answer, Hub

SMALL, LARGE, PLAIN = "mlx-community/Qwen3-4B-4bit", "mlx-community/Qwen3-14B-4bit", "Qwen/Qwen3-4B"
CONFIG = b'{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}'
YEAR_S = 365 * 86400.0


def files(weights: int = 1000, config: bytes = CONFIG) -> dict[str, bytes]:
    return {"config.json": config, "tokenizer.json": b"{}", "model.safetensors": bytes(weights)}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub({SMALL: files(), LARGE: files(), PLAIN: files()}) as running:
        running.told[PLAIN] = {"tags": ["transformers", "safetensors"]}
        yield running


def answer(job: SearchJob) -> SearchResult | HubFailure:
    try:
        return search(job)
    except HubError as error:
        return error.failure


def asked(hub: Hub, *words: str) -> dict[str, Candidate]:
    found = answer(SearchJob(words, hub.url))
    assert isinstance(found, SearchResult), found
    return {candidate.repository: candidate for candidate in found.candidates}


def failure(hub: Hub, *answers: Answer) -> HubFailure:
    hub.search_answers = list(answers)
    failed = answer(SearchJob(("qwen3",), hub.url))
    assert isinstance(failed, HubFailure), failed
    return failed


def test_the_hub_is_asked_for_mlx_first(hub: Hub) -> None:
    assert set(asked(hub, "qwen3", "4b")) == {SMALL, PLAIN}
    ways = [(entry["filter"], entry["sort"], entry["search"]) for entry in hub.searches]
    assert ways == [
        (["mlx"], ["downloads"], ["qwen3 4b"]),
        (["mlx"], ["lastModified"], ["qwen3 4b"]),
        (["safetensors"], ["downloads"], ["qwen3 4b"]),
    ]
    assert "usedStorage" in hub.searches[0]["expand"]


def test_a_hub_that_takes_words_as_one_text(hub: Hub) -> None:
    hub.takes_words_as_one = True
    assert set(asked(hub, "14b", "qwen3")) == {LARGE}
    assert asked(hub, "nothing") == {}
    assert set(asked(hub, "4b")) == {SMALL, PLAIN}, "not the one with 4bit"


@pytest.mark.parametrize(
    ("told", "weight_bytes"),
    [
        ({"safetensors": {"parameters": {"U32": 100, "BF16": 50}, "total": 150}}, 500),
        # Older revisions are in the storage as well.
        ({"usedStorage": 9000, "safetensors": {"parameters": {"F16": 1000}, "total": 1000}}, 2000),
        # Packed values that the hub has counted one by one.
        ({"usedStorage": 600, "safetensors": {"parameters": {"U32": 1000}, "total": 1000}}, 600),
        ({"usedStorage": 600, "safetensors": None}, 600),
        ({"usedStorage": None, "safetensors": None}, None),
    ],
)
def test_the_size_of_the_weights(hub: Hub, told: dict[str, Any], weight_bytes: int | None) -> None:
    hub.told[SMALL] = {"usedStorage": 10**9, **told}
    assert asked(hub, "qwen3")[SMALL].weight_bytes == weight_bytes


def test_search_marks_unloadable_and_skips_ownerless_repositories(hub: Hub) -> None:
    hub.told[SMALL] = {"config": {"model_type": "whisper"}, "gated": "auto"}
    hub.told[LARGE] = {"config": {"architectures": ["BertModel"], "model_type": "bert"}}
    hub.told[PLAIN] = {"config": {"quantization_config": {}}}
    hub.repositories["gpt-qwen3"] = hub.repositories[SMALL]
    found = asked(hub, "qwen3")
    assert set(found) == {SMALL, LARGE, PLAIN}
    assert found[SMALL].problem.startswith("mlx-lm knows no models of the kind whisper")
    assert (found[SMALL].gated, found[LARGE].embeds) == (True, True)
    assert found[PLAIN].problem is None


def test_failures_of_the_hub(hub: Hub) -> None:
    busy = failure(hub, Answer(status=429, headers={"retry-after": "7"}))
    assert (busy.code, busy.retry_after_s) == ("unreachable", 7.0)
    assert "too often" in busy.message
    assert "answers 502" in failure(hub, Answer(status=502)).message
    for nonsense in (b"<html>Please log in</html>", b'{"error": 1}', b'[{"id": 5}]', b"[]" * 2):
        assert "no Hugging Face hub" in failure(hub, Answer(body=nonsense)).message
    for refused in (401, 403, 404):
        assert "refuses to search" in failure(hub, Answer(status=refused)).message
    endless = b"[" + b" " * (33 << 20)
    assert "without an end" in failure(hub, Answer(body=endless)).message
    away = answer(SearchJob(("qwen3",), "http://127.0.0.1:9"))
    assert isinstance(away, HubFailure)
    assert "can't be reached" in away.message
    assert "[Errno" not in away.message
    assert "HF_ENDPOINT" in away.message
    assert "hub.folder" in away.message


def test_offline_nothing_is_asked(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    failed = failure(hub)
    assert (failed.code, hub.searches) == ("offline", [])


@pytest.mark.processes
def test_a_process_searches_and_keeps_the_deadline(hub: Hub) -> None:
    (found,) = search_hub(SearchJob(("14b",), hub.url))
    assert found == Candidate(
        repository=LARGE, weight_bytes=1000, downloads=1000, changed_at=1756728000.0, mlx=True
    )
    hub.search_answers = [Answer(status=429, headers={"retry-after": "7"})]
    with pytest.raises(HubError, match="too often") as refused:
        search_hub(SearchJob(("14b",), hub.url))
    assert refused.value.retry_after_s == 7.0
    hub.search_answers = [Answer(stall=True)]
    with pytest.raises(HubError, match="did not answer a search within 3 s"):
        search_hub(SearchJob(("14b",), hub.url, deadline_s=3.0))


def test_a_folder_is_searched_instead(tmp_path: Path) -> None:
    cached(tmp_path, "org/Tiny-4bit")
    cached(tmp_path, "org/Other")
    found = answer(SearchJob(("tiny",), folder=str(tmp_path)))
    assert isinstance(found, SearchResult)
    (one,) = found.candidates
    assert (one.repository, one.mlx, one.problem) == ("org/Tiny-4bit", True, None)
    assert one.weight_bytes is not None
    assert one.weight_bytes > 0
    missing = answer(SearchJob(("tiny",), folder=str(tmp_path / "nowhere")))
    assert isinstance(missing, HubFailure)


def order(text: str, *candidates: Candidate) -> list[str]:
    room = Room(10**9, 10**9, 0)
    found = rank_candidates(words_of(text), candidates, room, {}, now=10 * YEAR_S)
    return [result.repository for result in found.results]


def candidate(name: str, downloads: int = 1000, age_years: float = 0.0, **rest: Any) -> Candidate:
    changed_at = (10 - age_years) * YEAR_S
    return Candidate(
        repository=name, downloads=downloads, changed_at=changed_at, **{"mlx": True, **rest}
    )


def test_the_order() -> None:
    broken = candidate("a/Qwen3-4B", 10**6, problem="nothing loads it")
    plain = candidate("b/Qwen3-4B", 10**6, mlx=False)
    # In its name qwen3 is only a piece of another word.
    newer = candidate("c/Qwen3.5-4B-4bit", 10**6)
    old = candidate("d/Qwen3-4B-4bit", 5000, age_years=2.0)
    new = candidate("e/Qwen3-4B-4bit", 500)
    used = candidate("f/Qwen3-4B-4bit", 900)
    unknown = Candidate(repository="g/Qwen3-4B-4bit", mlx=True)
    ordered = order("Qwen3 4B", unknown, old, broken, plain, newer, new, used)
    assert ordered == [
        candidate.repository for candidate in (used, new, old, unknown, newer, plain, broken)
    ]


@pytest.mark.parametrize(
    ("free_bytes", "possible_bytes", "fits"),
    [(200, 1000, "now"), (100, 1000, "after unloading"), (100, 139, "never"), (-5, -5, "never")],
)
def test_whether_it_fits(free_bytes: int, possible_bytes: int, fits: str) -> None:
    room = Room(free_bytes, possible_bytes, 10)
    one = Candidate(repository="org/one", weight_bytes=100)
    other = Candidate(repository="org/other")
    found = rank_candidates(("o",), [one, other], room, {"org/other": "other"}, now=0.0)
    first, second = found.results
    assert (first.fits, first.needed_bytes, first.served_as) == (fits, 140, None)
    assert (second.fits, second.needed_bytes, second.served_as) == (None, None, "other")
    assert min(found.free_bytes, found.possible_bytes) >= 0
    assert (first.can_chat, second.can_chat) == (fits != "never", True)


def test_well_known_models() -> None:
    found = well_known(Room(3 * 10**9, 6 * 10**9, 10**8), {})
    sizes = [result.weight_bytes or 0 for result in found.results]
    assert sizes == sorted(sizes)
    kinds = [finding.fits for finding in found.results]
    assert list(dict.fromkeys(kinds)) == ["now", "after unloading", "never"]
    assert found.dated is not None


@pytest.mark.processes
def test_a_process_that_ends_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", shutil.which("false"))
    with pytest.raises(HubError, match="ended by exit code 1, and no answer"):
        search_hub(SearchJob(("14b",)))


def test_well_known_models_can_be_pulled_by_their_names() -> None:
    for candidate in WELL_KNOWN:
        assert parse_reference(candidate.repository).repository == candidate.repository
