"""What others' machines run is what this repository has."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


def _commands(workflow: Path) -> list[str]:
    jobs = yaml.safe_load(workflow.read_text("utf-8"))["jobs"].values()
    return [step["run"] for job in jobs for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda item: item.stem)
def test_a_workflow_runs_targets_and_scripts_that_are_there(workflow: Path) -> None:
    text = "\n".join(_commands(workflow))
    assert text
    assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= TARGETS
    for script in re.findall(r"^\.ci/\S+$", text, re.MULTILINE):
        assert os.access(ROOT / script, os.X_OK)


def test_linux_and_apple_silicon_run_the_same() -> None:
    (check,) = (workflow for workflow in WORKFLOWS if workflow.stem == "check")
    matrix = yaml.safe_load(check.read_text("utf-8"))["jobs"]["test"]["strategy"]["matrix"]
    runners = {item["runner"].partition("-")[0] for item in matrix["include"]}
    assert runners == {"ubuntu", "macos"}
    assert {"make check", "make test"} <= set(_commands(check))


def test_a_mac_of_7_gb_tests_one_at_a_time_and_on_its_processor() -> None:
    (check,) = (workflow for workflow in WORKFLOWS if workflow.stem == "check")
    jobs = yaml.safe_load(check.read_text("utf-8"))["jobs"]
    (mac,) = (
        item
        for item in jobs["test"]["strategy"]["matrix"]["include"]
        if item["runner"].startswith("macos")
    )
    assert (mac["processes"], mac["device"]) == (1, "cpu")
    assert jobs["test"]["env"]["BULKHEAD_DEVICE"] == "${{ matrix.device }}"
    assert any(item.startswith("macos") for item in jobs["check"]["strategy"]["matrix"]["runner"])


def test_a_report_of_a_defect_needs_what_doctor_says() -> None:
    required = [
        field["id"]
        for template in TEMPLATES
        for field in yaml.safe_load(template.read_text("utf-8")).get("body", [])
        if field.get("validations", {}).get("required")
    ]
    assert "doctor" in required
