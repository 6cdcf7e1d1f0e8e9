"""What a model of several ranks needs beside right values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.config.layers import ConfigError
from gateway.config.model_folders import DEMO_FOLDER
from gateway.config.read import read_configuration
from gateway.config.settings import Flags

CONFIG = json.loads((DEMO_FOLDER / "config.json").read_text())
HEADS = CONFIG["num_attention_heads"]


@pytest.fixture
def key(tmp_path: Path) -> Path:
    file = tmp_path / "studio2.key"
    file.write_text("secret")
    file.chmod(0o600)
    return file


def _mistakes(folder: Path, text: str) -> list[str]:
    file = folder / "config.toml"
    file.write_text(text, "utf-8")
    try:
        read_configuration(Flags(config=file), {})
    except ConfigError as error:
        return [str(each).removeprefix(f"{file}:") for each in error.mistakes]
    return []


def _host(key: Path) -> str:
    return (
        f'[hosts.studio2]\nurl = "https://studio2:8643"\nkey_file = "{key}"\n'
        f'fingerprint = "{"0" * 64}"\n'
    )


def _model(path: str | Path, keys: str) -> str:
    return f'[models.a]\npath = "{path}"\n{keys}\n'


def test_every_known_host_is_named_once(tmp_path: Path, key: Path) -> None:
    hosts = _host(key) + _host(key).replace("studio2", "local", 1)
    mistakes = _mistakes(
        tmp_path, hosts + _model("demo", 'ranks = [{ host = "local" }, { host = "studio3" }]')
    )
    assert any(each.endswith('known are "local", "studio2".') for each in mistakes), mistakes


class TestKeys:
    def test_key_file_of_own_account_is_accepted(self, tmp_path: Path, key: Path) -> None:
        assert _mistakes(tmp_path, _host(key)) == []

    def test_missing_key_file_is_reported(self, tmp_path: Path, key: Path) -> None:
        key.unlink()
        assert _mistakes(tmp_path, _host(key)) == [
            f"3: hosts.studio2.key_file: there is no file {key}: copy agent.key from the state "
            "folder of the agent."
        ]

    @pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
    def test_key_file_with_open_rights_is_reported(
        self, tmp_path: Path, key: Path, mode: int
    ) -> None:
        key.chmod(mode)
        assert _mistakes(tmp_path, _host(key)) == [
            f"3: hosts.studio2.key_file: {key} can't be used: others have rights to it (its "
            f"mode is {mode:04o}); `chmod 600 {key}`."
        ]

    def test_a_folder_is_none(self, tmp_path: Path) -> None:
        (mistake,) = _mistakes(tmp_path, _host(tmp_path))
        assert f"{tmp_path} can't be read" in mistake


class TestHeads:
    def test_a_number_that_divides_them(self, tmp_path: Path) -> None:
        assert _mistakes(tmp_path, _model("demo", "local = 2")) == []

    def test_a_number_that_does_not(self, tmp_path: Path, key: Path) -> None:
        reason = (
            f"the model can't be split over 3 ranks by tensors: its num_attention_heads is {HEADS},"
            ' which 3 doesn\'t divide; choose a number that does, or split = "pipeline".'
        )
        (mistake,) = _mistakes(tmp_path, _model("demo", "local = 3"))
        assert mistake == f'3: models."a".local: {reason}'
        ranks = ", ".join(f'{{ host = "{each}" }}' for each in ("local", "studio2", "studio2"))
        (mistake,) = _mistakes(tmp_path, _host(key) + _model("demo", f"ranks = [{ranks}]"))
        assert mistake == f'7: models."a".ranks: {reason}'

    def test_layers_are_no_heads(self, tmp_path: Path) -> None:
        assert _mistakes(tmp_path, _model("demo", 'local = 3\nsplit = "pipeline"')) == []

    @pytest.mark.parametrize("content", ["[]", "{", '{"num_attention_heads": "many"}'])
    def test_unreadable_config_json_is_left_to_load(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "config.json").write_text(content)
        assert _mistakes(tmp_path, _model(tmp_path, "local = 3")) == []

    def test_files_that_are_missing_are_one_mistake(self, tmp_path: Path) -> None:
        (mistake,) = _mistakes(tmp_path, _model("/nowhere", "local = 3"))
        assert "There is no model folder" in mistake
