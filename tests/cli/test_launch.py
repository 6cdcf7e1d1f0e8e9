"""`bulkhead launch` with programs that stand in for the agents. tests/e2e/test_launch_agents.py has
the agents themselves.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.terminal import BULKHEAD, bulkhead, environment, read_until
from tests.support.folders import short_folder
from tests.support.gateway import START_S, Gateway, eventually, gone
from tests.support.ports import free_port
from tests.support.scripted.model import Step, scripted_model

# Tells what it was given, and ends as it is told.
AGENT = """#!/bin/sh
echo "arguments: $*"
env
if [ "$1" = --wait ] || [ "$3" = --wait ]; then
    trap 'echo "told to end"; exit 9' TERM
    echo waiting
    while :; do sleep 0.05; done
fi
exit 7
"""


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows 262,144 tokens."""
    folder = tmp_path_factory.mktemp("models") / "long"
    return scripted_model(folder, "plain", [Step("That is known.", "A wall in a ship.")])


@pytest.fixture(scope="module")
def gateway(long: Path) -> Iterator[Gateway]:
    config = f'[models.demo]\npath = "demo"\n[models.long]\npath = "{long}"\n'
    running = Gateway(models=(), config=config)
    yield running
    assert running.stop() == 0, running.log


@pytest.fixture(autouse=True)
def agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clean home, and a path with the stand-ins of two agents."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("claude", "opencode"):
        (programs / name).write_text(AGENT)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("CLAUDE_CONFIG_DIR", "XDG_CONFIG_HOME", "CODEX_HOME"):
        monkeypatch.delenv(name, raising=False)


def launch(
    *arguments: str, url: str | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*BULKHEAD, "launch", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=START_S,
        env={**environment(url), **more},
        check=False,
    )


def test_the_agent_gets_settings_arguments_and_a_context(gateway: Gateway) -> None:
    done = launch("claude", "long", "--", "-p", "a question", "--", "--url", url=gateway.url)
    assert done.returncode == 7, done.stderr
    assert done.stdout.splitlines()[0].endswith(" -p a question -- --url")
    assert f"\nANTHROPIC_BASE_URL={gateway.url}\n" in done.stdout
    assert "\nANTHROPIC_AUTH_TOKEN=none\n" in done.stdout
    assert "long: 65,536 tokens of context take " in done.stderr
    assert "Up to 262,144 would fit" in done.stderr
    assert gateway.model("long")["context_tokens"] == 65_536


def test_a_longer_context_stays_and_a_shorter_one_changes_nothing(gateway: Gateway) -> None:
    wide = launch("claude", "long", "--context", "100000", url=gateway.url)
    assert "CLAUDE_CODE_MAX_CONTEXT_TOKENS=100000\n" in wide.stdout, wide.stderr
    pid = gateway.worker_pid("long")
    again = launch("claude", "long", url=gateway.url)
    assert "CLAUDE_CODE_MAX_CONTEXT_TOKENS=100000\n" in again.stdout
    gateway.client.post("/admin/v1/reload").raise_for_status()
    assert (gateway.worker_pid("long"), gateway.model("long")["context_tokens"]) == (pid, 100_000)


def test_a_model_that_knows_too_little_is_refused(gateway: Gateway) -> None:
    done = launch("claude", "demo", url=gateway.url)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Claude Code needs 32,768 tokens of context, and demo knows 4,096 at most" in done.stderr
    done = launch("claude", "demo", "--context", "4096", url=gateway.url)
    assert done.returncode == 7, done.stderr
    assert "CLAUDE_CODE_MAX_OUTPUT_TOKENS=1024\n" in done.stdout


def test_a_signal_reaches_the_agent(gateway: Gateway) -> None:
    command = [*BULKHEAD, "launch", "opencode", "long", "--", "--wait"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment(gateway.url)
    ) as running:
        read_until(running, "waiting")
        running.send_signal(signal.SIGTERM)
        assert running.communicate(timeout=START_S)[0] == "told to end\n"
        assert running.returncode == 9


@pytest.mark.slow
def test_without_a_gateway_one_runs_as_long_as_the_agent(long: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f"[gateway]\nport = {free_port()}\n[workers]\nspare = 0\n")
    with short_folder() as folder:
        state = Path(folder) / "state"
        variables = environment(None) | {
            "BULKHEAD_CONFIG": str(config),
            "BULKHEAD_STATE_DIR": str(state),
            "HF_HUB_CACHE": folder,
        }
        with subprocess.Popen(
            [*BULKHEAD, "launch", "opencode", str(long), "--", "--wait"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=variables,
        ) as running:
            assert "OPENCODE_CONFIG_CONTENT=" in read_until(running, "waiting")
            pid = int((state / "gateway.lock").read_text())
            running.send_signal(signal.SIGTERM)
            printed, text = running.communicate(timeout=START_S)
        assert (printed, running.returncode) == ("told to end\n", 9)
        assert "No gateway ran: one serves at http://127.0.0.1:" in text
        assert "long: 65,536 tokens of context take " in text
        eventually(lambda: gone(pid))


def test_a_gateway_that_cant_start_says_why(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f"[gateway]\nport = {free_port()}\ndrain = 3\n")
    variables = {"BULKHEAD_CONFIG": str(config), "BULKHEAD_STATE_DIR": str(tmp_path / "state")}
    done = launch("claude", "demo", **variables)
    assert done.returncode == 1
    assert "drain" in done.stderr


def test_an_agent_that_is_not_installed() -> None:
    done = launch("codex", "demo")
    assert (done.returncode, done.stdout) == (127, "")
    assert done.stderr == "bulkhead: Codex isn't installed: npm install -g @openai/codex\n"


def test_editors_are_set_by_hand(gateway: Gateway) -> None:
    done = launch("zed", "long", url=gateway.url)
    assert done.returncode == 2
    assert "bulkhead launch zed --print" in done.stderr
    done = launch("zed", "long", "--print", "--context", "50000", url=gateway.url)
    zed = json.loads(done.stdout)["language_models"]["openai_compatible"]["Bulkhead"]
    assert zed["api_url"] == f"{gateway.url}/v1"
    assert zed["available_models"][0]["max_tokens"] == 50_000


def test_lines_name_the_context_that_is_there(gateway: Gateway) -> None:
    gateway.order("unload", "demo").raise_for_status()
    done = launch("opencode", "demo", "--print", url=gateway.url)
    assert '"context": 4096' in done.stdout
    assert "opencode needs 16,384 tokens of context, and demo knows 4,096 at most" in done.stderr
    assert gateway.model("demo")["state"] == "unloaded"


def test_its_own_file_is_changed_when_asked_and_back_again(
    gateway: Gateway, tmp_path: Path
) -> None:
    own = tmp_path / ".config" / "opencode" / "opencode.json"
    own.parent.mkdir(parents=True)
    own.write_text('{"theme": "dark"}')
    done = launch("opencode", "long", "--write", url=gateway.url)
    assert f"{own} has the settings now, and {own}.before-bulkhead what was" in done.stdout
    assert json.loads(own.read_text())["model"] == "bulkhead/long"
    assert launch("opencode", "--undo").returncode == 0
    assert json.loads(own.read_text()) == {"theme": "dark"}
    done = launch("opencode", "--undo")
    assert done.returncode == 1
    assert "Nothing was changed: nothing of " in done.stderr


@pytest.mark.slow
def test_a_gateway_with_keys(tmp_path: Path) -> None:
    running = Gateway()
    try:
        state = {"BULKHEAD_STATE_DIR": str(running.state_dir)}
        made = subprocess.run(
            [*BULKHEAD, "key", "add", "agent"],
            env=environment(running.url) | state,
            capture_output=True,
            text=True,
            check=True,
        )
        key = made.stdout.split()[-1]
        arguments = ("claude", "demo", "--context", "4096")
        done = launch(*arguments, url=running.url, **state)
        assert done.returncode == 1
        assert "wants an API key of its own: `bulkhead key add NAME`" in done.stderr
        # The admin key orders the load, and the agent's own key is all that it gets.
        admin_key = (running.state_dir / "admin.key").read_text().strip()
        secrets = {"BULKHEAD_API_KEY": key, "BULKHEAD_ADMIN_KEY": admin_key}
        done = launch(*arguments, url=running.url, **secrets)
        assert f"ANTHROPIC_AUTH_TOKEN={key}\n" in done.stdout, done.stderr
        assert admin_key not in done.stdout
        # Without the admin key the model is used as it is.
        key_file = tmp_path / "agent.key"
        key_file.write_text(key)
        key_file.chmod(0o600)
        alone = {"BULKHEAD_STATE_DIR": str(tmp_path / "elsewhere")}
        done = launch(*arguments, "--api-key-file", str(key_file), url=running.url, **alone)
        assert f"ANTHROPIC_AUTH_TOKEN={key}\n" in done.stdout, done.stderr
        assert "demo is used as it is" in done.stderr
    finally:
        running.stop()


def test_help_says_what_follows_the_dashes() -> None:
    assert "What follows -- goes to the agent" in " ".join(
        bulkhead("launch", "--help").stdout.split()
    )
