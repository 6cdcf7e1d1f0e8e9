"""Configuration files in every way that TOML lets one write them, and where each key is in them."""

from __future__ import annotations

import atexit
import functools
import json
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from msgspec import Struct, field
from msgspec.inspect import (
    BoolType,
    DictType,
    FloatType,
    IntType,
    LiteralType,
    Metadata,
    NoneType,
    StrType,
    StructType,
    Type,
    UnionType,
    VarTupleType,
    type_info,
)

from gateway.config.key import toml_text, written_value
from gateway.config.model_folders import DEMO_FOLDER
from gateway.config.model_settings import (
    COMMAND_KEYS,
    LOCAL,
    ModelSettings,
    RankPlace,
    SamplingSettings,
)
from gateway.config.settings import HUGGING_FACE, DiscoverySettings, Settings
from gateway.config.tables import MODELS, SECTIONS, KeyDefinition, keys_of
from gateway.config.toml_locations import Place
from tests.support.certificates import lasting_certificate

Draw = Callable[..., Any]

# Not every text is a name, an origin or a folder; hosts beyond loopback need keys.
_OF_A_KIND = {
    "allowed_hosts": ("localhost", "127.0.0.2", "::1"),
    "image_folders": ("/", "~", str(DEMO_FOLDER)),
    "discover": (HUGGING_FACE, "/models", "~/größe", str(DEMO_FOLDER)),
    "allowed_origins": (
        "https://chat.example",
        "http://localhost:3000",
        "http://[::1]:80",
        "null",
        "app://*",
    ),
}

_TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0~"), max_size=12)
# One line without control characters.
_NAME_CHARACTERS = st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp"))
# Ids of others than ASCII letters count several times, and 200 are allowed.
_IDS = st.lists(
    st.text(_NAME_CHARACTERS, min_size=1, max_size=12).filter(
        lambda name: not {".", ".."} & set(name.split("/"))
    ),
    min_size=1,
    max_size=8,
    unique=True,
)


@functools.cache
def _adapter() -> str:
    """A folder with the files of an adapter, as long as the tests run."""
    folder = Path(tempfile.mkdtemp(prefix="bulkhead-adapter-"))
    atexit.register(shutil.rmtree, folder)
    for name in ("adapter_config.json", "adapters.safetensors"):
        (folder / name).touch()
    return str(folder)


# Of keys and values, of the demo model.
_HEADS = json.loads((DEMO_FOLDER / "config.json").read_text())["num_key_value_heads"]
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_COMMENTS = ("", "# port = 1", '# [x] "', "   \t")


class Spelled(Struct):
    """A value in TOML. Of a list, `rows` tells in which line behind the key's each element is."""

    toml: str
    meaning: Any = None
    rows: dict[int, int] = field(default_factory=dict)


class Plan(Struct):
    """What a file says, by table and key, before it is laid out."""

    tables: dict[Place, dict[str, Spelled]]

    @property
    def settings(self) -> Settings:
        meanings = {
            place: {name: key.meaning for name, key in keys.items()}
            for place, keys in self.tables.items()
        }
        return Settings(
            **{name: SECTIONS[name](**meanings[(name,)]) for name in SECTIONS},
            discovery=DiscoverySettings(**meanings.get((MODELS,), {})),
            models={
                str(place[1]): ModelSettings(**keys)
                for place, keys in meanings.items()
                if place[0] == MODELS and place != (MODELS,)
            },
        )

    @property
    def model_ids(self) -> list[str]:
        tables = [place for place in self.tables if place[0] == MODELS and place != (MODELS,)]
        return [str(model_id) for _, model_id in tables]


class Written(Struct):
    """A file, and the line of each table, key and element."""

    text: str
    lines: dict[Place, int]


@st.composite
def plans(draw: Draw) -> Plan:
    """Valid configurations of one to three models in folders, which exist."""
    names = draw(_IDS)
    ids = names[: draw(st.integers(1, 3))]
    aliases = names[len(ids) :]
    tables: dict[Place, dict[str, Spelled]] = {}
    with_tls = draw(st.booleans())
    for table, section in SECTIONS.items():
        tables[(table,)] = {
            name: draw(spelled(definition))
            for name, definition in keys_of(section).items()
            if (with_tls if name.startswith("tls_") else draw(st.booleans()))
        }
    if draw(st.booleans()):
        tables[(MODELS,)] = {
            name: draw(spelled(definition))
            for name, definition in keys_of(DiscoverySettings).items()
            if name not in ids
        }
    for model_id in ids:
        model = {
            name: draw(spelled(definition))
            for name, definition in keys_of(ModelSettings).items()
            # A host file needs a file of its own.
            if name not in ("command", "hostfile", *COMMAND_KEYS)
            and (name == "path" or draw(st.booleans()))
        }
        if "pictures" in model and model["pictures"].meaning:
            model.pop("adapter", None)
            model.pop("draft_model", None)
        if "ranks" in model:
            model.pop("local", None)
        if "ranks" in model or "local" in model:
            for key in ("adapter", "draft_model", "pictures"):
                model.pop(key, None)
            # It takes as many devices of each of them as there are others.
            if "backend" in model and model["backend"].meaning == "jaccl":
                del model["backend"]
            places = model["ranks"].meaning if "ranks" in model else range(model["local"].meaning)
            if places and _HEADS % len(places):
                model["split"] = Spelled('"pipeline"', "pipeline")
        if "aliases" in model:
            own, aliases = aliases[:2], aliases[2:]
            model["aliases"] = draw(spelled_list(own))
        tables[MODELS, model_id] = model
    return Plan(tables)


def kind_of(definition: KeyDefinition) -> Type:
    """The type of a key's values, bounds included; none is no value."""
    found = type_info(definition.type)
    found = found.type if isinstance(found, Metadata) else found
    match found:
        case UnionType(types=(only, NoneType())):
            return only
    return found


@st.composite
def spelled(draw: Draw, definition: KeyDefinition) -> Spelled:
    """A valid value of a key."""
    match kind_of(definition):
        case StrType():
            return draw(spelled_text(draw(_texts(definition.name))))
        case VarTupleType() if definition.name in _OF_A_KIND:
            return draw(spelled_list(draw(st.lists(st.sampled_from(_OF_A_KIND[definition.name])))))
        case VarTupleType(item_type=StrType()):
            return draw(
                spelled_list([str(DEMO_FOLDER), _adapter(), *draw(st.lists(_TEXT, max_size=3))])
            )
        case BoolType():
            value = draw(st.booleans())
            return Spelled(str(value).lower(), value)
        case LiteralType(values=values):
            value = draw(st.sampled_from(values))
            if isinstance(value, str):
                return draw(spelled_text(value))
            return Spelled(str(value), value)
        case IntType(ge=least, le=most):
            number = draw(st.integers(least, most))
            return Spelled(draw(st.sampled_from([str, _underscored]))(number), number)
        case FloatType(ge=least_s):
            return draw(_spelled_time(least_s))
        case VarTupleType():
            places = (RankPlace(LOCAL),) * draw(st.integers(0, 3))
            return Spelled(written_value(places), places)
        case StructType():
            some = {"temperature": st.floats(0, 2), "top_k": st.integers(0, 99)}
            settings = SamplingSettings(**draw(st.fixed_dictionaries({}, optional=some)))
            return Spelled(written_value(settings), settings)
        case DictType():
            names = st.sampled_from(["enable_thinking", "größe", "a b"])
            values = st.booleans() | st.integers(-5, 5) | _TEXT | st.lists(st.booleans())
            table = draw(st.dictionaries(names, values | st.just({"a": 1.5})))
            return Spelled(written_value(table), table)
        case UnionType(types=(IntType(ge=least), _)):
            size = draw(_sizes(automatic=bool(least)))
            return Spelled(written_value(size), size)
    raise AssertionError(definition)


@st.composite
def spelled_text(draw: Draw, value: str) -> Spelled:
    basic = toml_text(value)
    several = "\n".join(toml_text(part)[1:-1] for part in value.split("\n"))
    ways = [basic, f'"""\n{several}"""']
    if "'" not in value and value.isprintable():
        ways.append(f"'{value}'")
    return Spelled(draw(st.sampled_from(ways)), value)


@st.composite
def spelled_list(draw: Draw, values: list[str]) -> Spelled:
    return list_of(draw, [toml_text(value) for value in values], tuple(values))


def list_of(draw: Draw, elements: list[str], meaning: Any) -> Spelled:
    """A list in one line, or in several with comments and a comma too many."""
    if draw(st.booleans()):
        return Spelled(f"[{', '.join(elements)}]", meaning, dict.fromkeys(range(len(elements)), 0))
    lines, rows = ["["], {}
    for index, element in enumerate(elements):
        if comment := draw(st.sampled_from(_COMMENTS)):
            lines.append(comment)
        rows[index] = len(lines)
        lines.append(f"  {element},")
    return Spelled("\n".join([*lines, "]"]), meaning, rows)


@st.composite
def _spelled_time(draw: Draw, least_s: float) -> Spelled:
    if draw(st.booleans()):
        seconds = draw(st.floats(least_s, 315_360_000.0))
        return Spelled(draw(st.sampled_from([repr(seconds), written_value(seconds)])), seconds)
    unit = draw(st.sampled_from(sorted(_UNITS)))
    count = draw(st.integers(100, 3650))
    return Spelled(f'"{count}{unit}"', count * _UNITS[unit])


def _sizes(*, automatic: bool) -> st.SearchStrategy[int | str]:
    sizes = st.one_of(
        st.integers(int(automatic), (1 << 63) - 1),
        st.builds(
            "{}{}".format,
            st.integers(int(automatic), 999),
            st.sampled_from(["", "B", "kB", " GiB"]),
        ),
    )
    shares = st.builds("{}%".format, st.integers(1, 100))
    return st.one_of(sizes, st.just("auto"), shares) if automatic else sizes


def _texts(name: str) -> st.SearchStrategy[str]:
    """Only what is there can be named as a path."""
    models = ["demo", str(DEMO_FOLDER)]
    known = {
        "host": ["127.0.0.1", "127.0.0.2", "::1", "localhost"],
        "path": models,
        "tls_certificate": [lasting_certificate()[0]],
        "tls_key": [lasting_certificate()[1]],
        "draft_model": models,
        "adapter": [_adapter()],
        "endpoint": ["https://huggingface.co", "http://127.0.0.1:8080/hub"],
        "folder": ["/Volumes/models", str(DEMO_FOLDER)],
    }
    return st.sampled_from(known[name]) if name in known else _TEXT


def _underscored(number: int) -> str:
    return f"{number:_}"


@st.composite
def written(draw: Draw, plan: Plan, without_equals: Place | None = None) -> Written:
    """The plan as a file; one key can lose its equals sign."""
    writer = _Writer(draw, without_equals)
    headed = []
    ways = {table: _way(draw, keys) for table, keys in plan.tables.items()}
    # Their table is either begun by keys with dots or has a header, and has models besides.
    if any(place[0] == MODELS and way != "header" for place, way in ways.items()):
        ways[MODELS,] = "dotted"
    for table in draw(st.permutations(list(plan.tables))):
        way = ways[table]
        if way == "header":
            headed.append(table)
        elif way == "dotted":
            writer.dotted(table, plan.tables[table])
        else:
            writer.inline(table, plan.tables[table])
    for table in headed:
        writer.headed(table, plan.tables[table])
    return Written("\n".join(writer.rows) + "\n", writer.lines)


def _way(draw: Draw, keys: dict[str, Spelled]) -> str:
    way = str(draw(st.sampled_from(["header", "header", "dotted", "inline"])))
    return way if keys else "header"


class _Writer:
    def __init__(self, draw: Draw, without_equals: Place | None) -> None:
        self.rows: list[str] = []
        self.lines: dict[Place, int] = {}
        self._draw = draw
        self._without_equals = without_equals

    def headed(self, table: Place, keys: dict[str, Spelled]) -> None:
        self._comment()
        self._open_table(table)
        self.rows.append(f"[{self._name(table)}]")
        for key, value in keys.items():
            self._comment()
            self._pair((*table, key), self._name((key,)), value)

    def dotted(self, table: Place, keys: dict[str, Spelled]) -> None:
        for key, value in keys.items():
            self._comment()
            self._open_table(table)
            self._pair((*table, key), self._name((*table, key)), value)

    def inline(self, table: Place, keys: dict[str, Spelled]) -> None:
        self._comment()
        self._open_table(table)
        self.rows.append(f"{self._name(table)} = {{ ")
        separator = ""
        for key, value in keys.items():
            start = self.rows.pop() + separator
            self._pair((*table, key), start + self._name((key,)), value)
            separator = ", "
        self.rows[-1] += " }"

    def _pair(self, place: Place, name: str, value: Spelled) -> None:
        line = len(self.rows) + 1
        self.lines[place] = line
        for index, row in value.rows.items():
            self.lines[*place, index] = line + row
        equals = " " if place == self._without_equals else " = "
        self.rows.extend(f"{name}{equals}{value.toml}".split("\n"))

    def _open_table(self, table: Place) -> None:
        self.lines.setdefault(table, len(self.rows) + 1)

    def _name(self, place: Place) -> str:
        return ".".join(self._key(str(item)) for item in place)

    def _key(self, key: str) -> str:
        ways = [toml_text(key)]
        if re.fullmatch("[A-Za-z0-9_-]+", key):
            ways.append(key)
        if "'" not in key and key.isprintable():
            ways.append(f"'{key}'")
        return str(self._draw(st.sampled_from(ways)))

    def _comment(self) -> None:
        if self._draw(st.integers(0, 3)) == 0:
            self.rows.append(self._draw(st.sampled_from(_COMMENTS)))
