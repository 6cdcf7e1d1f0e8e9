"""System calls of macOS, stood in for by compiled C with the real declarations."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def compile_stub(folder: Path, code: str) -> str:
    """The path of a shared library; without a compiler the test is skipped."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    (folder / "stub.c").write_text(code)
    library = folder / "stub.so"
    command = [compiler, "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run([*command, str(folder / "stub.c")], check=True)
    return str(library)
