"""The name of the program that runs, where `sys.executable` is another file."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import psutil

from tests.support.platforms import linux_only

SCRIPT = """
import errno, sys
from gateway.system.file_access import denied, program
print(sys.executable, program(), denied(OSError(errno.EPERM, "x", "/y")), sep="\\n")
"""


@linux_only("a copy of Python, which runs elsewhere only from its own folder")
def test_a_framework_build_names_its_app(tmp_path: Path) -> None:
    """Such a build replaces itself by another file, and `sys.executable` is still the first."""
    app = tmp_path / "Resources" / "Python.app" / "Contents" / "MacOS" / "Python"
    app.parent.mkdir(parents=True)
    shutil.copy(psutil.Process().exe(), app)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], executable=app, capture_output=True, text=True, check=True
    )
    executable, named, sentence = done.stdout.splitlines()
    assert executable == sys.executable
    assert named == str(app)
    assert f"add {app}, then" in sentence
