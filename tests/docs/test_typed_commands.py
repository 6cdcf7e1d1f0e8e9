"""Commands mean the same in each shell that they are typed into: macOS has zsh.

An interactive zsh has no comments, takes `[x]`, `?` and `=word` for patterns, and `!` for history.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs.fences import OTHER_PAGES, PAGES, ROOT, Fence, fences

TYPED = [
    fence
    for page in (*PAGES, *OTHER_PAGES)
    for fence in fences(page)
    if fence.kind.startswith("sh")
]
ZSH = ("zsh", "-f", "-i", "-s")
BASH = ("bash", "--noprofile", "--norc", "-s")
# No program is found, so each call comes here, and is written down.
RECORD = """
command_not_found_handler() {
    local line
    printf -v line '<%s>' "$@"
    printf '%s\\n' "$line" >>"$CALLS"
}
command_not_found_handle() { command_not_found_handler "$@"; }
cd() { command_not_found_handler cd "$@"; }
which() { printf %s "$1"; }
"""
# The way to a program would be followed.
WAY = re.compile(r"^\S+/bin/", re.MULTILINE)
SPAN = re.compile(r"`([^`\n]+)`")


def _place(fence: object) -> str:
    assert isinstance(fence, Fence)
    return fence.place


def _calls(shell: tuple[str, ...], text: str, home: Path) -> list[str]:
    """What the shell calls, each call with its arguments in angle brackets, and in no order, since
    the parts of a pipe run at once.
    """
    program = shutil.which(shell[0])
    assert program is not None
    calls = home / "calls"
    calls.write_text("")
    subprocess.run(
        [program, *shell[1:]],
        input=f"{RECORD}\n{WAY.sub('', text)}\n",
        capture_output=True,
        text=True,
        timeout=60,
        cwd=home,
        env={"HOME": str(home), "PATH": "/nowhere", "TERM": "dumb", "CALLS": str(calls)},
        check=False,
    )
    return sorted(calls.read_text("utf-8").splitlines())


needs_zsh = pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh")


@needs_zsh
@pytest.mark.parametrize("fence", TYPED, ids=_place)
def test_zsh_calls_what_bash_calls(fence: Fence, tmp_path: Path) -> None:
    called = _calls(BASH, fence.text, tmp_path)
    assert called
    assert _calls(ZSH, fence.text, tmp_path) == called


@needs_zsh
@pytest.mark.parametrize(
    "line", ["make  # of CUDA", "pip install a[b]", "curl x/?a=b", 'say "a!b"']
)
def test_the_comparison_sees_what_zsh_takes_otherwise(line: str, tmp_path: Path) -> None:
    assert _calls(ZSH, line, tmp_path) != _calls(BASH, line, tmp_path)


def test_no_command_has_a_comment() -> None:
    """Neither in a block, nor where a page or a text of the product has it in its sentence."""
    lines = [line for fence in TYPED for line in fence.text.splitlines()]
    sources = (*PAGES, *OTHER_PAGES, *(ROOT / "gateway").rglob("*.py"))
    spans = [span for source in sources for span in SPAN.findall(source.read_text("utf-8"))]
    assert {"bulkhead serve", "bulkhead service install"} <= {*lines, *spans}
    assert [text for text in lines if re.search(r"(^|\s)#", text)] == []
    assert [span for span in spans if re.search(r"\S\s+#", span)] == []
