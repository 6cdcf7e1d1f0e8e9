from __future__ import annotations

import sys
from pathlib import Path

from gateway.service.definition import lasting


def test_interpreter_of_homebrew_is_named_by_its_lasting_link(tmp_path: Path) -> None:
    python = tmp_path / "Cellar" / "bulkhead" / "1.0" / "libexec" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert lasting(str(python)) == str(python), "nothing leads to it"
    link = tmp_path / "opt" / "bulkhead"
    link.parent.mkdir()
    link.symlink_to(python.parents[2])
    named = lasting(str(python))
    assert named == str(link / "libexec" / "bin" / "python")
    assert Path(named).samefile(python)
    # An older one that is still there isn't what the link leads to.
    old = tmp_path / "Cellar" / "bulkhead" / "0.9" / "libexec" / "bin" / "python"
    assert lasting(str(old)) == str(old)
    assert lasting(str(tmp_path / "Cellar" / "bulkhead")) == str(tmp_path / "Cellar" / "bulkhead")


def test_another_stays_as_it_is() -> None:
    assert lasting() == sys.executable
