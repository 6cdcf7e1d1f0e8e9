"""Faults of disks, rights and the clock, side by side in one run: none is like another."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway import VERSION
from gateway.access.api_key import KeyTerms
from gateway.access.key_file import KeyFile
from gateway.config.model_folders import DEMO_FOLDER
from gateway.server.process import StartRecord
from gateway.system.state_dir import StateDir
from tests.cli.canned import CannedGateway
from tests.doctor.machine import Machine
from tests.support.certificates import write_certificate
from tests.support.faults import sitecustomize
from tests.support.folders import short_folder


def _withheld(folder: Path, site: Path) -> dict[str, str]:
    """An environment in which the system keeps a folder from every program of ours."""
    code = f"""
    import builtins, errno, io
    opens = io.open
    def guarded(file, *arguments, **options):
        if str(file).startswith({str(folder)!r}):
            raise PermissionError(errno.EPERM, "Operation not permitted", str(file))
        return opens(file, *arguments, **options)
    io.open = builtins.open = guarded
    """
    return sitecustomize(site, code)


def _plant(machine: Machine) -> None:
    state_dir = StateDir(machine.state_dir)
    state_dir.path.mkdir(0o700)
    KeyFile(state_dir.keys_path).add("laptop", KeyTerms(), 1.0)
    state_dir.keys_path.chmod(0o644)
    state_dir.admin_key_path.write_text("sk-admin-0123")
    state_dir.admin_key_path.chmod(0o640)
    state_dir.usage_path.write_text("{}")
    ahead = time.time() + 3 * 86400
    os.utime(state_dir.usage_path, (ahead, ahead))
    StartRecord(state_dir.starts_path, time.time())
    certificate, key = write_certificate(machine.home)
    key.chmod(0o644)
    withheld = machine.home / "Desktop" / "llama"
    shutil.copytree(DEMO_FOLDER, withheld)
    cache = machine.home / "cache"
    cache.touch()
    # A model is known by where it really is.
    denied = _withheld(withheld.resolve(), machine.home / "site")
    machine.environment = {"HF_HUB_CACHE": str(cache)} | denied
    machine.configure(
        "[gateway]",
        f'tls_certificate = "{certificate}"',
        f'tls_key = "{key}"',
        "[models]",
        f'discover = ["huggingface", "{machine.home}/no such folder"]',
        "[models.far]",
        'path = "/Volumes/no such disk/llama"',
        "[models.near]",
        'path = "demo"',
        'adapter = "/Volumes/other disk/lora"',
        "[models.kept]",
        f'path = "{withheld}"',
        "[models.good]",
        'path = "demo"',
    )


# Check, subject, severity, and a part of the evidence.
PLANTED = {
    "a model on a disk that isn't mounted": (
        *("model", "far", "error"),
        "The disk /Volumes/no such disk isn't mounted",
    ),
    "an adapter on a disk that isn't mounted": (
        *("model", "near", "error"),
        "The disk /Volumes/other disk isn't mounted",
    ),
    "a model that macOS keeps from this program": (
        *("model", "kept", "error"),
        "The system keeps {real_home}/Desktop/llama/config.json from this program",
    ),
    "a cache that can't be written": (
        *("model cache", None, "warning"),
        "Nothing can be pulled: {home}/cache is no folder.",
    ),
    "a folder of models that isn't there": (
        *("discovery", None, "warning"),
        "No models are found in {home}/no such folder: No such file or directory.",
    ),
    "API keys that others may read": (
        *("secrets", None, "warning"),
        "{home}/state/keys.json (its mode is 0644)",
    ),
    "an admin key that others may read": (
        *("secrets", None, "error"),
        "(its mode is 0640), and its readers may give any order",
    ),
    "a certificate's key that others may read": (
        *("secrets", None, "error"),
        "{home}/tls.key (its mode is 0644), and its readers can pass for this machine",
    ),
    "a clock that went back": (
        *("clock", None, "warning"),
        "the clock is wrong, or was",
    ),
    "a gateway that did not end in order": (
        *("starts", None, "warning"),
        "1 of the last gateways did not end in order",
    ),
}


@pytest.fixture(scope="module")
def planted() -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """The home, and what is found."""
    with short_folder() as folder:
        machine = Machine(Path(folder))
        _plant(machine)
        yield machine.home, machine.findings()


@pytest.mark.parametrize("name", PLANTED)
def test_each_is_found_by_itself(name: str, planted: tuple[Path, list[dict[str, Any]]]) -> None:
    home, findings = planted
    check, subject, severity, evidence = PLANTED[name]
    evidence = evidence.format(home=home, real_home=home.resolve())
    (found,) = [finding for finding in findings if evidence in finding["evidence"]]
    assert (found["check"], found["subject"], found["severity"]) == (check, subject, severity)
    assert found["remedy"]


def test_nothing_else_is_found(planted: tuple[Path, list[dict[str, Any]]]) -> None:
    assert len(planted[1]) == len(PLANTED)


def test_a_machine_without_them_is_well(machine: Machine) -> None:
    """The same files, as they should be."""
    state_dir = StateDir(machine.state_dir)
    state_dir.path.mkdir(0o700)
    KeyFile(state_dir.keys_path).add("laptop", KeyTerms(), 1.0)
    StartRecord(state_dir.starts_path, time.time()).ended_in_order()
    certificate, key = write_certificate(machine.home, ends_days=15)
    key.chmod(0o640)
    machine.configure("[gateway]", f'tls_certificate = "{certificate}"', f'tls_key = "{key}"')
    assert machine.findings() == []


def test_keys_that_can_not_be_read(machine: Machine) -> None:
    state_dir = StateDir(machine.state_dir)
    state_dir.path.mkdir(0o700)
    state_dir.keys_path.write_text('{"keys": [{"name": "ann"}]}')
    state_dir.keys_path.chmod(0o600)
    (found,) = [finding for finding in machine.findings() if finding["check"] == "secrets"]
    assert (found["severity"], "can't be read" in found["evidence"]) == ("error", True)


def test_a_model_that_the_gateway_alone_cannot_load(
    machine: Machine, canned: CannedGateway
) -> None:
    """As one that macOS keeps from the service, and not from this shell."""
    state_dir = StateDir(machine.state_dir)
    reason = "'demo' can't be loaded: The system keeps its files from this program."
    status = {"models": [{"id": "demo", "state": "unloaded", "reason": reason}]}
    canned.will_answer("/health", {"version": VERSION, "uptime_s": 1.0})
    canned.will_answer(
        "/admin/v1/status", {**status, "config": {"file": str(machine.config), "digest": None}}
    )
    machine.port = int(canned.url.rpartition(":")[2])
    state_dir.acquire()
    try:
        (found,) = [
            finding
            for finding in machine.findings("--model", "demo")
            if finding["check"] != "in force"
        ]
    finally:
        state_dir.release()
    assert (found["check"], found["severity"], found["subject"]) == ("model", "error", "demo")
    assert found["evidence"] == f"The running gateway can't load it: {reason}"
