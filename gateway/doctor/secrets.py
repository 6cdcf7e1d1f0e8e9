"""Files that let their reader in: nobody but this account should be one."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from gateway.config.machine_rules import tls_files
from gateway.doctor.finding import Finding, error, ok, warning
from gateway.doctor.installation import Installation

_CHECK = "secrets"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def look_at_secrets(installation: Installation) -> Iterator[Finding]:
    state_dir = installation.state_dir
    findings = [
        *_open(state_dir.admin_key_path, _OTHERS, "whoever reads it may order everything"),
        *_open(state_dir.keys_path, _OTHERS, "it says who has which rights, and hashes of keys"),
    ]
    if (files := tls_files(installation.settings.gateway)) is not None:
        # A group for certificates is common.
        findings += _open(files[1], stat.S_IRWXO, "whoever reads it can pass for this machine")
    yield from findings
    if not findings:
        yield ok(_CHECK, "What there is of keys is readable by this account alone.")


def _open(path: Path, forbidden: int, why: str) -> Iterator[Finding]:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return
    if mode & forbidden:
        say = error if mode & stat.S_IWOTH or path.suffix != ".json" else warning
        yield say(
            _CHECK,
            f"Others have rights to {path} (its mode is {mode:04o}), and {why}.",
            f"`chmod 600 {path}`; if others use this machine, make new keys.",
        )
