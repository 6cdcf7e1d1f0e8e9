"""bulkhead completion"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click
from click.shell_completion import get_completion_class

from gateway.cli.failure import WrongUseError

_SHELLS: Final = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(_SHELLS), required=False)
def command(shell: str | None) -> None:
    """Print what lets a shell complete verbs, options and models' ids.

    SHELL is the one in use if it is left out. Put it into the shell's start file:

    \b
    bash  ~/.bashrc                    eval "$(bulkhead completion bash)"
    zsh   ~/.zshrc, after compinit     eval "$(bulkhead completion zsh)"
    fish  ~/.config/fish/config.fish   bulkhead completion fish | source
    """
    used = shell or Path(os.environ.get("SHELL", "")).name
    script = get_completion_class(used)
    if script is None:
        raise WrongUseError(f"Say for which shell; there are: {', '.join(_SHELLS)}.")
    root = click.get_current_context().find_root()
    click.echo(script(root.command, {}, "bulkhead", "_BULKHEAD_COMPLETE").source())
