from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.model_settings import ModelSettings
from gateway.config.settings import DiscoverySettings, Settings
from gateway.service.status import guarded_remark

HOME = Path("/Users/you")


def _remark(*paths: str, discover: tuple[str, ...] = ()) -> str | None:
    models = {str(number): ModelSettings(path=path) for number, path in enumerate(paths)}
    settings = Settings(models=models, discovery=DiscoverySettings(discover=discover))
    return guarded_remark(settings, HOME, "/usr/bin/env")


def test_what_somebody_has_to_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", "/Users/you/.cache/huggingface/hub")
    assert (
        _remark("/Users/you/models/llama", "owner/name", "demo", discover=("huggingface",)) is None
    )
    told = _remark("/Volumes/Models/llama", "/Users/you/Desktop/qwen", "/Users/you/Desktops/x")
    assert told is not None
    assert told.startswith(
        "macOS may keep the service from /Users/you/Desktop/qwen, /Volumes/Models/llama, and asks"
    )
    assert str(Path("/usr/bin/env").resolve()) in told
    assert "/Volumes/Models" in str(_remark(discover=("/Volumes/Models",)))
    monkeypatch.setenv("HF_HUB_CACHE", "/Volumes/Models/hub")
    assert "/Volumes/Models/hub" in str(_remark("owner/name"))
