"""The history of a real gateway, over its end, its upgrade and its death."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from tests.support.folders import short_folder
from tests.support.gateway import START_S, Gateway, eventually


def _history(gateway: Gateway, span: str = "hour") -> dict[str, Any]:
    answer = gateway.client.get("/admin/v1/history", params={"span": span})
    found: dict[str, Any] = answer.raise_for_status().json()
    return found


def _sum(columns: dict[str, Any], name: str) -> float:
    return sum(column or 0 for column in columns[name])


def _deaths(gateway: Gateway) -> float:
    return _sum(_history(gateway)["columns"], "deaths")


def _most_held(gateway: Gateway) -> float:
    models = _history(gateway)["columns"]["models"].values()
    return max((item or 0 for model in models for item in model["held_bytes"]), default=0)


def test_the_last_hour_is_told_and_outlives_the_gateway() -> None:
    with short_folder() as folder:
        where = ("--state-dir", str(Path(folder) / "state"))
        gateway = Gateway(*where)
        gateway.say("Hello", max_tokens=20)
        eventually(lambda: _most_held(gateway) > 10_000_000, START_S)
        os.kill(gateway.worker_pid(), signal.SIGKILL)
        eventually(lambda: _deaths(gateway), START_S)
        columns = _history(gateway)["columns"]
        demo = columns["models"]["demo"]
        assert max(item or 0 for item in demo["floor_bytes"]) > 0
        assert _sum(demo, "generated_tokens") > 0
        assert _sum(columns, "prompt_tokens") > 0
        assert max(item or 0 for item in columns["worst_first_token_s"]) > 0
        (mark,) = _history(gateway)["marks"]
        assert (mark["kind"], mark["model"]) == ("death", "demo")
        refused = gateway.client.get("/admin/v1/history", params={"span": "week"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "span")
        gateway.client.post("/admin/v1/upgrade").raise_for_status()
        eventually(lambda: _deaths(gateway) == 1)
        assert gateway.stop() == 0, gateway.log

        gateway = Gateway(*where)
        eventually(lambda: _deaths(gateway) == 1)
        (kept,) = _history(gateway)["marks"]
        assert kept == mark
        assert gateway.stop() == 0, gateway.log

        path = Path(folder) / "state" / "history.json"
        path.write_bytes(path.read_bytes()[:100])
        gateway = Gateway(*where)
        eventually(lambda: "history.json is ignored: " in gateway.log)
        eventually(lambda: _history(gateway)["columns"]["budget_bytes"], START_S)
        assert _deaths(gateway) == 0
        assert gateway.stop() == 0, gateway.log
