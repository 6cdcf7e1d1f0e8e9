"""Agents as npm has them, set up as docs/clients.md says, each with a home of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from tests.support.agents.script import CARGO
from tests.support.pictures import RED, png

NPM = Path(sys.prefix) / "agents" / "node_modules"
_ANSWER_S = 300.0
QUESTION = "Copy the cargo and look at the copy."
AGAIN = "And what is done by now?"
# Of models that Codex knows: to one it offers a tool for patches, the other calls all by programs.
CODEX_KNOWS = ("gpt-5.5-", "gpt-6-sol-")
# Whatever an agent looks for, nothing but the gateway is reached.
_PROXIES = {
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9"),
    "NO_PROXY": "127.0.0.1,localhost",
}
# Of its home, the gateway's address and the model's name: its commands and its environment.
_Start: TypeAlias = Callable[[Path, str, str], tuple[list[list[str]], dict[str, str]]]


def _claude(package: str) -> _Start:
    def start(_home: Path, url: str, model: str) -> tuple[list[list[str]], dict[str, str]]:
        options = "--output-format stream-json --verbose --allowedTools Bash,Read"
        program = str(NPM / package / "bin" / "claude.exe")
        return [[program, "--print", QUESTION, *options.split()]], {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_AUTH_TOKEN": "none",
            "ANTHROPIC_MODEL": model,
            "ANTHROPIC_SMALL_FAST_MODEL": model,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }

    return start


def _codex(known: str = "") -> _Start:
    """A model whose name begins with one that it knows, it offers other tools."""

    def start(home: Path, url: str, model: str) -> tuple[list[list[str]], dict[str, str]]:
        (home / "config.toml").write_text(
            f'model = "{known}{model}"\nmodel_provider = "bulkhead"\n\n[model_providers.bulkhead]\n'
            f'name = "Bulkhead"\nbase_url = "{url}/v1"\nwire_api = "responses"\n'
        )
        command = [str(NPM / ".bin" / "codex"), "exec", "--json", "--skip-git-repo-check"]
        first = [*command, "--sandbox", "danger-full-access", QUESTION]
        # What it may do changes in mid-conversation.
        second = [*command, "--sandbox", "read-only", "resume", "--last", AGAIN]
        return [first, second], {"CODEX_HOME": str(home)}

    return start


def _codex_oss(home: Path, url: str, model: str) -> tuple[list[list[str]], dict[str, str]]:
    """As it finds Ollama."""
    command = [str(NPM / ".bin" / "codex"), "exec", "--json", "--skip-git-repo-check"]
    command += ["--sandbox", "danger-full-access", "--oss", "--local-provider", "ollama"]
    environment = {"CODEX_HOME": str(home), "CODEX_OSS_BASE_URL": f"{url}/v1"}
    return [[*command, "--model", model, QUESTION]], environment


def _opencode(home: Path, url: str, model: str) -> tuple[list[list[str]], dict[str, str]]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{url}/v1"},
        "models": {model: {}},
    }
    config = home / "opencode.json"
    config.write_text(json.dumps({"provider": {"bulkhead": provider}}))
    command = [str(NPM / "opencode-ai" / "bin" / "opencode.exe"), "run", "--format", "json"]
    return [[*command, "--model", f"bulkhead/{model}", QUESTION]], {
        "OPENCODE_CONFIG": str(config),
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
    }


AGENTS: dict[str, _Start] = {
    "claude": _claude("@anthropic-ai/claude-code"),
    "claude-older": _claude("claude-code-older"),
    "codex": _codex(),
    "codex-patching": _codex(CODEX_KNOWS[0]),
    "codex-coding": _codex(CODEX_KNOWS[1]),
    "codex-oss": _codex_oss,
    "opencode": _opencode,
}


def configuration(models: Mapping[str, Path]) -> str:
    """Of a gateway, for models by their names."""
    return "".join(
        f'[models.{name}]\npath = "{path}"\naliases = {[each + name for each in CODEX_KNOWS]}\n'
        for name, path in models.items()
    )


def ask(name: str, home: Path, folder: Path, url: str, model: str) -> str:
    """All that an agent prints as events, asked in a folder with some cargo; the last time, if it
    is asked again.

    Raises:
        AssertionError: it failed, and says why.
    """
    (folder / "cargo.txt").write_text(f"{CARGO}\n")
    (folder / "cargo.png").write_bytes(png(RED))
    home.mkdir(parents=True)
    commands, environment = AGENTS[name](home, url, model)
    inherited = {
        each: os.environ[each] for each in ("PATH", "LANG", "TMPDIR") if each in os.environ
    }
    said = ""
    for command in commands:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**inherited, **_PROXIES, "HOME": str(home), **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ANSWER_S,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        said = done.stdout
    return said
