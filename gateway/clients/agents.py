"""Coding agents, and the settings by which each uses a gateway: variables, arguments, its file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from msgspec import Struct

# Clients want some text as a key, also where the gateway wants none.
_NO_KEY: Final = "none"
# An answer may have the context divided by this: the rest is for the prompt.
_ANSWER_DIVISOR: Final = 4
# Claude Code asks for so many by itself, and no agent for more.
_LONGEST_ANSWER_TOKENS: Final = 32_000


class Connection(Struct, frozen=True):
    """A model of the gateway at `url`, which has no path. `context_tokens` is the longest prompt
    and answer; 0: nobody knows it. `key` is an API key; None if the gateway has no keys.
    `of_upstream`: the model is that of an upstream, which decides on its context.
    `own_context_tokens` is the longest context that the model knows; 0: nobody knows it.
    """

    url: str
    model: str
    context_tokens: int
    key: str | None = None
    of_upstream: bool = False
    own_context_tokens: int = 0

    @property
    def base_url(self) -> str:
        """The base URL of OpenAI's clients."""
        return f"{self.url}/v1"

    @property
    def shown_key(self) -> str:
        return _NO_KEY if self.key is None else self.key

    @property
    def answer_tokens(self) -> int:
        """The longest answer that an agent should ask for."""
        return min(_LONGEST_ANSWER_TOKENS, max(1, self.context_tokens // _ANSWER_DIVISOR))


KEY_VARIABLE: Final = "BULKHEAD_API_KEY"
# No agent gets the admin key.
_ADMIN_KEY_VARIABLE: Final = "BULKHEAD_ADMIN_KEY"
_PROVIDER: Final = "bulkhead"


class Setup(Struct, frozen=True):
    """An agent's settings for one run. The agent gets `arguments` before those of the user. It
    doesn't get the `removed` variables: they would lead it elsewhere, or carry a key of another
    service to the gateway.
    """

    environment: dict[str, str]
    arguments: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def applied(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The environment of the agent, made from the present one."""
        removed = {_ADMIN_KEY_VARIABLE, *self.removed}
        inherited = {name: value for name, value in environment.items() if name not in removed}
        return inherited | self.environment


# Values of a JSON file, each by the keys that lead to it.
Values: TypeAlias = dict[tuple[str, ...], Any]


class OwnFile(Struct, frozen=True):
    """The file with an agent's settings for all of its runs. `path` finds the file by the
    environment. `content` makes the settings: values of a JSON file that may have other values, or
    the text of a file that has nothing else. `start` is the command that uses the settings.
    """

    path: Callable[[Mapping[str, str]], Path]
    content: Callable[[Connection], Values | str]
    start: str


class Agent(Struct, frozen=True):
    """A coding agent. npm installs its `package`. With less than `least_tokens` of context the
    agent's own instructions and tools leave no room for work. `wanted_tokens` of context leave room
    for long work.
    """

    name: str
    title: str
    program: str
    package: str
    least_tokens: int
    setup: Callable[[Connection], Setup]
    file: OwnFile
    wanted_tokens: int = 65_536

    @property
    def install(self) -> str:
        """The command that installs the agent."""
        return f"npm install -g {self.package}"


def _values(connection: Connection) -> dict[str, str]:
    model = connection.model
    variables = {
        "ANTHROPIC_BASE_URL": connection.url,
        "ANTHROPIC_AUTH_TOKEN": connection.shown_key,
        "ANTHROPIC_MODEL": model,
        # Subagents and small tasks ask for models by these names.
        "ANTHROPIC_DEFAULT_OPUS_MODEL": model,
        "ANTHROPIC_DEFAULT_SONNET_MODEL": model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": model,
        "CLAUDE_CODE_SUBAGENT_MODEL": model,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    if connection.context_tokens:
        # Conversations are compacted by this. CLAUDE_CODE_AUTO_COMPACT_WINDOW knows no less than
        # 100,000 tokens.
        variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(connection.context_tokens)
        variables["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(connection.answer_tokens)
    return variables


def _claude(connection: Connection) -> Setup:
    variables = _values(connection)
    # Variables in Claude Code's own settings override the environment, and these override both. The
    # key isn't among them: others can see arguments.
    shown = {name: value for name, value in variables.items() if name != "ANTHROPIC_AUTH_TOKEN"}
    return Setup(
        variables,
        ("--settings", _json({"env": shown})),
        (
            "ANTHROPIC_API_KEY",
            "ANTHROPIC_CUSTOM_HEADERS",
            "CLAUDE_CODE_OAUTH_TOKEN",
            "CLAUDE_CODE_USE_BEDROCK",
            "CLAUDE_CODE_USE_FOUNDRY",
            "CLAUDE_CODE_USE_VERTEX",
        ),
    )


def _codex_settings(connection: Connection) -> dict[str, str]:
    """Codex's settings, each as a value in TOML."""
    settings = {"model": _json(connection.model), "model_provider": _json(_PROVIDER)}
    if connection.context_tokens:
        settings["model_context_window"] = str(connection.context_tokens)
    return settings


# A long prompt may be computed for longer than the five minutes that Codex waits by itself.
_CODEX_PATIENCE_MS: Final = 3_600_000


def _codex_provider(connection: Connection) -> dict[str, str]:
    return {
        "name": '"Bulkhead"',
        "base_url": _json(connection.base_url),
        "wire_api": '"responses"',
        "stream_idle_timeout_ms": str(_CODEX_PATIENCE_MS),
    }


def _codex(connection: Connection) -> Setup:
    provider = _codex_provider(connection) | {"env_key": _json(KEY_VARIABLE)}
    inline = ", ".join(f"{key} = {value}" for key, value in provider.items())
    settings = _codex_settings(connection) | {f"model_providers.{_PROVIDER}": f"{{ {inline} }}"}
    arguments = [
        argument for key, value in settings.items() for argument in ("-c", f"{key}={value}")
    ]
    return Setup({KEY_VARIABLE: connection.shown_key}, tuple(arguments))


def _codex_profile(connection: Connection) -> str:
    provider = _codex_provider(connection)
    if connection.key is not None:
        header = _json(f"Bearer {connection.key}")
        provider["http_headers"] = f"{{ Authorization = {header} }}"
    lines = [f"{key} = {value}" for key, value in _codex_settings(connection).items()]
    lines += ["", f"[model_providers.{_PROVIDER}]"]
    lines += [f"{key} = {value}" for key, value in provider.items()]
    return "\n".join(lines) + "\n"


def _opencode_settings(connection: Connection) -> Values:
    name = f"{_PROVIDER}/{connection.model}"
    limit = {"context": connection.context_tokens, "output": connection.answer_tokens}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Bulkhead",
        "options": {
            "baseURL": connection.base_url,
            "apiKey": connection.shown_key,
            # Without this it gives up after five minutes.
            "timeout": False,
        },
        "models": {connection.model: {"limit": limit} if connection.context_tokens else {}},
    }
    return {("model",): name, ("small_model",): name, ("provider", _PROVIDER): provider}


def _opencode(connection: Connection) -> Setup:
    return Setup(
        {
            "OPENCODE_CONFIG_CONTENT": _json(nested(_opencode_settings(connection))),
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
        }
    )


def nested(values: Values, within: dict[str, Any] | None = None) -> dict[str, Any]:
    """The JSON object with these values, and with all others of the object `within`, which is
    changed.
    """
    whole = {} if within is None else within
    for path, value in values.items():
        table = whole
        for key in path[:-1]:
            if not isinstance(table.get(key), dict):
                table[key] = {}
            table = table[key]
        table[path[-1]] = value
    return whole


def _json(value: object) -> str:
    """JSON; of a text this is also a string in TOML."""
    return json.dumps(value, ensure_ascii=False)


def _folder_finder(variable: str, default: str) -> Callable[[Mapping[str, str]], Path]:
    """A function that finds a folder by a variable, or by default in the home folder."""

    def find(environment: Mapping[str, str]) -> Path:
        return Path(environment.get(variable) or Path.home() / default)

    return find


def _file_finder(folder: Callable[[Mapping[str, str]], Path], name: str) -> Callable[..., Path]:
    return lambda environment: folder(environment) / name


AGENTS: Final = {
    agent.name: agent
    for agent in (
        Agent(
            "claude",
            "Claude Code",
            "claude",
            "@anthropic-ai/claude-code",
            32_768,
            _claude,
            OwnFile(
                _file_finder(_folder_finder("CLAUDE_CONFIG_DIR", ".claude"), "settings.json"),
                lambda connection: {
                    ("env", name): value for name, value in _values(connection).items()
                },
                "claude",
            ),
        ),
        Agent(
            "codex",
            "Codex",
            "codex",
            "@openai/codex",
            16_384,
            _codex,
            OwnFile(
                _file_finder(_folder_finder("CODEX_HOME", ".codex"), f"{_PROVIDER}.config.toml"),
                _codex_profile,
                f"codex --profile {_PROVIDER}",
            ),
        ),
        Agent(
            "opencode",
            "opencode",
            "opencode",
            "opencode-ai",
            16_384,
            _opencode,
            OwnFile(
                _file_finder(
                    _folder_finder("XDG_CONFIG_HOME", ".config"), "opencode/opencode.json"
                ),
                _opencode_settings,
                "opencode",
            ),
        ),
    )
}
