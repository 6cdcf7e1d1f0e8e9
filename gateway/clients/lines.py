"""Lines to copy: for a shell that starts an agent, and for editors that are set by hand."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from gateway.clients.agents import AGENTS, KEY_VARIABLE, Agent, Connection


class Lines(Struct, frozen=True):
    """The lines of a client, and where they belong. `remark` says why the client won't work well
    with the model as it is.
    """

    client: str
    title: str
    place: str
    text: str
    remark: str | None = None


class Editor(Struct, frozen=True):
    """An editor, or its extension, that is set by hand."""

    name: str
    title: str
    place: str
    text: Callable[[Connection], str]


def agent_lines(agent: Agent, connection: Connection) -> Lines:
    """Lines that start the agent by hand, in a shell of their own."""
    setup = agent.setup(connection)
    lines = [f"unset {' '.join(setup.removed)}"] if setup.removed else []
    lines += [f"export {name}={shlex.quote(text)}" for name, text in setup.environment.items()]
    lines.append(shlex.join([agent.program, *setup.arguments]))
    place = f"into a terminal, with {agent.title} installed ({agent.install})"
    return Lines(agent.name, agent.title, place, "\n".join(lines), _remark(agent, connection))


def _remark(agent: Agent, connection: Connection) -> str | None:
    if not connection.context_tokens:
        return (
            f"{agent.title} needs {agent.least_tokens:,} tokens of context: how many "
            f"{connection.model} has is not known here."
        )
    if connection.context_tokens >= agent.least_tokens:
        return None
    if 0 < connection.own_context_tokens < agent.least_tokens:
        most = connection.own_context_tokens
        launch = f"bulkhead launch {agent.name} {shlex.quote(connection.model)}"
        return knows_too_little(agent, connection.model, most, f"`{launch} --context {most}`")
    needs = (
        f"{agent.title} needs {agent.least_tokens:,} tokens of context, and {connection.model} has "
        f"{connection.context_tokens:,}"
    )
    if connection.of_upstream:
        return f"{needs}: have the operator of its upstream load it with more."
    return (
        f"{needs}: set context_tokens of the model in the configuration, or start the agent with "
        f"`bulkhead launch {agent.name} {shlex.quote(connection.model)}`, which loads the model "
        "with more if it can."
    )


def knows_too_little(agent: Agent, model: str, most: int, way: str) -> str:
    """What to tell of a model whose own context of `most` tokens is too short for the agent."""
    return (
        f"{agent.title} needs {agent.least_tokens:,} tokens of context, and {model} knows {most:,} "
        f"at most. Choose another model, or try it nevertheless with {way}."
    )


_ZEDS_TOKENS: Final = 32_768


def _zed(connection: Connection) -> str:
    model: dict[str, str | int] = {"name": connection.model}
    # Zed takes no model without a number here.
    model["max_tokens"] = connection.context_tokens or _ZEDS_TOKENS
    if connection.context_tokens:
        model["max_output_tokens"] = connection.answer_tokens
    provider = {"api_url": connection.base_url, "available_models": [model]}
    settings = {"language_models": {"openai_compatible": {"Bulkhead": provider}}}
    return json.dumps(settings, indent=2, ensure_ascii=False)


def _continue(connection: Connection) -> str:
    name = json.dumps(connection.model, ensure_ascii=False)
    lines = [
        "models:",
        f"  - name: {name}",
        "    provider: openai",
        f"    model: {name}",
        f"    apiBase: {connection.base_url}",
        f"    apiKey: {connection.shown_key}",
    ]
    if connection.context_tokens:
        lines += [
            "    defaultCompletionOptions:",
            f"      contextLength: {connection.context_tokens}",
            f"      maxTokens: {connection.answer_tokens}",
        ]
    return "\n".join(lines)


def _others(connection: Connection) -> str:
    tokens = f"{connection.context_tokens} tokens" if connection.context_tokens else "not known"
    return "\n".join(
        (
            f"OpenAI's base URL     {connection.base_url}",
            f"Anthropic's base URL  {connection.url}",
            f"Ollama's host         {connection.url}",
            f"API key               {connection.shown_key}",
            f"model                 {connection.model}",
            f"context               {tokens}",
        )
    )


EDITORS: Final = {
    editor.name: editor
    for editor in (
        Editor(
            "zed",
            "Zed",
            f"into settings.json; the key goes into the variable {KEY_VARIABLE}, or any text",
            _zed,
        ),
        Editor("continue", "Continue", "into ~/.continue/config.yaml", _continue),
        Editor("other", "other clients", "into the client's own settings", _others),
    )
}


def editor_lines(editor: Editor, connection: Connection) -> Lines:
    return Lines(editor.name, editor.title, editor.place, editor.text(connection))


def all_lines(connection: Connection) -> list[Lines]:
    """The lines of every agent and editor."""
    agents = [agent_lines(agent, connection) for agent in AGENTS.values()]
    return [*agents, *(editor_lines(editor, connection) for editor in EDITORS.values())]
