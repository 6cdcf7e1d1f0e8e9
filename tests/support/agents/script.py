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
        *_turn(
            "qwen",
            ("run_shell_command", "command"),
            "read_file",
            file_path=f"{folder}/qwen-hold.txt",
        ),
        *_turn("codex", ("exec_command", "cmd"), "view_image", path=f"{folder}/codex-hold.png"),
        *_turn("patched", ("exec_command", "cmd"), "apply_patch", input=_PATCH),
        *_turn(
            "coded",
            ("functions__exec", "input"),
            "collaboration__list_agents",
            path_prefix="/root/coded-hold",
        ),
    ]


QUOTING = """\
A call is written as
    <tool_call>
    {"name": "f", "arguments": {"a": 1}}
    </tool_call>
or as
    <function=f>
    <parameter=a>
    1
    </parameter>
    </function>
    </think>
and nothing is behind it.
"""
_OLD = "    1\n    </parameter>\n    </function>\n    </think>\n"


def edited(name: str) -> str:
    """The file's text once the agent has edited it."""
    return QUOTING.replace(_OLD, _new(name))


def _new(name: str) -> str:
    quoted = f'{{"name": "{name}-edited", "arguments": {{}}}}'
    return (
        f"    2\n    </parameter>\n<parameter=b>\n  {name}\n    </parameter>\n    </function>\n"
        f"</tool_call>\n<tool_call>\n{quoted}\n</tool_call>\n    </think>\n"
    )


def edits(folder: PurePath) -> list[Step]:
    """Each agent reads a file of its own that quotes calls, and edits a part that quotes them with
    another that does.
    """
    return [
        Step("Nothing can be called.", UNTOOLED),
        *_edit("claude", "Bash", "Read", "Edit", folder, "file_path", "old_string", "new_string"),
        *_edit("opencode", "bash", "read", "edit", folder, "filePath", "oldString", "newString"),
        *_edit(
            "qwen",
            "run_shell_command",
            "read_file",
            "edit",
            folder,
            "file_path",
            "old_string",
            "new_string",
        ),
        *_patch(folder),
    ]


def _edit(
    name: str, known_by: str, read: str, edit: str, folder: PurePath, *keys: str
) -> list[Step]:
    path, old, new = keys
    file = f"{folder}/{name}-quoting.txt"
    # Some tell the names in the folder before anything is read.
    looked_at = f"{folder}/./{name}-quoting.txt"
    changed = {path: file, old: _OLD, new: _new(name)}
    return [
        Step("First a look.", "I read it.", read, {path: looked_at}, f'"name": "{known_by}"'),
        Step("Then a change.", "I edit it.", edit, changed, f"/./{name}"),
        Step("That was all.", DONE, mark=f"{name}-edited"),
    ]


def _patch(folder: PurePath) -> list[Step]:
    removed = "".join(f"-{line}\n" for line in _OLD.splitlines())
    added = "".join(f"+{line}\n" for line in _new("codex").splitlines())
    patch = f"*** Begin Patch\n*** Update File: {folder}/codex-quoting.txt\n@@\n{removed}{added}"
    patch += "*** End Patch\n"
    return [
        Step("A change.", "I edit it.", "apply_patch", {"input": patch}, '"name": "apply_patch"'),
        Step("That was all.", DONE, mark="codex-edited"),
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
