"""Mistakes in the tables of upstreams."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.layers import ConfigError
from gateway.config.read import read_configuration, read_settings
from gateway.config.settings import Flags
from gateway.config.tables import changes

URL = "http://box:8642/v1"


def _mistakes(folder: Path, table: str, name: str = "box") -> list[str]:
    file = folder / "config.toml"
    file.write_text(f"[upstreams.{name}]\n{table}\n", "utf-8")
    try:
        read_configuration(Flags(config=file), {})
    except ConfigError as error:
        return [str(mistake).removeprefix(f"{file}:") for mistake in error.mistakes]
    return []


@pytest.mark.parametrize(
    "url",
    ["http://box", "https://box.local:8642/v1", "http://[::1]:8642/v1/", "http://10.0.0.2:80/a/b"],
)
def test_addresses(tmp_path: Path, url: str) -> None:
    assert _mistakes(tmp_path, f'url = "{url}"') == []


@pytest.mark.parametrize(
    "url",
    [
        *("box", "box:8642", "ftp://box", "http://", "http://box/v1?key=1", "http://a b/"),
        *("http://me:secret@box/v1", "http://box:65536/v1", "http://box/v1#a"),
    ],
)
def test_invalid_address_is_reported_without_secret(tmp_path: Path, url: str) -> None:
    (mistake,) = _mistakes(tmp_path, f'url = "{url}"')
    assert "expected an address such as https://box" in mistake
    assert "secret" not in mistake


@pytest.mark.parametrize("name", ['"a/b"', '"a b"', '".a"'])
def test_names_that_a_model_s_id_could_not_begin_with(tmp_path: Path, name: str) -> None:
    (mistake,) = _mistakes(tmp_path, f'url = "{URL}"', name)
    assert "is no name of an upstream" in mistake


def test_files(tmp_path: Path) -> None:
    key, certificate = tmp_path / "box.key", tmp_path / "box.crt"
    certificate.write_text("nothing")
    missing, broken = _mistakes(
        tmp_path,
        f'url = "https://box/v1"\nkey_file = "{key}"\ncertificate = "{certificate}"',
    )
    assert f"there is no file {key}" in missing
    assert "has no certificate in PEM" in broken
    key.touch(0o644)
    (mistake,) = _mistakes(tmp_path, f'url = "{URL}"\nkey_file = "{key}"')
    assert "others have rights to it" in mistake
    plain = _mistakes(tmp_path, f'url = "{URL}"\ncertificate = "{certificate}"')
    assert any("only an address with https has one" in text for text in plain)


def test_a_reload_takes_a_changed_one(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[upstreams.box]\nurl = "{URL}"\n', "utf-8")
    old = read_settings(Flags(config=file), {})
    file.write_text(f'[upstreams.den]\nurl = "{URL}"\n', "utf-8")
    found = changes(old, read_settings(Flags(config=file), {}))
    assert found.live == ("upstreams.den", "upstreams.box")
    assert found.restart == ()
