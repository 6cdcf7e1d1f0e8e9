"""The model of a launched client: whether it may be used, and with how much context."""

from __future__ import annotations

import click

from gateway.cli.client import DISKS, GatewayClient, KeyRefusedError, Query, quoted
from gateway.cli.failure import CommandError
from gateway.cli.options import only_model
from gateway.cli.orders import carried_out
from gateway.cli.output import printable
from gateway.clients.agents import KEY_VARIABLE, Agent
from gateway.clients.lines import knows_too_little
from gateway.http.wire.command_bodies import ModelBody, OrderOptions
from gateway.memory.fitting import LONGEST_CONTEXT_TOKENS, Outline
from gateway.memory.forecast import Forecast
from gateway.system.notation import format_size


def find_model(gateway: GatewayClient, name: str | None, key: str | None) -> ModelBody:
    """The model with this id or alias, as the client sees it with its API key; without a name the
    only model.

    Raises:
        CommandError: there is no such model for that key, or the gateway wants another key.
    """
    with gateway.with_key(key) as caller:
        try:
            return caller.model(only_model(caller) if name is None else name)
        except KeyRefusedError as error:
            raise CommandError(
                f"The gateway at {gateway.url} wants an API key of its own: `bulkhead key add NAME`"
                f" makes one; give it with --api-key-file or {KEY_VARIABLE}."
            ) from error


def present_context(gateway: GatewayClient, model: ModelBody) -> int | None:
    """The context in force, in tokens; of a model that isn't loaded, the one it would be loaded
    with. 0: nobody knows, as of a command. None: the gateway doesn't tell.
    """
    if model.max_model_len is not None:
        return model.max_model_len
    outline = None if model.is_upstreams else _outline(gateway, model.id, None)
    return None if outline is None else outline.granted_context_tokens


def own_context(gateway: GatewayClient, model: ModelBody) -> int:
    """The longest context that the model knows, in tokens; 0: nobody here knows."""
    outline = None if model.is_upstreams else _outline(gateway, model.id, LONGEST_CONTEXT_TOKENS)
    return 0 if outline is None else outline.context_tokens


def load_for(gateway: GatewayClient, agent: Agent, model: ModelBody, tokens: int | None) -> int:
    """Load the model with `tokens` of context, or with those that the agent wants, as far as they
    fit. Return the context in force. Says on stderr what the context costs.

    Raises:
        CommandError: the agent can't work with the context that fits, or the load failed.
    """
    wanted = tokens or agent.wanted_tokens
    # An upstream loads its own models, and only the admin key may order a load here: then the first
    # question loads the model.
    outline = None if model.is_upstreams else _outline(gateway, model.id, wanted)
    if outline is not None and not outline.context_tokens and outline.verdict != "doesn't fit":
        # The server of a command has its own context, which no order changes.
        carried_out(gateway, "load", model.id, OrderOptions())
        outline = None
    if outline is None:
        context_tokens = model.max_model_len or wanted
        if tokens is None and context_tokens < agent.least_tokens:
            raise CommandError(
                f"{agent.title} needs {agent.least_tokens:,} tokens of context, and {model.id} has "
                f"{context_tokens:,}, which can't be changed from here. Have its operator load "
                f"it with more, or try it nevertheless with --context {context_tokens}."
            )
        _say(
            f"{model.id} is used as it is: what its context costs is not known here. "
            f"{agent.title} is told {context_tokens:,} tokens."
        )
        return context_tokens
    if outline.verdict == "doesn't fit":
        raise CommandError(
            f"{model.id} doesn't fit: its floor is {format_size(outline.needed_bytes)}, and "
            f"{format_size(outline.possible_bytes)} is available."
        )
    granted = outline.granted_context_tokens
    longest = _outline(gateway, model.id, LONGEST_CONTEXT_TOKENS)
    if tokens is None and granted < agent.least_tokens:
        raise CommandError(_too_short(agent, model.id, outline, longest))
    _say(_costs(model.id, outline, longest))
    order = OrderOptions(context_tokens=granted)
    status = carried_out(gateway, "load", model.id, order)
    in_force = status.context_tokens or granted
    if in_force < granted:
        _say(f"Other models hold memory now, so {in_force:,} tokens of context are in force.")
    return in_force


def _outline(gateway: GatewayClient, model_id: str, tokens: int | None) -> Outline | None:
    """The gateway's estimate with this context, or with the configured one. None: it has none, or
    tells it to the admin key alone.
    """
    path = f"/admin/v1/models/{quoted(model_id)}/estimate"
    query: Query = {} if tokens is None else {"context_tokens": tokens}
    try:
        return gateway.read(gateway.get(path, DISKS, query), Forecast).outline
    except KeyRefusedError:
        return None


def _costs(model_id: str, outline: Outline, longest: Outline | None) -> str:
    granted = outline.granted_context_tokens
    full = format_size(granted * outline.token_bytes)
    said = (
        f"{model_id}: {granted:,} tokens of context take {full} when they are full, beside "
        f"{format_size(outline.idle_bytes)} of process and weights."
    )
    if longest is None or longest.granted_context_tokens <= granted:
        return said
    return f"{said} Up to {longest.granted_context_tokens:,} would fit (--context)."


def _too_short(agent: Agent, model_id: str, outline: Outline, longest: Outline | None) -> str:
    own = outline if longest is None else longest
    granted = outline.granted_context_tokens
    if own.context_tokens <= granted:
        return knows_too_little(agent, model_id, granted, f"--context {granted}")
    return (
        f"{agent.title} needs {agent.least_tokens:,} tokens of context, and {granted:,} of "
        f"{model_id} fit into the {format_size(outline.possible_bytes)} that it can have. Choose a "
        "smaller model, or kv_bits for this one, or try it nevertheless with --context "
        f"{granted}."
    )


def _say(text: str) -> None:
    click.echo(printable(text), err=True)
