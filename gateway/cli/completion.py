"""bulkhead completion"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

import click
from click.shell_completion import get_completion_class

from gateway.cli.client import GatewayClient
from gateway.cli.failure import CommandError, WrongUseError
from gateway.cli.gateway_access import find_gateway, local_settings

_SHELLS: Final = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(_SHELLS), required=False)
def completion_command(shell: str | None) -> None:
    """Print a script that lets a shell complete verbs, options and models' ids.

    Without SHELL, the script is for the shell in use. Load it in the shell's start file:

    \b
    bash  ~/.bashrc                    eval "$(bulkhead completion bash)"
    zsh   ~/.zshrc, after compinit     eval "$(bulkhead completion zsh)"
    fish  ~/.config/fish/config.fish   bulkhead completion fish | source
    """
    used = shell or Path(os.environ.get("SHELL", "")).name
    script = get_completion_class(used)
    if script is None:
        raise WrongUseError(f"Name the shell: {', '.join(_SHELLS)}.")
    root = click.get_current_context().find_root()
    click.echo(script(root.command, {}, "bulkhead", "_BULKHEAD_COMPLETE").source())


# The longest wait for names: a shell that hangs is worse than no completion.
_DEADLINE_S: Final = 1.0


def model_names(gateway: GatewayClient) -> list[str]:
    """The ids, then the aliases of the gateway's models; empty if the gateway doesn't answer."""
    try:
        models = gateway.models()
    except CommandError:
        return []
    return [
        *(model.id for model in models),
        *(alias for model_body in models for alias in model_body.aliases),
    ]


def complete_model(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Ids and aliases that begin with `incomplete`, of the gateway that the command line names;
    empty if the gateway doesn't answer in time.
    """
    names: list[str] = []

    def ask() -> None:
        try:
            url, params = context.params.get("url"), context.params
            key = params.get("admin_key_file") or params.get("admin_key")
            reach = find_gateway(url, key, *local_settings(None))
            with reach.client() as gateway:
                names.extend(model_names(gateway))
        except Exception:
            # A traceback would spoil the typed line. The verb reports the failure when it runs.
            return

    # A daemon thread: a late answer doesn't delay the end of the process.
    thread = threading.Thread(target=ask, name="completion", daemon=True)
    thread.start()
    thread.join(_DEADLINE_S)
    # Shells split completions at spaces, so names with spaces are left out.
    return [text for text in names if text.startswith(incomplete) and not set(text) & set(" \t")]
