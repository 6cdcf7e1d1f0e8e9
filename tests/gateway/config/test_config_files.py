"""What is made from the definitions: the example, the schema, the page."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gateway.config.documents import example, key_tables, schema
from gateway.config.key import written_value
from gateway.config.model_settings import HostSettings, ModelSettings
from gateway.config.read import Configuration, read_configuration
from gateway.config.settings import Flags, Settings
from gateway.config.tables import GROUPS, HEADINGS, HOSTS, MODELS, UPSTREAMS, KeyDefinition, keys_of
from tests.support.certificates import write_certificate

PAGE = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text("utf-8")
KEYS = [
    (heading.strip("[]"), definition)
    for heading, section in HEADINGS.items()
    for definition in keys_of(section).values()
]
EACH_KEY = pytest.mark.parametrize(
    ("table", "definition"),
    [pytest.param(*key, id=f"{key[0]}.{key[1].name}") for key in KEYS],
)


def _read(folder: Path, text: str) -> Configuration:
    path = folder / "config.toml"
    path.write_text(text, "utf-8")
    return read_configuration(Flags(config=path), {})


class TestExample:
    def test_it_says_the_defaults(self, tmp_path: Path) -> None:
        settings = _read(tmp_path, example()).settings
        assert settings == Settings(models={"demo": ModelSettings(path="demo")})

    def test_commented_keys_of_example_are_valid(self, tmp_path: Path) -> None:
        for name in ("adapter_config.json", "adapters.safetensors"):
            (tmp_path / name).touch()
        text = re.sub(r"^# (\w+ = |\[)", r"\1", example(), flags=re.MULTILINE)
        text = text.replace("together = false", "together = true")
        text += '[models.coder]\npath = "demo"\n[models.embedder]\npath = "demo"\n'
        text = text.replace("~/adapters/legal", str(tmp_path))
        write_certificate(tmp_path, "mac")
        text = text.replace("~/tls", str(tmp_path))
        (tmp_path / "hosts.json").write_text('[{"ssh": "here"}]')
        text = text.replace("~/hosts.json", f"{tmp_path}/hosts.json")
        upstreams_key = tmp_path / "box.key"
        upstreams_key.touch(0o600)
        upstreams_key.write_text("key")
        text = text.replace("~/box.key", str(upstreams_key))
        text = text.replace("~/box.crt", str(tmp_path / "mac.crt"))
        configuration = _read(tmp_path, text)
        assert len(configuration.sources) == len(KEYS) + 2

    def test_it_fits_a_terminal(self) -> None:
        assert max(map(len, example().splitlines())) <= 80

    @EACH_KEY
    def test_every_key_is_explained(self, table: str, definition: KeyDefinition) -> None:
        names = {"ID": '"demo"', "groups.NAME": "groups.coding", "hosts.NAME": "hosts.studio2"}
        names["upstreams.NAME"] = "upstreams.box"
        head = f"[{table}]"
        for name, named in names.items():
            head = head.replace(name, named)
        section = example().partition(head)[2].partition("\n[")[0]
        words = re.sub(r"\n# ", " ", section)
        assert f"{definition.key.about} {definition.key.expectation}" in words
        assert re.search(rf"^(# )?{definition.name} = ", section, re.MULTILINE)


class TestSchema:
    def test_it_is_a_schema(self) -> None:
        jsonschema.Draft202012Validator.check_schema(schema())

    def test_the_example_is_valid(self) -> None:
        _validate(tomllib.loads(example()))

    @EACH_KEY
    def test_every_key_is_known_and_checked(self, table: str, definition: KeyDefinition) -> None:
        value = _example(definition)
        _validate(_document(table, definition.name, value))
        wrong = [] if isinstance(value, dict) else {"a": 1}
        with pytest.raises(jsonschema.ValidationError):
            _validate(_document(table, definition.name, wrong))
        with pytest.raises(jsonschema.ValidationError):
            _validate(_document(table, definition.name + "x", value))

    @pytest.mark.parametrize(
        "text",
        [
            "gateway = 1",
            "[moon]",
            "[models.a]",
            "[groups.a]\nswap = true",
            '[models.""]\npath = "demo"',
            "[gateway]\nport = -1",
            "[gateway]\nport = 65536",
            '[gateway]\ndrain_s = "5 minutes"',
            "[gateway]\ndrain_s = -1",
            "[gateway]\nallow = [1]",
            "[workers]\nload_timeout_s = 0.05",
            '[memory]\nbudget = "12XB"',
            '[memory]\nheadroom = "75%"',
            '[memory]\nheadroom = "auto"',
        ],
    )
    def test_mistakes(self, text: str) -> None:
        with pytest.raises(jsonschema.ValidationError):
            _validate(tomllib.loads(text))

    @pytest.mark.parametrize(
        "text",
        [
            '[gateway]\ndrain_s = "1h30m"',
            "[gateway]\ndrain_s = 0.5",
            '[memory]\nbudget = "1.5 GiB"\nheadroom = "2kb"',
            '[memory]\nbudget = " 75 %"\nheadroom = "7"',
        ],
    )
    def test_accepted_values_match_schema(self, text: str, tmp_path: Path) -> None:
        _read(tmp_path, text)
        _validate(tomllib.loads(text))


# Made once: `jsonschema.validate` would check the schema itself for each document.
VALIDATOR = jsonschema.Draft202012Validator(schema())


def _validate(document: dict[str, Any]) -> None:
    VALIDATOR.validate(document)


def _example(definition: KeyDefinition) -> Any:
    value = definition.default if definition.default is not None else definition.key.example
    return tomllib.loads(f"value = {written_value(value)}")["value"]


_HOST = {key.name: _example(key) for key in keys_of(HostSettings).values()}


def _document(table: str, name: str, value: Any) -> dict[str, Any]:
    others = {MODELS: {"path": "demo"}, HOSTS: _HOST, GROUPS: {"models": ["b"]}}
    others[UPSTREAMS] = {"url": "http://box:8642/v1"}
    first, _, is_named = table.partition(".")
    if is_named:
        return {first: {"a": {**others[first], name: value}}}
    return {first: {name: value}}


def test_the_page_has_every_key() -> None:
    assert "\n".join(key_tables()) in PAGE
