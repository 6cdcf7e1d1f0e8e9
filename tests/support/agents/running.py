"""Agents as npm has them, set up as docs/clients.md says, each with a home of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from tests.support.agents.script import CARGO
from tests.support.pictures import RED, png

NPM = Path(sys.prefix) / "agents" / "node_modules"
_ANSWER_S = 300.0
_CLAUDE_OPTIONS = ("--output-format", "stream-json", "--verbose", "--allowedTools=Bash,Read,Edit")
_CODEX_OPTIONS = ("--json", "--skip-git-repo-check")
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
        program = str(NPM / package / "bin" / "claude.exe")
        return [[program, "--print", QUESTION, *_CLAUDE_OPTIONS]], {
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
        command = [str(NPM / ".bin" / "codex"), "exec", *_CODEX_OPTIONS]
        first = [*command, "--sandbox", "danger-full-access", QUESTION]
        # What it may do changes in mid-conversation.
        second = [*command, "--sandbox", "read-only", "resume", "--last", AGAIN]
        return [first, second], {"CODEX_HOME": str(home)}

    return start


def _codex_oss(home: Path, url: str, model: str) -> tuple[list[list[str]], dict[str, str]]:
    """As it finds Ollama."""
    command = [str(NPM / ".bin" / "codex"), "exec", *_CODEX_OPTIONS]
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


def _qwen(_home: Path, url: str, model: str) -> tuple[list[list[str]], dict[str, str]]:
    command = [str(NPM / ".bin" / "qwen"), "--auth-type", "openai", "--model", model]
    return [[*command, "--yolo", "--output-format", "json", QUESTION]], {
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": "none",
    }


AGENTS: dict[str, _Start] = {
    "claude": _claude("@anthropic-ai/claude-code"),
    "claude-older": _claude("claude-code-older"),
    "codex": _codex(),
    "codex-patching": _codex(CODEX_KNOWS[0]),
    "codex-coding": _codex(CODEX_KNOWS[1]),
    "codex-oss": _codex_oss,
    "opencode": _opencode,
    "qwen": _qwen,
}


def configuration(models: Mapping[str, Path]) -> str:
    """Of a gateway, for models by their names."""
    return "".join(
        f'[models.{name}]\npath = "{path}"\naliases = {[text + name for text in CODEX_KNOWS]}\n'
        for name, path in models.items()
    )


# How each is asked by `bulkhead launch`, behind `--`.
LAUNCHED: dict[str, tuple[str, ...]] = {
    "claude": ("--print", *_CLAUDE_OPTIONS),
    "codex": ("exec", *_CODEX_OPTIONS, "--sandbox", "danger-full-access"),
    "opencode": ("run", "--format", "json"),
}
OWN_FILES = {
    "claude": ".claude/settings.json",
    "codex": ".codex/bulkhead.config.toml",
    "opencode": ".config/opencode/opencode.json",
}


def environment(home: Path, **more: str) -> dict[str, str]:
    """Of a process that sees a clean home, the agents, and nothing but this machine."""
    inherited = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
    path = os.pathsep.join([str(NPM / ".bin"), os.environ["PATH"]])
    return {**inherited, **_PROXIES, "HOME": str(home), "PATH": path, **more}


def run(
    command: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder with some cargo.

    Raises:
        AssertionError: it failed, and says why.
    """
    (folder / "cargo.txt").write_text(f"{CARGO}\n")
    (folder / "cargo.png").write_bytes(png(RED))
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_ANSWER_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done


def ask(name: str, home: Path, folder: Path, url: str, model: str) -> str:
    """All that an agent prints as events, asked in a folder with some cargo; the last time, if it
    is asked again.

    Raises:
        AssertionError: it failed, and says why.
    """
    home.mkdir(parents=True)
    commands, settings = AGENTS[name](home, url, model)
    said = ""
    for command in commands:
        said = run(command, folder, environment(home, **settings)).stdout
    return said
