"""Every block of commands in the documents is run, or says why it isn't."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.docs.fences import EXCUSES, PAGES, ROOT, fences
from tests.support.gateway import Gateway
from tests.support.hub import Hub
from tests.support.platforms import LINUX
from tests.support.shapes import DEMO

SCRIPTS = {page: [fence.text for fence in fences(page) if fence.kind == "sh"] for page in PAGES}
RUN = [page for page, script in SCRIPTS.items() if script]
# Once there are keys, everything needs one: pages that make some come last.
RUN.sort(key=lambda page: "bulkhead key add" in "\n".join(SCRIPTS[page]))
# The others' commands are run by `make test-more`.
FIRST_READ = ("README.md", "install.md")
# As on a Mac: a zsh that is typed into has no comments.
TYPED = ("zsh", "-f", "-i", "-s")
BASH = ("bash",)
PROGRAMS = ("bulkhead ", "curl ", "make ", "sudo ", "ssh ", "brew ", "uv ", "pipx ")

# What the pages call without saying that it must succeed, and a message for a chat to answer. No
# command may read the lines that follow it.
SHELL = """
set -eo pipefail
curl() { command curl --silent --show-error --fail-with-body --max-time 60 "$@"; }
bulkhead() {
    if { [ "$1" = chat ] || [ "$1" = run ]; } && ! [ -p /dev/stdin ]; then
        echo 'What is Bulkhead?' | command bulkhead "$@"
    elif [ -p /dev/stdin ]; then
        command bulkhead "$@"
    else
        command bulkhead "$@" </dev/null
    fi
}
"""


# The other shell than the system's takes its part in `make test-more`.
SHELLS = (BASH, TYPED) if LINUX else (TYPED, BASH)


@pytest.fixture(
    scope="module",
    params=[SHELLS[0], pytest.param(SHELLS[1], marks=pytest.mark.slow)],
    ids=lambda shell: shell[0],
)
def shell(request: pytest.FixtureRequest) -> tuple[str, ...]:
    if shutil.which(request.param[0]) is None:
        pytest.skip(f"there is no {request.param[0]}")
    return request.param


@pytest.fixture(scope="module")
def gateway(shell: tuple[str, ...]) -> Iterator[Gateway]:
    """With the models that the pages name, which are all the embedded one. Each shell has its own,
    as the pages make keys.
    """
    files = {path.name: path.read_bytes() for path in DEMO.iterdir() if path.is_file()}
    names = ("Qwen3-4B-4bit", "Llama-3.2-3B-Instruct-4bit")
    with Hub({f"mlx-community/{name}": files for name in names}) as hub:
        running = Gateway(
            models=(),
            config=f"""
                [hub]
                endpoint = "{hub.url}"
                [models.demo]
                path = "demo"
                [models.llama]
                path = "demo"
            """,
        )
        yield running
        assert running.stop() == 0, running.log


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=() if page.name in FIRST_READ else pytest.mark.slow) for page in RUN],
    ids=lambda page: page.name,
)
def test_the_commands_of_a_page(
    page: Path, shell: tuple[str, ...], gateway: Gateway, tmp_path: Path
) -> None:
    steps = [f"echo '=== {number}' >&2\n{text}" for number, text in enumerate(SCRIPTS[page])]
    script = tmp_path / "script"
    script.write_text(_here("\n".join([SHELL, *steps, "echo '=== end' >&2\n"]), gateway))
    with script.open() as typed:
        done = subprocess.run(
            shell,
            stdin=typed,
            capture_output=True,
            text=True,
            timeout=300,
            cwd=tmp_path,
            env={
                **os.environ,
                "HOME": str(tmp_path),
                "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
                "BULKHEAD_STATE_DIR": str(gateway.state_dir),
                "BULKHEAD_CONFIG": str(gateway.config_path),
                "HF_HUB_CACHE": str(gateway.config_path.parent / "cache"),
            },
            check=False,
        )
    told = f"{page.name}\n{done.stdout}\n{done.stderr}\n{gateway.log}"
    assert done.returncode == 0, told
    assert "=== end\n" in done.stderr, told


def _here(script: str, gateway: Gateway) -> str:
    """At this gateway's address, with a model that it has where a page says MODEL."""
    here = script.replace("127.0.0.1:8642", urlsplit(gateway.url).netloc)
    return here.replace("MODEL", "demo")


def test_every_block_is_run_or_says_why_not() -> None:
    blocks = [fence for page in PAGES for fence in fences(page)]
    assert blocks
    for block in blocks:
        word, _, excuse = block.kind.partition(" ")
        if word == "sh" and excuse:
            assert excuse in EXCUSES, block.place
        if not word:
            # Output, or a synopsis.
            assert "[" in block.text or not block.text.startswith(PROGRAMS), block.place
        assert word in ("", "sh", "toml", "json", "python", "yaml", "text"), block.place


def test_excuses_name_tests_that_run_the_blocks() -> None:
    for excuse, why in EXCUSES.items():
        for path in re.findall(r"tests/\S+\.py(?= runs)", why):
            assert f"sh {excuse}" in (ROOT / path).read_text("utf-8")
