"""What a model of several ranks needs beside right values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.config.layers import ConfigError
from gateway.config.model_folders import DEMO_FOLDER
from gateway.config.model_settings import HostSettings, RankPlace
from gateway.config.read import read_configuration
from gateway.config.settings import Flags, Settings

CONFIG = json.loads((DEMO_FOLDER / "config.json").read_text())
HEADS = CONFIG["num_attention_heads"]


def _mistakes(folder: Path, text: str) -> list[str]:
    file = folder / "config.toml"
    file.write_text(text, "utf-8")
    try:
        read_configuration(Flags(config=file), {})
    except ConfigError as error:
        return [str(mistake).removeprefix(f"{file}:") for mistake in error.mistakes]
    return []


HOST = '[hosts.studio2]\nssh = "me@studio2"\n'


def _model(path: str | Path, keys: str) -> str:
    return f'[models.a]\npath = "{path}"\n{keys}\n'


def test_unknown_host_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    hosts = HOST + HOST.replace("studio2", "local", 1)
    mistakes = _mistakes(
        tmp_path, hosts + _model("demo", 'ranks = [{ host = "local" }, { host = "studio3" }]')
    )
    assert any(line.endswith('known are "local", "studio2".') for line in mistakes), mistakes


@pytest.mark.parametrize("ssh", ["", "-oProxyCommand=sh", "two words", "a\\nb"])
def test_destination_that_ssh_would_misread_is_a_mistake(tmp_path: Path, ssh: str) -> None:
    (mistake,) = _mistakes(tmp_path, f'[hosts.studio2]\nssh = "{ssh}"\n')
    assert "is no destination for ssh" in mistake


def test_host_without_a_destination_or_a_command_is_one_mistake(tmp_path: Path) -> None:
    (mistake,) = _mistakes(tmp_path, "[hosts.studio2]\n")
    assert "hosts.studio2.ssh: it is missing" in mistake
    (mistake,) = _mistakes(tmp_path, '[hosts.studio2]\nssh = "studio2"\ncommand = " "\n')
    assert "hosts.studio2.command: it is empty" in mistake


class TestHostFile:
    def _settings(self, folder: Path, content: object, keys: str = "", hosts: str = "") -> Settings:
        (folder / "hosts.json").write_text(json.dumps(content))
        file = folder / "config.toml"
        model = _model("demo", f'hostfile = "{folder}/hosts.json"\n{keys}')
        file.write_text(hosts + model, "utf-8")
        return read_configuration(Flags(config=file), {}).settings

    def test_machines_become_ranks_and_hosts(self, tmp_path: Path) -> None:
        machines = [
            {"ssh": "studio1", "ips": ["10.0.0.1"]},
            {"ssh": "me@studio2", "ips": ["10.0.0.2", "10.0.1.2"]},
        ]
        settings = self._settings(tmp_path, machines)
        assert settings.models["a"].ranks == (
            RankPlace("local", ("10.0.0.1",)),
            RankPlace("studio2", ("10.0.0.2", "10.0.1.2")),
        )
        assert settings.hosts == {"studio2": HostSettings(ssh="me@studio2")}

    def test_table_of_a_machine_is_used(self, tmp_path: Path) -> None:
        hosts = HOST.replace("[hosts.studio2]", "[hosts.big]")
        settings = self._settings(tmp_path, [{"ssh": "x"}, {"ssh": "me@studio2"}], hosts=hosts)
        assert [place.host for place in settings.models["a"].places] == ["local", "big"]
        assert list(settings.hosts) == ["big"]

    def test_devices_are_the_interfaces_of_jaccl(self, tmp_path: Path) -> None:
        machines = [
            {"ssh": "studio1", "ips": ["10.0.0.1"], "rdma": [None, "rdma_en2"]},
            {"ssh": "studio2", "ips": [], "rdma": [["rdma_en3", "rdma_en4"], None]},
        ]
        settings = self._settings(tmp_path, {"backend": "jaccl", "envs": [], "hosts": machines})
        model = settings.models["a"]
        assert model.backend == "jaccl"
        assert [place.interfaces for place in model.places] == [("rdma_en2",), ("rdma_en3",)]

    @pytest.mark.parametrize(
        ("content", "reason"),
        [
            ("{", "is no host file of mlx.launch"),
            ("[]", "names no machine"),
            ('[{"ips": []}]', "is no host file of mlx.launch"),
            ('{"backend": "mpi", "hosts": [{"ssh": "a"}]}', "known are"),
        ],
    )
    def test_wrong_file_is_a_mistake(self, tmp_path: Path, content: str, reason: str) -> None:
        (tmp_path / "hosts.json").write_text(content)
        (mistake,) = _mistakes(tmp_path, _model("demo", f'hostfile = "{tmp_path}/hosts.json"'))
        assert mistake.startswith('3: models."a".hostfile: ')
        assert reason in mistake

    def test_missing_file_is_a_mistake(self, tmp_path: Path) -> None:
        (mistake,) = _mistakes(tmp_path, _model("demo", f'hostfile = "{tmp_path}/hosts.json"'))
        assert "can't be read: No such file" in mistake

    def test_ranks_beside_a_file_are_a_mistake(self, tmp_path: Path) -> None:
        (tmp_path / "hosts.json").write_text('[{"ssh": "a"}]')
        model = _model("demo", f'hostfile = "{tmp_path}/hosts.json"\nlocal = 2')
        (mistake,) = _mistakes(tmp_path, model)
        assert "say already how many processes there are" in mistake


class TestHeads:
    def test_a_number_that_divides_them(self, tmp_path: Path) -> None:
        assert _mistakes(tmp_path, _model("demo", "local = 2")) == []

    def test_a_number_that_does_not(self, tmp_path: Path) -> None:
        reason = (
            f"the model can't be split over 3 ranks by tensors: its num_attention_heads is {HEADS},"
            ' which 3 doesn\'t divide; choose a number that does, or split = "pipeline".'
        )
        (mistake,) = _mistakes(tmp_path, _model("demo", "local = 3"))
        assert mistake == f'3: models."a".local: {reason}'
        ranks = ", ".join(f'{{ host = "{text}" }}' for text in ("local", "studio2", "studio2"))
        (mistake,) = _mistakes(tmp_path, HOST + _model("demo", f"ranks = [{ranks}]"))
        assert mistake == f'5: models."a".ranks: {reason}'

    def test_layers_are_no_heads(self, tmp_path: Path) -> None:
        assert _mistakes(tmp_path, _model("demo", 'local = 3\nsplit = "pipeline"')) == []

    @pytest.mark.parametrize("content", ["[]", "{", '{"num_attention_heads": "many"}'])
    def test_unreadable_config_json_is_left_to_load(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "config.json").write_text(content)
        assert _mistakes(tmp_path, _model(tmp_path, "local = 3")) == []

    def test_files_that_are_missing_are_one_mistake(self, tmp_path: Path) -> None:
        (mistake,) = _mistakes(tmp_path, _model("/nowhere", "local = 3"))
        assert "There is no model folder" in mistake
