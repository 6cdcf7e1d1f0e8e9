from __future__ import annotations

import json
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from gateway.clients.agents import AGENTS, Connection
from gateway.clients.lines import EDITORS, all_lines

CONNECTION = Connection("http://127.0.0.1:8642", "owner/qwen", 65_536, "sk-bh-secret")
ENVIRONMENT = {
    "PATH": "/bin",
    "ANTHROPIC_API_KEY": "of-another-service",
    "CLAUDE_CODE_USE_BEDROCK": "1",
    "BULKHEAD_ADMIN_KEY": "admin",
}


@pytest.mark.parametrize("agent", AGENTS.values(), ids=lambda agent: agent.name)
def test_no_agent_gets_the_admin_key_and_none_shows_its_own(agent: Any) -> None:
    setup = agent.setup(CONNECTION)
    applied = setup.applied(ENVIRONMENT)
    assert applied["PATH"] == "/bin"
    assert "BULKHEAD_ADMIN_KEY" not in applied
    # Others see the arguments of a process.
    assert "sk-bh-secret" not in " ".join(setup.arguments)
    assert any("sk-bh-secret" in item for item in applied.values())


def test_claude_is_led_to_the_gateway_alone() -> None:
    setup = AGENTS["claude"].setup(CONNECTION)
    applied = setup.applied(ENVIRONMENT)
    assert not {"ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK"} & set(applied)
    assert applied["ANTHROPIC_AUTH_TOKEN"] == "sk-bh-secret"
    assert applied["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "16384"
    option, settings = setup.arguments
    assert option == "--settings"
    shown = json.loads(settings)["env"]
    assert shown.items() <= applied.items()
    assert shown["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8642"


def test_arguments_of_codex_are_toml() -> None:
    setup = AGENTS["codex"].setup(CONNECTION)
    assert set(setup.arguments[::2]) == {"-c"}
    shown = tomllib.loads("\n".join(setup.arguments[1::2]))
    assert (shown["model"], shown["model_context_window"]) == ("owner/qwen", 65_536)
    provider = shown["model_providers"][shown["model_provider"]]
    assert provider["base_url"] == "http://127.0.0.1:8642/v1"
    assert setup.environment[provider["env_key"]] == "sk-bh-secret"


def test_opencode_gets_a_configuration_by_a_variable() -> None:
    setup = AGENTS["opencode"].setup(CONNECTION)
    shown = json.loads(setup.environment["OPENCODE_CONFIG_CONTENT"])
    provider, _, model = shown["model"].partition("/")
    assert shown["small_model"] == shown["model"]
    found = shown["provider"][provider]
    assert found["options"]["baseURL"] == "http://127.0.0.1:8642/v1"
    assert found["models"][model]["limit"] == {"context": 65_536, "output": 16_384}


@pytest.mark.processes
@pytest.mark.parametrize("agent", AGENTS.values(), ids=lambda agent: agent.name)
def test_lines_do_the_same_in_a_shell(agent: Any, tmp_path: Path) -> None:
    program = tmp_path / agent.program
    program.write_text('#!/bin/sh\nenv -0\nfor each in "$@"; do printf "%s\\0" "$each"; done\n')
    program.chmod(0o755)
    hostile = Connection("http://127.0.0.1:8642", "it's $HOME `id`", 65_536)
    (lines,) = (line for line in all_lines(hostile) if line.client == agent.name)
    path = f"{tmp_path}:/usr/bin:/bin"
    done = subprocess.run(
        ["sh", "-ec", lines.text],
        env={**ENVIRONMENT, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    printed = done.stdout.split("\0")[:-1]
    setup = agent.setup(hostile)
    assert tuple(printed[len(printed) - len(setup.arguments) :]) == setup.arguments
    found = dict(text.split("=", 1) for text in printed[: len(printed) - len(setup.arguments)])
    assert setup.environment.items() <= found.items()
    assert not set(setup.removed) & set(found)


def test_every_client_has_lines_with_address_and_model() -> None:
    lines = {line.client: line for line in all_lines(CONNECTION)}
    assert set(lines) == {*AGENTS, *EDITORS}
    for line in lines.values():
        assert "http://127.0.0.1:8642" in line.text
        assert "owner/qwen" in line.text
    assert shlex.split(lines["claude"].text)[0] == "unset"
    zed = json.loads(lines["zed"].text)["language_models"]["openai_compatible"]["Bulkhead"]
    assert zed["available_models"][0]["max_tokens"] == 65_536


def test_a_context_that_nobody_knows_is_not_named() -> None:
    for line in all_lines(Connection("http://127.0.0.1:8642", "whisper", 0)):
        assert "CONTEXT" not in line.text
        assert "context_window" not in line.text
        assert "contextLength" not in line.text
        assert '"limit"' not in line.text
        assert line.client not in AGENTS or "not known here" in str(line.remark)
