from __future__ import annotations

import json

from tests.cli.terminal import bulkhead
from tests.support.gateway import Gateway

SMALL = ("--prompt-tokens", "20", "--tokens", "8")


def test_measures_one_stream_and_several(gateway: Gateway) -> None:
    done = bulkhead("bench", *SMALL, "--streams", "1,3", "--json", url=gateway.url)
    assert (done.returncode, done.stderr.count("Careful")) == (0, 0), done.stderr
    printed = json.loads(done.stdout)
    assert printed["model"] == "demo"
    assert [(level["streams"], level["tokens"]) for level in printed["levels"]] == [(1, 8), (3, 24)]
    for level in printed["levels"]:
        assert 20 <= level["prompt_tokens"] <= 100
        assert 0 < level["first_token_s"] <= level["worst_first_token_s"]
        assert level["tokens_per_s"] > 0


def test_prints_a_table(gateway: Gateway) -> None:
    done = bulkhead("bench", "demo", *SMALL, "--streams", "2", url=gateway.url)
    assert done.returncode == 0, done.stderr
    title, heading, row = done.stdout.splitlines()
    assert title.startswith("demo: prompts of ")
    assert title.endswith(" tokens, answers of 8")
    assert " ".join(heading.split()) == "streams first token slowest tokens/s of each in all"
    assert row.split()[0] == "2"


def test_bench_of_a_model_without_completions_fails(gateway: Gateway, fleet: Gateway) -> None:
    wrong = bulkhead("bench", "--streams", "1,x", url=gateway.url)
    assert (wrong.returncode, "such as 1,8,32" in wrong.stderr) == (2, True)
    long = bulkhead("bench", "--prompt-tokens", "100000", "--streams", "1", url=gateway.url)
    assert (long.returncode, long.stdout) == (1, "")
    assert "tokens" in long.stderr
    assert bulkhead("bench", "nobody", url=gateway.url).returncode == 4
    for item in fleet.client.get("/v1/models").json()["data"]:
        fleet.order("unload", item["id"]).raise_for_status()
    several = bulkhead("bench", url=fleet.url)
    assert (several.returncode, "Name the model" in several.stderr) == (2, True)
