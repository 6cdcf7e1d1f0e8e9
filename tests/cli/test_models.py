from __future__ import annotations

import json

from tests.cli.conftest import SPACED_ID
from tests.cli.terminal import bulkhead
from tests.support.gateway import Gateway


def test_lists_ids_and_states(fleet: Gateway) -> None:
    done = bulkhead("models", url=fleet.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    heading, *rows = [line.split() for line in done.stdout.splitlines()]
    assert heading == ["model", "state"]
    assert [" ".join(row[:-1]) for row in rows] == [SPACED_ID, "slow", "broken"]
    assert [row[-1] for row in rows] == [model["state"] for model in fleet.status()["models"]]


def test_json_is_the_list_of_the_gateway(fleet: Gateway) -> None:
    done = bulkhead("models", "--json", url=fleet.url)
    assert done.returncode == 0
    assert json.loads(done.stdout) == fleet.client.get("/v1/models").json()["data"]
