"""What the scripted model does with each agent: it has the cargo copied by a shell, looks at the
copy with another tool, and is done. It knows an agent by a tool that no other one offers.
"""

from __future__ import annotations

import json
from pathlib import PurePath

from tests.support.scripted.model import Step

CARGO = "twelve crates of oranges"
DONE = "The cargo is copied."
UNTOOLED = "A talk about cargo"
_PATCH = f"*** Begin Patch\n*** Add File: patched-hold.txt\n+{CARGO}\n*** End Patch\n"


def script(folder: PurePath) -> list[Step]:
    """`folder` is where the agents work."""
    return [
        Step("Nothing can be called.", UNTOOLED),
        *_turn("claude", ("Bash", "command"), "Read", file_path=f"{folder}/claude-hold.txt"),
        *_turn("opencode", ("bash", "command"), "read", filePath=f"{folder}/opencode-hold.txt"),
        *_turn("codex", ("exec_command", "cmd"), "view_image", path=f"{folder}/codex-hold.png"),
        *_turn("patched", ("exec_command", "cmd"), "apply_patch", input=_PATCH),
        *_turn(
            "coded",
            ("functions__exec", "input"),
            "collaboration__list_agents",
            path_prefix="/root/coded-hold",
        ),
    ]


def _turn(name: str, shell: tuple[str, str], second: str, **arguments: str) -> list[Step]:
    tool, parameter = shell
    # Codex has a shell with each of its second tools.
    known_by = second if name == "patched" else tool
    # The shell puts the name of the copy together: whole it marks the last step.
    copy = f"echo anchor-of-{name}; for who in {name}; do "
    copy += 'for kind in txt png; do cp cargo.$kind "$who-hold.$kind"; done; done'
    called = {parameter: copy}
    if parameter == "command":
        called["description"] = "Copy the cargo"
    elif parameter == "input":
        # A program gets at the shell.
        called["input"] = f"text((await tools.exec_command({json.dumps({'cmd': copy})})).output)"
    return [
        Step("First a copy.", "I copy the cargo.", tool, called, f'"name": "{known_by}"'),
        Step("Then a look.", "I look at it.", second, arguments, f"anchor-of-{name}"),
        Step("That was all.", DONE, mark=f"{name}-hold"),
    ]
