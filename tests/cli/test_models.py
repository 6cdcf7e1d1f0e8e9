from __future__ import annotations

import json
import re

from tests.cli.conftest import SPACED_ID
from tests.cli.terminal import bulkhead
from tests.support.gateway import Gateway


def test_lists_what_is_served(fleet: Gateway) -> None:
    done = bulkhead("models", url=fleet.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    heading, *rows = [re.split(r"\s{2,}", line.strip()) for line in done.stdout.splitlines()]
    assert " ".join(heading) == "model state size context last used aliases"
    assert [row[0] for row in rows] == [SPACED_ID, "slow", "broken"]
    assert [row[1] for row in rows] == [model["state"] for model in fleet.status()["models"]]
    assert [row[-1] for row in rows] == ["other", "-", "-"]
    assert re.fullmatch(r"[\d.]+ MB", rows[0][2])


def test_json_is_the_list_of_the_gateway(fleet: Gateway) -> None:
    done = bulkhead("models", "--json", url=fleet.url)
    assert done.returncode == 0
    assert json.loads(done.stdout) == fleet.client.get("/v1/models").json()["data"]
