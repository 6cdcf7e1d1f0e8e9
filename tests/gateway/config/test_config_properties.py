"""Whatever valid file is written reads as it was meant; any one mistake in it shows at its line."""

from __future__ import annotations

import tomllib
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.inspect import (
    BoolType,
    DictType,
    FloatType,
    IntType,
    LiteralType,
    StrType,
    StructType,
    UnionType,
    VarTupleType,
)

from gateway.config.key import Section, toml_text, written_value
from gateway.config.layers import ConfigError, Mistake
from gateway.config.model_settings import ModelSettings
from gateway.config.read import Configuration, read_configuration
from gateway.config.settings import DiscoverySettings, Flags
from gateway.config.tables import MODELS, SECTIONS, KeyDefinition, keys_of, label
from gateway.config.toml_locations import Place
from tests.support.toml_files import Draw, Plan, Spelled, Written, kind_of, list_of, plans, written

Read = Callable[[str], Configuration]

# A busy machine is no failure.
some = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
_NONE_OF_ANY_KIND = ["1979-05-27", "{}", "{ a = 1 }"]


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Read:
    path = tmp_path_factory.mktemp("properties") / "config.toml"

    def read(text: str) -> Configuration:
        path.write_text(text, "utf-8", newline="")
        return read_configuration(Flags(config=path), {})

    return read


def _only_mistake(read: Read, file: Written) -> Mistake:
    with pytest.raises(ConfigError) as caught:
        read(file.text)
    (mistake,) = caught.value.mistakes
    return mistake


@some
@given(st.data())
def test_a_valid_file_reads_as_it_was_meant(read: Read, data: st.DataObject) -> None:
    plan = data.draw(plans())
    file = data.draw(written(plan))
    configuration = read(file.text)
    assert configuration.settings == plan.settings
    for table, keys in plan.tables.items():
        for name in keys:
            source = configuration.source((*table, name))
            assert source.kind == "file"
            assert source.line == file.lines[*table, name], (table, name)
    given = sum(map(len, plan.tables.values()))
    assert len(configuration.sources) == given


@some
@given(plans())
def test_written_value_reads_back(plan: Plan) -> None:
    for table, keys in plan.tables.items():
        for name, spelled in keys.items():
            shown = tomllib.loads(f"value = {written_value(spelled.meaning)}")["value"]
            assert _definition(table, name).read(shown) == spelled.meaning


@some
@given(st.data())
def test_a_wrong_value(read: Read, data: st.DataObject) -> None:
    plan = data.draw(plans())
    table, name = data.draw(_keys_of(plan))
    definition = _definition(table, name)
    wrong = _wrong(definition)
    if table == (MODELS,):
        # A table there is a model of that name.
        wrong = [text for text in wrong if not text.startswith("{")]
    if len(plan.model_ids) > 1:
        # A folder that is missing is no mistake beside another model.
        wrong = [text for text in wrong if "/nowhere" not in text]
    if name == "split":
        # The default that takes its place may not fit the ranks.
        for key in ("local", "ranks", "backend"):
            plan.tables[table].pop(key, None)
    plan.tables[table][name] = Spelled(data.draw(st.sampled_from(wrong)))
    file = data.draw(written(plan))
    mistake = _only_mistake(read, file)
    assert mistake.source.line == file.lines[*table, name]
    assert mistake.key == label((*table, name))


@some
@given(st.data())
def test_a_wrong_element(read: Read, data: st.DataObject) -> None:
    plan = data.draw(plans())
    table, name = data.draw(
        st.sampled_from(
            [(("gateway",), "allow"), *(((MODELS, i), "aliases") for i in plan.model_ids)]
        )
    )
    elements = ['"/some/place/1"', '"/some/place/2"', '"/some/place/3"']
    index = data.draw(st.integers(0, 2))
    # What names a model already is no alias.
    wrong = [toml_text(plan.model_ids[0])] if name == "aliases" else []
    elements[index] = data.draw(st.sampled_from(["3", "[]", "true", *wrong]))
    plan.tables[table][name] = list_of(data.draw, elements, None)
    file = data.draw(written(plan))
    mistake = _only_mistake(read, file)
    assert mistake.source.line == file.lines[*table, name, index]
    assert mistake.key == label((*table, name))


@some
@given(st.data())
def test_an_unknown_key(read: Read, data: st.DataObject) -> None:
    plan = data.draw(plans())
    # Whatever else is in the table of the models is one of them.
    table = data.draw(st.sampled_from([pair for pair in plan.tables if pair != (MODELS,)]))
    meant = data.draw(st.sampled_from(list(keys_of(_section(table)))))
    slip = data.draw(st.sampled_from([meant + "x", meant[1:], meant.upper(), f"{meant[:-1]} "]))
    plan.tables[table][slip] = Spelled("1")
    file = data.draw(written(plan))
    mistake = _only_mistake(read, file)
    assert mistake.source.line == file.lines[*table, slip]
    assert mistake.key == label((*table, slip))
    assert f"did you mean {meant}" in mistake.message


@some
@given(st.data())
def test_an_unknown_table(read: Read, data: st.DataObject) -> None:
    plan = data.draw(plans())
    plan.tables[("gatway",)] = {"port": Spelled("1")}
    file = data.draw(written(plan))
    mistake = _only_mistake(read, file)
    assert mistake.source.line == file.lines[("gatway",)]
    assert "did you mean gateway" in mistake.message


@some
@given(st.data())
def test_a_missing_key(read: Read, data: st.DataObject) -> None:
    plan = data.draw(plans())
    table: Place = (MODELS, plan.model_ids[0])
    del plan.tables[table]["path"]
    file = data.draw(written(plan))
    mistake = _only_mistake(read, file)
    assert mistake.source.line == file.lines[table]
    assert mistake.key == label((*table, "path"))
    assert "missing" in mistake.message


@some
@given(st.data())
def test_a_line_that_is_not_toml(read: Read, data: st.DataObject) -> None:
    plan = data.draw(plans())
    table, name = data.draw(_keys_of(plan))
    file = data.draw(written(plan, without_equals=(*table, name)))
    mistake = _only_mistake(read, file)
    assert mistake.source.line == file.lines[*table, name]
    assert "not TOML" in mistake.message


@some
@given(st.data())
def test_a_key_given_twice(read: Read, data: st.DataObject) -> None:
    plan = data.draw(plans())
    text = data.draw(written(plan)).text + '[models."the last one"]\npath = "demo"\npath = "demo"\n'
    mistake = _only_mistake(read, Written(text, {}))
    assert mistake.source.line == text.count("\n")
    assert "not TOML" in mistake.message


@st.composite
def _keys_of(draw: Draw, plan: Plan) -> tuple[Place, str]:
    table = draw(st.sampled_from([pair for pair, keys in plan.tables.items() if keys]))
    return table, draw(st.sampled_from(list(plan.tables[table])))


def _definition(table: Place, name: str) -> KeyDefinition:
    return keys_of(_section(table))[name]


def _section(table: Place) -> type[Section]:
    if table[0] == MODELS:
        return DiscoverySettings if table == (MODELS,) else ModelSettings
    return SECTIONS[str(table[0])]


def _wrong(definition: KeyDefinition) -> list[str]:
    """TOML values that the key doesn't take."""
    match kind_of(definition):
        case StrType():
            nowhere = ['"/nowhere/at/all"', '""']
            known = {"host": ['"http://mac.example"', '""']}
            known |= dict.fromkeys(("path", "adapter", "draft_model"), nowhere)
            own = ["1", "true", "[]", *known.get(definition.name, [])]
        case VarTupleType(item_type=StrType()):
            own = ["1", '"x"', "true"]
        case BoolType():
            own = ["1", '"true"', "[]"]
        case LiteralType(values=(int(), *_) as values):
            own = [str(max(values) + 1), f"{values[0]}.0", f'"{values[0]}"', "true", "[]"]
        case LiteralType():
            own = ["1", '"no such word"', '""', "true", "[]"]
        case IntType(ge=least, le=most):
            own = [str(least - 1), str(most + 1), "1.0", '"1"', "true", "[1]", "9" * 30]
        case FloatType(ge=least_s):
            own = ["-1", '"5 minutes"', '"-5s"', '""', "inf", "nan", "1e12", "true", "[]"]
            own += [str(least_s / 2)] if least_s else []
        case UnionType(types=(IntType(ge=least), _)):
            own = ["-1", "1.5", '"much"', '"12XB"', '"101%"', "true", "9" * 30]
            own += ["0", '"0GB"'] if least else ['"auto"', '"50%"']
        case VarTupleType():
            own = ["1", '["local"]', '[{ host = "" }]', '[{ host = "local", port = 1 }]']
            own += ["[{ interfaces = [] }]", '[{ host = "elsewhere" }]']
            return [*own, "1979-05-27", "{}", "{ a = 1 }"]
        case StructType():
            own = ["1", '"x"', "[]", "{ temperature = nan }", "{ temperature = -0.1 }"]
            return [*own, '{ top_k = "1" }', "{ top_k = 1.5 }", "{ top_p = inf }", "{ a = 1 }"]
        case DictType():
            return ["1", '"x"', "[]", "1979-05-27", "{ a = 1979-05-27 }", "{ a = [inf] }"]
        case _:
            raise AssertionError(definition)
    return [*own, *_NONE_OF_ANY_KIND]
