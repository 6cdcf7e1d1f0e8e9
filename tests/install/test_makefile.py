"""macOS has GNU make 3.81, bash of 2007 and BSD's programs: what is run there needs no more."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.fences import of_kind

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")

# What 3.82 to 4.4 brought, by GNU make's NEWS. Older ones take most of it for something else, in
# silence.
NEWER_MAKE = {
    ".ONESHELL": r"^\.ONESHELL\b",
    ".RECIPEPREFIX": r"^\.RECIPEPREFIX\b",
    ".SHELLFLAGS": r"^\.SHELLFLAGS\b",
    ".EXTRA_PREREQS": r"\.EXTRA_PREREQS\b",
    ".WAIT": r"^[^\t#=]*:.*\s\.WAIT\b",
    ".NOTINTERMEDIATE": r"^\.NOTINTERMEDIATE\b",
    "a variable of a shell's output": r"^[^\t#:=]*!=",
    "an expansion as POSIX has it": r"^[^\t#=]*::+=",
    "targets of one recipe": r"^[^\t#=]*&::?(\s|$)",
    "a define with an assignment": r"^define\s+\S+\s*[:+?!]?=",
    "undefine": r"^\s*(override\s+)?undefine\b",
    "private": r"^([^\t#=]*:)?\s*private\b",
    "two modifiers": r"^([^\t#=]*:)?\s*(export|override)\s+(export|override|define)\b",
    "load": r"^-?load\b",
    "functions": r"\$[({](file|let|intcmp|guile)\s",
}
GNU = {
    "a program": r"\b(timeout|setsid|nproc|tac|numfmt|stdbuf|flock|realpath|sha256sum|gsed)\b",
    "an option of sed": r"\bsed\s+(-\w+\s+)*(-i\b|-r\b|--)",
    "an option of grep": r"\bgrep\s+(-\w+\s+)*-\w*P",
    "an option of readlink, stat, date or mktemp": (
        r"\b(readlink -f|stat -c|stat --|date -d|date --|mktemp -p|mktemp --)"
    ),
    "an option of xargs, cp or ln": r"\b(xargs -r|xargs -d|cp -\w*t\b|cp --|ln -\w*[rT]\b)",
    "bash of 2009": r"\b(declare -A|mapfile|readarray|coproc)\b|\$\{\w+(,,|\^\^)|&>>|\|&",
}
RECIPES = "\n".join(line for line in MAKEFILE.splitlines() if line.startswith("\t"))


def _found(patterns: dict[str, str], text: str) -> set[str]:
    return {name for name, pattern in patterns.items() if re.search(pattern, text, re.MULTILINE)}


def test_makefile_needs_no_newer_make() -> None:
    assert _found(NEWER_MAKE, MAKEFILE) == set()


def test_recipes_need_no_gnu_programs() -> None:
    assert RECIPES
    assert _found(GNU, RECIPES) == set()


def test_commands_of_the_documents_need_no_gnu_programs() -> None:
    commands = "\n".join(fence.text for fence in of_kind("sh", "sh install", "sh long", "sh mac"))
    assert commands
    assert _found(GNU, commands) == set()


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (".ONESHELL:", ".ONESHELL"),
        (".RECIPEPREFIX = >", ".RECIPEPREFIX"),
        (".SHELLFLAGS := -ec", ".SHELLFLAGS"),
        ("all: .EXTRA_PREREQS = x", ".EXTRA_PREREQS"),
        ("all: a .WAIT b", ".WAIT"),
        (".NOTINTERMEDIATE:", ".NOTINTERMEDIATE"),
        ("NOW != date", "a variable of a shell's output"),
        ("NOW ::= x", "an expansion as POSIX has it"),
        ("a b &: c", "targets of one recipe"),
        ("define both =", "a define with an assignment"),
        ("undefine NOW", "undefine"),
        ("all: private NOW := x", "private"),
        ("export override NOW := x", "two modifiers"),
        ("load x.so", "load"),
        ("x := $(file <y)", "functions"),
    ],
)
def test_each_newer_construct_is_found(line: str, name: str) -> None:
    assert name in _found(NEWER_MAKE, line)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("timeout 5 make", "a program"),
        ("sed -n -i s/a/b/ file", "an option of sed"),
        ("grep -oP x", "an option of grep"),
        ('cd "$(readlink -f .)"', "an option of readlink, stat, date or mktemp"),
        ("find | xargs -r rm", "an option of xargs, cp or ln"),
        ("declare -A names", "bash of 2009"),
    ],
)
def test_each_gnu_program_is_found(command: str, name: str) -> None:
    assert _found(GNU, command) == {name}


def test_features_of_make_381_are_allowed() -> None:
    known = "test: export A :=\nB ?= $(or $(C),x)\nd:: e\n\t[ a != b ] && x::=y\n# private"
    assert _found(NEWER_MAKE, known) == set()


@pytest.mark.parametrize(
    ("system", "machine", "refused"),
    [("darwin", "x86_64", True), ("darwin", "arm64", False), ("linux", "x86_64", False)],
)
def test_a_python_of_intel_is_refused_by_name_on_a_mac(
    tmp_path: Path, system: str, machine: str, refused: bool
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        f"import platform, sys\nsys.platform = {system!r}\nplatform.machine = lambda: {machine!r}\n"
    )
    arguments = ["make", "--dry-run", f"PYTHON={sys.executable}", f"VENV={tmp_path}", "install"]
    recipe = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    checks = [line for line in recipe.splitlines() if line.startswith(f"{sys.executable} -c")]
    assert len(checks) == 2
    done = [
        subprocess.run(
            ["sh", "-c", check],
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        for check in checks
    ]
    assert [process.returncode for process in done] == [0, int(refused)]
    if refused:
        assert f"{sys.executable} is of x86_64, and MLX needs a Python of arm64" in done[1].stderr
