"""Dashboard, alerts and page are about metrics that there are, and a Prometheus reads these."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.gateway import Gateway, eventually
from tests.support.prometheus import Prometheus, program

ROOT: Final = Path(__file__).parents[2]
RULES: Final = ROOT / "deploy" / "prometheus"
DASHBOARD: Final = ROOT / "deploy" / "grafana" / "bulkhead.json"
NAME: Final = re.compile(r"\b(?:bulkhead|process)_[a-z0-9_]+\b")
SUFFIX: Final = re.compile(r"_(?:bucket|sum|count)$")


@pytest.fixture(scope="module")
def gateway(own_gateway: Gateway) -> Gateway:
    return own_gateway


def _expressions() -> list[str]:
    """Of the dashboard, for all that it can choose from."""
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text("utf-8"))
    found = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    assert len(found) > 20
    for name, value in {
        "$__rate_interval": "1m",
        "$instance": ".*",
        "$model": ".*",
        "$job": ".*",
    }.items():
        found = [item.replace(name, value) for item in found]
    assert not any("$" in item for item in found)
    return found


def _names(gateway: Gateway) -> set[str]:
    """Of all metrics, also those that have no sample at present."""
    text = gateway.client.get("/metrics").raise_for_status().text
    names: set[str] = set()
    for family in text_string_to_metric_families(text):
        names.add(f"{family.name}_total" if family.type == "counter" else family.name)
    return names


@pytest.mark.parametrize("file", [DASHBOARD, RULES / "alerts.yml", ROOT / "docs" / "monitoring.md"])
def test_named_metrics_exist(gateway: Gateway, file: Path) -> None:
    named = {SUFFIX.sub("", item) for item in NAME.findall(file.read_text("utf-8"))}
    assert named
    assert not named - _names(gateway)


def test_the_page_has_every_metric(gateway: Gateway) -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text("utf-8")
    assert not [name for name in _names(gateway) if f"`{name}`" not in page]


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", "alerts.yml"),
        ("test", "rules", "alerts_test.yml"),
        ("check", "config", "prometheus.yml"),
    ],
)
def test_promtool_agrees(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        [program("promtool"), *arguments], cwd=RULES, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested() -> None:
    alerts = re.findall(r"alert: (\w+)", (RULES / "alerts.yml").read_text("utf-8"))
    tested = re.findall(r"alertname: (\w+)", (RULES / "alerts_test.yml").read_text("utf-8"))
    assert set(alerts) == set(tested)


def test_promtool_finds_nothing_wrong_with_the_names(gateway: Gateway) -> None:
    gateway.say("Hello", max_tokens=4)
    done = subprocess.run(
        [program("promtool"), "check", "metrics"],
        input=gateway.client.get("/metrics").text,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_a_prometheus_reads_it(gateway: Gateway, tmp_path: Path) -> None:
    files = (RULES / "prometheus.yml", RULES / "vllm-names.yml")
    prometheus = Prometheus(gateway, tmp_path, *files)
    try:
        gateway.say("Hello", max_tokens=4)
        (up,) = prometheus.until_it_has('up{job="bulkhead"} == 1')
        (tokens,) = prometheus.until_it_has("vllm:generation_tokens_total >= 4")
        assert tokens["metric"]["model_name"] == "demo"
        assert prometheus.until_it_has("vllm:time_to_first_token_seconds_bucket")
        # A rate takes two samples; what hasn't happened has none.
        eventually(lambda: sum(map(bool, map(prometheus.query, _expressions()))) > 18)
        (budget,) = prometheus.query("bulkhead_memory_budget_bytes")
        assert int(budget["value"][1]) == gateway.status()["memory"]["budget_bytes"]
        assert up["metric"]["instance"] == budget["metric"]["instance"]
    finally:
        prometheus.stop()
