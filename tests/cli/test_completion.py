"""Tab in real shells."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.shell_completion import get_completion_class

from gateway.cli import main
from tests.cli.canned import CannedGateway
from tests.cli.screen import Screen, screen
from tests.cli.terminal import environment

COMPLETE = "_BULKHEAD_COMPLETE"
NOBODY = "http://127.0.0.1:1"
_PATIENCE_S = 10.0
BIN = str(Path(sys.executable).parent)

SHELLS = {
    "bash": (("bash", "--noprofile", "--norc", "-i"), 'eval "$(bulkhead completion bash)"'),
    "zsh": (
        ("zsh", "-f", "-i"),
        'autoload -U compinit; compinit -u -D; eval "$(bulkhead completion)"',
    ),
    "fish": (("fish", "--no-config", "-i"), "bulkhead completion fish | source"),
}


@pytest.fixture
def models(canned: CannedGateway) -> CannedGateway:
    models = [
        {"id": "org/alpha-4bit", "state": "ready", "aliases": ["first"]},
        {"id": "beta", "state": "unloaded"},
        {"id": "beta two", "state": "unloaded"},
    ]
    canned.will_answer("/v1/models", {"data": models})
    return canned


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_in_a_real_shell(shell: str, models: CannedGateway, tmp_path: Path) -> None:
    command, setup = SHELLS[shell]
    if shutil.which(command[0]) is None:
        pytest.skip(f"there is no {shell}")
    more = {
        "PATH": f"{BIN}:{environment(None)['PATH']}",
        "HOME": str(tmp_path),
        "XDG_DATA_HOME": str(tmp_path),
        "SHELL": f"/usr/bin/{shell}",
        "PS1": "$ ",
    }
    with screen(command=command, url=models.url, more=more) as seen:
        seen.type(f'{setup}; echo is-""set\r')
        seen.shows("\nis-set")
        _complete(seen, "bulkhead unl", "bulkhead unload")
        _complete(seen, "org/al", "bulkhead unload org/alpha-4bit")
        _complete(seen, "--ho", "bulkhead unload org/alpha-4bit --hold")
        _complete(seen, "\x15bulkhead chat fi", "bulkhead chat first")
        _complete(seen, "\x15bulkhead launch cla", "bulkhead launch claude")
        seen.type("\x15exit\r")
        seen.exit_status()


def _complete(seen: Screen, typed: str, completed: str) -> None:
    """Press Tab, and again where a busy machine hasn't answered within completion's deadline."""
    seen.type(typed)
    next_at = time.monotonic()

    def there() -> bool:
        nonlocal next_at
        if completed in seen.text:
            return True
        if time.monotonic() >= next_at:
            seen.type("\t")
            next_at += _PATIENCE_S
        return False

    seen.waits_until(there, completed)


@pytest.fixture
def silent() -> Iterator[str]:
    """What takes connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def offered(words: str) -> list[str]:
    """What is offered for the last of the words, as shells ask for it."""
    completion = get_completion_class("bash")
    assert completion is not None
    *before, begun = words.split(" ")[1:]
    found = completion(main, {}, "bulkhead", COMPLETE).get_completions(before, begun)
    return [completion_item.value for completion_item in found]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("bulkhead st", ["status"]),
        ("bulkhead load ", ["org/alpha-4bit", "beta", "first"]),
        ("bulkhead logs b", ["beta"]),
        ("bulkhead events --model o", ["org/alpha-4bit"]),
        ("bulkhead config ch", ["check"]),
        ("bulkhead completion z", ["zsh"]),
        ("bulkhead bench --str", ["--streams"]),
    ],
)
def test_completion_offers_ids_and_aliases(
    words: str, found: list[str], models: CannedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BULKHEAD_URL", models.url)
    assert offered(words) == found


def test_asks_the_gateway_that_is_named(models: CannedGateway) -> None:
    assert offered(f"bulkhead load --url {models.url} b") == ["beta"]


def test_completion_without_a_gateway_offers_nothing(
    canned: CannedGateway, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for url in (NOBODY, canned.url, "nonsense", "http://[::1"):
        monkeypatch.setenv("BULKHEAD_URL", url)
        assert offered("bulkhead load b") == []
    assert capfd.readouterr() == ("", "")


def test_completion_does_not_wait_for_a_silent_gateway(silent: str) -> None:
    # It would be waited for until it answers; nothing ends this server but the test.
    asked = {COMPLETE: "bash_complete", "COMP_WORDS": "bulkhead load b", "COMP_CWORD": "2"}
    done = subprocess.run(
        [f"{BIN}/bulkhead"],
        env={**environment(silent), **asked},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


def test_a_shell_that_is_not_known() -> None:
    done = subprocess.run(
        [f"{BIN}/bulkhead", "completion"],
        env={**environment(None), "SHELL": "/bin/tcsh"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "bulkhead: Name the shell: bash, zsh, fish.\n"
