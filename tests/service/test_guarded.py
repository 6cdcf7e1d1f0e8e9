from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gateway.config.model_settings import ModelSettings
from gateway.config.settings import DiscoverySettings, GatewaySettings, Settings
from gateway.service import status
from gateway.service.definition import Owner, define
from gateway.service.status import guarded_remark
from gateway.system.file_access import program

HOME = Path("/Users/you")


def _remark(
    *paths: str,
    discover: tuple[str, ...] = (),
    config: str | None = None,
    state: str = "state",
    home: Path = HOME,
) -> str | None:
    models = {str(number): ModelSettings(path=path) for number, path in enumerate(paths)}
    settings = Settings(
        gateway=GatewaySettings(state_dir=str(home / state)),
        models=models,
        discovery=DiscoverySettings(discover=discover),
    )
    file = None if config is None else Path(config)
    account = Owner("you", 501, 20, home)
    return guarded_remark(settings, define(account, settings, file, {}, system=False), file)


def test_guarded_folders_have_a_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", "/Users/you/.cache/huggingface/hub")
    assert (
        _remark("/Users/you/models/llama", "owner/name", "demo", discover=("huggingface",)) is None
    )
    shown = _remark("/Volumes/Models/llama", "/Users/you/Desktop/qwen", "/Users/you/Desktops/x")
    assert shown is not None
    assert shown.startswith(
        "macOS may keep the service from /Users/you/Desktop/qwen, /Volumes/Models/llama, and asks"
    )
    assert program() in shown
    assert "/Volumes/Models" in str(_remark(discover=("/Volumes/Models",)))
    monkeypatch.setenv("HF_HUB_CACHE", "/Volumes/Models/hub")
    assert "/Volumes/Models/hub" in str(_remark("owner/name"))


def test_an_environment_a_checkout_and_a_configuration_are_read_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "the configuration /Users/you/Downloads/b.toml" in str(
        _remark(config="/Users/you/Downloads/b.toml")
    )
    drive = "Library/Mobile Documents/com~apple~CloudDocs"
    assert f"the state folder /Users/you/{drive}/state" in str(_remark(state=f"{drive}/state"))
    monkeypatch.setattr(sys, "prefix", "/Users/you/Documents/bulkhead/.venv")
    monkeypatch.setattr(status, "_CODE", Path("/Users/you/Documents/bulkhead/gateway"))
    shown = str(_remark())
    assert "the environment /Users/you/Documents/bulkhead/.venv" in shown
    assert "the program in /Users/you/Documents/bulkhead/gateway" in shown
    assert "Move that elsewhere, for example to /Users/you/bulkhead," in shown


def test_links_are_followed(tmp_path: Path) -> None:
    real = tmp_path / "home"
    (real / "Documents" / "models").mkdir(parents=True)
    (real / "models").symlink_to(real / "Documents" / "models")
    home = tmp_path / "link"
    home.symlink_to(real)
    assert str(home / "models") in str(_remark(str(home / "models"), home=home))
    (real / "elsewhere").mkdir()
    assert _remark(str(home / "elsewhere"), home=home) is None
