from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from gateway.clients.agents import AGENTS, Connection
from gateway.clients.own_file import OwnFileError, undo, write

CONNECTION = Connection("http://127.0.0.1:8642", "owner/qwen", 65_536)
OTHER = Connection("https://studio.local", "llama", 32_768, 'a "quoted" key')


def places(home: Path) -> dict[str, str]:
    return {
        "CLAUDE_CONFIG_DIR": str(home / "claude"),
        "CODEX_HOME": str(home / "codex"),
        "XDG_CONFIG_HOME": str(home / "config"),
    }


def put(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("agent", AGENTS.values(), ids=lambda agent: agent.name)
def test_a_file_that_was_not_there_goes_again(agent: Any, tmp_path: Path) -> None:
    for connection in (CONNECTION, OTHER):
        written = write(agent, connection, places(tmp_path))
        assert connection.model in written.path.read_text()
        # It may have a key.
        assert written.path.stat().st_mode & 0o777 == 0o600
    assert undo(agent, places(tmp_path)) == written.path
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    with pytest.raises(OwnFileError, match="nothing of"):
        undo(agent, places(tmp_path))


def test_other_settings_stay(tmp_path: Path) -> None:
    """Also those that were changed since."""
    path = tmp_path / "claude" / "settings.json"
    before = {"env": {"ANTHROPIC_MODEL": "opus", "MINE": "1"}, "theme": "dark"}
    put(path, before)
    write(AGENTS["claude"], CONNECTION, places(tmp_path))
    now = json.loads(path.read_text())
    assert now["theme"] == "dark"
    assert now["env"]["MINE"] == "1"
    assert now["env"]["ANTHROPIC_MODEL"] == "owner/qwen"
    assert now["env"]["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8642"
    put(path, now | {"theme": "light"})
    undo(AGENTS["claude"], places(tmp_path))
    assert json.loads(path.read_text()) == before | {"theme": "light"}


def test_a_table_that_was_removed_meanwhile_stays_away(tmp_path: Path) -> None:
    path = tmp_path / "config" / "opencode" / "opencode.json"
    put(path, {"provider": {"bulkhead": {"old": True}, "other": {}}, "model": "other/one"})
    write(AGENTS["opencode"], CONNECTION, places(tmp_path))
    put(path, {"model": "bulkhead/owner/qwen"})
    undo(AGENTS["opencode"], places(tmp_path))
    assert json.loads(path.read_text()) == {"model": "other/one"}


@pytest.mark.parametrize("content", ['{"model": "x", // mine\n}', "[]", "{"])
def test_a_file_that_is_no_json_object_is_left_alone(content: str, tmp_path: Path) -> None:
    path = tmp_path / "config" / "opencode" / "opencode.json"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(OwnFileError, match=r"opencode\.json"):
        write(AGENTS["opencode"], CONNECTION, places(tmp_path))
    assert path.read_text() == content
    assert list(path.parent.iterdir()) == [path]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    remaining = tmp_path / "dotfiles" / "settings.json"
    put(remaining, {"theme": "dark"})
    link = tmp_path / "claude" / "settings.json"
    link.parent.mkdir()
    link.symlink_to(remaining)
    write(AGENTS["claude"], CONNECTION, places(tmp_path))
    assert link.is_symlink()
    assert "ANTHROPIC_BASE_URL" in remaining.read_text()


def test_codex_has_a_profile_of_its_own(tmp_path: Path) -> None:
    written = write(AGENTS["codex"], OTHER, places(tmp_path))
    assert written.path == tmp_path / "codex" / "bulkhead.config.toml"
    profile = tomllib.loads(written.path.read_text())
    assert profile["model"] == "llama"
    provider = profile["model_providers"][profile["model_provider"]]
    assert provider["base_url"] == "https://studio.local/v1"
    assert provider["http_headers"] == {"Authorization": 'Bearer a "quoted" key'}
