from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.settings import Flags
from gateway.doctor.files import look_at_model_cache
from gateway.doctor.installation import Installation


@pytest.mark.parametrize(
    ("cache", "severity", "evidence"),
    [
        ("new/hub", "ok", "new/hub will be made."),
        ("there", "ok", "there can be written."),
        ("file/hub", "warning", "file is no folder."),
        (
            "/Volumes/no such disk/hub",
            "warning",
            "a disk that isn't mounted (/Volumes/no such disk).",
        ),
    ],
)
def test_model_cache_must_be_writable(
    cache: str, severity: str, evidence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / cache))
    (found,) = look_at_model_cache(Installation(Flags(state_dir=tmp_path), {}))
    assert found.severity == severity
    assert found.evidence.endswith(evidence)
