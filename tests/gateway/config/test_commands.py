"""Tables of models that are commands."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gateway.config.layers import ConfigError
from gateway.config.model import models_of
from gateway.config.read import Configuration, read_configuration
from gateway.config.settings import Flags
from gateway.memory.commands import estimate_of_command, loading_key
from gateway.memory.fitting import Learned


def _read(folder: Path, table: str) -> Configuration:
    path = folder / "config.toml"
    path.write_text(f"[models.w]\n{table}\n", "utf-8")
    return read_configuration(Flags(config=path), {})


def test_a_program_takes_the_place_of_a_folder(tmp_path: Path) -> None:
    configuration = _read(tmp_path, f'command = ["{Path(sys.executable).name}", "{{port}}"]')
    (model,) = models_of(configuration)
    assert model.is_command
    assert Path(model.source).is_absolute()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('command = ["sh", "serve"]', "neither {port} nor {socket}"),
        ("command = []", "command: it is empty"),
        ('command = "sh -c foo"', "command: expected a list of texts"),
        ('command = ["sh", "{port}", "{prot}"]', "did you mean {port}?"),
        ('command = ["sh", "{port}"]\nfolder = "/no-such-folder"', "no folder /no-such-folder"),
        ('command = ["no-such-program-here", "{port}"]', "no program"),
        ('command = ["sh", "{port}"]\nkv_bits = 4', "kv_bits: only a model with a path"),
        ('path = "demo"\nmemory = "1GB"', "memory: only a model with a command"),
        ('command = ["sh", "{port}"]\npath = "demo"', "path: only a model with a path"),
        ('command = ["sh", "{port}"]\nenvironment = { BULKHEAD_X = "1" }', "no name"),
        ('command = ["sh", "{port}"]\nenvironment = { A = 1 }', "environment.A: expected"),
        ('command = ["sh", "{port}"]\nhealth = "health"', "begins with /"),
        ('command = ["sh", "{port}"]\npaths = ["own"]', "begins with /"),
        ('command = ["sh", "{port}"]\npaths = ["/own", "/a/../own"]', '"/a/../own" is no path'),
        ('command = ["sh", "{port}"]\npaths = ["//own"]', "is no path"),
        ('command = ["sh", "{port}"]\npaths = ["/own/*"]', "All below a path"),
        ('command = ["sh", "{port}"]\npaths = ["/own?x=1"]', "is no path"),
        ('command = ["sh", "{port}"]\nhealth = "//own"', "no path"),
        ('command = ["sh", "{port}"]\nhealth = "/own#a"', "no path"),
        ('command = ["sh", "{port}"]\nname = " "', "is no name"),
        ('command = ["sh", "{port}"]\nfiles = ["here"]', "not an absolute path"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, table: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _read(tmp_path, table)
    assert message in str(caught.value)
    assert "path: It is empty" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://user:secret@box.local/v1", "key_file"),
        ("http://box.local/v1?x=1", "(? or #)"),
        ("http://box.local:99999/v1", "99999 is no port"),
        ("box.local", "is no address of a server"),
        ("", "is no address of a server"),
    ],
)
def test_the_address_of_an_upstream_is_judged_without_its_password(
    tmp_path: Path, url: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        _read(tmp_path, f'path = "demo"\n[upstreams.y]\nurl = "{url}"')
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_key_file_holds_a_key_and_is_named_for_key(tmp_path: Path) -> None:
    file = tmp_path / "box.key"
    file.write_text("The key desk, shown this once: sk-bulkhead-x\n")
    file.chmod(0o600)
    table = 'path = "demo"\n[upstreams.y]\nurl = "http://box.local/v1"\n'
    with pytest.raises(ConfigError, match="holds no key, which is one word"):
        _read(tmp_path, f'{table}key_file = "{file}"')
    file.write_text("sk-bulkhead-x\n")
    _read(tmp_path, f'{table}key_file = "{file}"')
    with pytest.raises(ConfigError, match=r"did you mean key_file\?"):
        _read(tmp_path, f'{table}key = "abc"')


def test_commands_memory_is_configured_else_measured_else_files(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "a").write_bytes(b"x" * 1000)
    command = 'command = ["sh", "{port}"]\n'
    learned = Learned(tmp_path / "learned.json")

    def basis_and_bytes(table: str) -> tuple[str, int]:
        (model,) = models_of(_read(tmp_path, command + table))
        estimated = estimate_of_command(model.settings, learned)
        return estimated.basis, estimated.bytes

    assert basis_and_bytes('memory = "3GB"') == ("configured", 3_000_000_000)
    files = f'files = ["{weights}"]'
    basis, size = basis_and_bytes(files)
    assert basis == "files"
    assert size > 1000
    assert basis_and_bytes("")[0] == "assumed"
    (model,) = models_of(_read(tmp_path, command + files))
    learned.put(estimate_of_command(model.settings, learned).key, 1001)
    assert basis_and_bytes(files) == ("measured", 1001)
    assert basis_and_bytes("")[0] == "assumed", "another command has other measurements"


def test_a_run_that_held_less_than_its_files_has_mapped_them(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    with weights.open("wb") as file:
        file.truncate(40_000_000_000)
    command = f'command = ["sh", "{{port}}"]\nfiles = ["{weights}"]'
    learned = Learned(tmp_path / "learned.json")
    (model,) = models_of(_read(tmp_path, command))
    first = estimate_of_command(model.settings, learned)

    learned.put(first.key, 1_500_000_000)
    assert estimate_of_command(model.settings, learned) == first
    assert first.bytes == 40_500_000_000
    learned.put(loading_key(first.key), 41_000_000_000)
    assert estimate_of_command(model.settings, learned).bytes == 41_000_000_000
    learned.put(first.key, 42_000_000_000)
    assert estimate_of_command(model.settings, learned).basis == "measured"


def test_memory_of_failed_start_only_raises_estimate(tmp_path: Path) -> None:
    command = 'command = ["sh", "{port}"]\n'
    learned = Learned(tmp_path / "learned.json")
    (model,) = models_of(_read(tmp_path, command))
    key = estimate_of_command(model.settings, learned).key

    learned.put(loading_key(key), 15_000_000)
    assert estimate_of_command(model.settings, learned).basis == "assumed"
    learned.put(loading_key(key), 4_100_000_000)
    assert estimate_of_command(model.settings, learned).bytes == 4_100_000_000
    learned.put(key, 4_300_000_000)
    assert estimate_of_command(model.settings, learned).bytes == 4_300_000_000

    (configured,) = models_of(_read(tmp_path, f'{command}memory = "60MB"'))
    basis_and_bytes = estimate_of_command(configured.settings, learned)
    assert basis_and_bytes.bytes == 60_000_000
    assert basis_and_bytes.why.endswith("an earlier run held 4.3 GB: raise `memory`")
    (enough,) = models_of(_read(tmp_path, f'{command}memory = "4.2GB"'))
    assert estimate_of_command(enough.settings, learned).too_small is None
