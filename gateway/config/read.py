"""File, environment and flags to one configuration; every mistake at once."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import platformdirs

from gateway.config.group_rules import group_complaints
from gateway.config.keys import (
    DISCOVERY_KEYS,
    GROUP_KEYS,
    GROUPS,
    HOST_KEYS,
    HOSTS,
    KEYS,
    MODEL_KEYS,
    MODELS,
    SECTIONS,
    TABLES,
    Definition,
    definitions,
    label,
)
from gateway.config.kinds import UnexpectedError, toml_text
from gateway.config.locations import Locations, Place
from gateway.config.mistakes import Mistake, Source
from gateway.config.models import find_adapter, find_draft, find_model, model_from_flag
from gateway.config.network import TLS_PLACES, network_complaints
from gateway.config.places import Places, Sought
from gateway.config.ranks import heads_complaints, key_complaints
from gateway.config.rules import complaints
from gateway.config.settings import (
    ConfigError,
    DiscoverySettings,
    Flags,
    GroupSettings,
    HostSettings,
    ModelSettings,
    Settings,
)
from gateway.config.toml_file import Document, UnreadableError, read_document
from gateway.nearest import nearest

_SHOWN_CHARACTERS: Final = 40
# The table of each key; no two have one of the same name.
_HOMES: Final = {
    definition.name: "[groups.NAME]"
    if table == GROUPS
    else "[models.ID]"
    if definition.name in MODEL_KEYS
    else "[hosts.NAME]"
    if table == HOSTS
    else f"[{table}]"
    for table, definition in definitions()
}
# What finds the folders that models' keys name.
_LOOKS: Final[dict[str, Callable[[str, tuple[str, ...]], str]]] = {
    "path": find_model,
    "adapter": find_adapter,
    "draft_model": find_draft,
}


class Located(msgspec.Struct, frozen=True):
    """What a worker is to load, by the names of the keys: absolute folders; of the model itself it
    may be a repository in the Hugging Face cache.
    """

    path: str
    adapter: str | None = None
    draft_model: str | None = None


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """What is in force, and why.

    `file` is the one that was read, and `digest` tells its content from another. `located` has what
    workers are to load, by the models' ids.
    `sources` has the keys that were given: the others have their defaults. `discovered` are the
    models that nobody has named.
    """

    settings: Settings
    file: Path | None
    digest: str | None
    located: dict[str, Located]
    sources: dict[Place, Source]
    discovered: frozenset[str] = frozenset()

    def source(self, place: Place) -> Source:
        return self.sources.get(place, Source("default"))


def read_settings(flags: Flags, environment: Mapping[str, str]) -> Settings:
    """The settings in force: flags go before the environment, and that before the file.

    Whether the models are there is not asked.

    Raises:
        ConfigError: with every mistake found.
    """
    draft = _Draft(flags, environment)
    settings = draft.settings()
    draft.raise_mistakes()
    return settings


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration with its mistakes. In place of wrong values there are defaults; models whose
    path is wrong or missing are left out. `file` is None if none was read.
    """

    settings: Settings
    file: Path | None
    digest: str | None
    mistakes: list[Mistake]


def read_draft(flags: Flags, environment: Mapping[str, str]) -> Draft:
    """What can be made of a configuration. Whether the models are there is not asked."""
    draft = _Draft(flags, environment)
    settings = draft.settings()
    return Draft(
        settings=draft.without_lost(settings),
        file=draft.file,
        digest=draft.digest,
        mistakes=draft.mistakes,
    )


def config_in_force(flags: Flags, environment: Mapping[str, str]) -> Path:
    """The file that `read_settings` reads; the default one need not exist."""
    return _file_and_source(flags, environment)[0]


def _file_and_source(flags: Flags, environment: Mapping[str, str]) -> tuple[Path, Source | None]:
    """The file, and who names it; None: nobody, it is the platform's and need not exist."""
    if flags.config is not None:
        return flags.config, Source("flag", "--config")
    if variable := environment.get("BULKHEAD_CONFIG"):
        return Path(variable), Source("environment", "BULKHEAD_CONFIG")
    return platformdirs.user_config_path("bulkhead") / "config.toml", None


def read_configuration(
    flags: Flags, environment: Mapping[str, str], places: Places | None = None
) -> Configuration:
    """The same with the places of the models, which must be there, and each value's source. Whoever
    reads it again brings `places` along.

    Raises:
        ConfigError: with every mistake found.
    """
    draft = _Draft(flags, environment)
    settings = draft.settings()
    places = places or Places()
    draft.check_network(settings, places)
    located = draft.locate_models(settings, places)
    draft.check_ranks(settings, located, places)
    draft.raise_mistakes()
    return Configuration(
        settings=settings,
        file=draft.file,
        digest=draft.digest,
        located=located,
        sources=draft.sources(),
    )


def raise_misfits(configuration: Configuration, found: Iterable[tuple[str, str]]) -> None:
    """Raises: ConfigError, if there are any: groups by their names, and why they can't be had."""
    mistakes = []
    for name, why in found:
        place = (GROUPS, name, "models")
        mistakes.append(Mistake(configuration.source(place), label(place), _sentence(why)))
    if mistakes:
        raise ConfigError(mistakes)


class _Draft:
    """Tables on their way to settings, where each value came from, and what is wrong."""

    def __init__(self, flags: Flags, environment: Mapping[str, str]) -> None:
        self._mistakes: list[Mistake] = []
        self._origins: dict[Place, Source] = {}
        self._given: list[Place] = []
        self._wrong: set[Place] = set()
        self.file: Path | None = None
        self.digest: str | None = None
        self._document = self._read_file(flags, environment)
        self._tables = self._document.tables
        # A variable that is set to nothing is one that isn't set.
        variable = Source("environment", "BULKHEAD_STATE_DIR")
        self._overlay(variable, "gateway", "state_dir", environment.get(variable.name) or None)
        flagged_dir = None if flags.state_dir is None else str(flags.state_dir)
        self._overlay(Source("flag", "--state-dir"), "gateway", "state_dir", flagged_dir)
        self._overlay(Source("flag", "--host"), "gateway", "host", flags.host)
        self._overlay(Source("flag", "--port"), "gateway", "port", flags.port)
        self._overlay(Source("flag", "--memory-budget"), "memory", "budget", flags.memory_budget)
        self._overlay(Source("flag", "--spare"), "workers", "spare", flags.spare)
        for text in flags.models:
            self._add_model(text)

    def settings(self) -> Settings:
        """The settings, with defaults in place of what is wrong."""
        sections: dict[str, Any] = {}
        hosts: dict[str, HostSettings] = {}
        models: dict[str, ModelSettings] = {}
        groups: dict[str, GroupSettings] = {}
        discovery = DiscoverySettings()
        for name, table in self._tables.items():
            if name not in TABLES:
                self._complain((name,), _unknown("table", name, TABLES))
            elif not isinstance(table, dict):
                self._complain((name,), f"expected a table, as in [{name}]")
            elif name == HOSTS:
                hosts = {host: self._host(host, each) for host, each in table.items()}
            elif name == MODELS:
                given = {key: table[key] for key in DISCOVERY_KEYS if _is_value(table.get(key))}
                discovery = DiscoverySettings(**self._values((MODELS,), DISCOVERY_KEYS, given))
                models = {
                    model_id: self._model(model_id, each)
                    for model_id, each in table.items()
                    if model_id not in given
                }
            elif name == GROUPS:
                groups = {each: self._group(each, given) for each, given in table.items()}
            else:
                sections[name] = SECTIONS[name](**self._values((name,), KEYS[name], table))
        settings = Settings(
            **sections, hosts=hosts, discovery=discovery, models=models, groups=groups
        )
        for place, message in complaints(settings):
            self._complain(place, message)
        for place, message in group_complaints(settings):
            if (*place[:2], "models") not in self._wrong:
                self._complain(place, message)
        return settings

    def check_network(self, settings: Settings, places: Places) -> None:
        """Whether what an open port needs is there."""
        # A key that isn't known, or stands in a line that can't be read, is missing for another.
        unsure = any(not each.key or each.key.startswith("gateway") for each in self._mistakes)
        judged = {each.key for each in self._mistakes}
        for place, message in network_complaints(settings, places):
            if label(place) not in judged and not (unsure and place in TLS_PLACES):
                self._complain(place, message)

    def locate_models(self, settings: Settings, places: Places) -> dict[str, Located]:
        """What the workers are to load; not for models where some of it is missing."""
        sought = {
            (model_id, key): Sought(key, path)
            for model_id, model in settings.models.items()
            for key in _LOOKS
            if (path := getattr(model, key)) is not None
            and (MODELS, model_id, key) not in self._wrong
        }
        found = places.locate(
            {
                each: functools.partial(_LOOKS[each.what], each.path, settings.gateway.allow)
                for each in sought.values()
            }
        )
        located: dict[str, dict[str, str]] = {each: {} for each in settings.models}
        for (model_id, key), each in sought.items():
            answer = found[each]
            if isinstance(answer, ValueError):
                self._complain((MODELS, model_id, key), str(answer))
            else:
                located[model_id][key] = answer
        return {
            model_id: Located(**answers)
            for model_id, answers in located.items()
            if "path" in answers
        }

    def check_ranks(
        self, settings: Settings, located: Mapping[str, Located], places: Places
    ) -> None:
        """Whether what models of several ranks need is there."""
        folders = {model_id: each.path for model_id, each in located.items()}
        for place, message in key_complaints(settings, places):
            self._complain(place, message)
        for place, message in heads_complaints(settings, folders, places):
            self._complain(place, message)

    def without_lost(self, settings: Settings) -> Settings:
        """The settings less the models of which it isn't known where they are."""
        models = {
            model_id: model
            for model_id, model in settings.models.items()
            if (MODELS, model_id, "path") not in self._wrong
        }
        return msgspec.structs.replace(settings, models=models)

    def sources(self) -> dict[Place, Source]:
        return {place: self._source(place) for place in self._given}

    @property
    def mistakes(self) -> list[Mistake]:
        return sorted(self._mistakes, key=lambda each: each.source.line or 0)

    def raise_mistakes(self) -> None:
        if self._mistakes:
            raise ConfigError(self.mistakes)

    def _read_file(self, flags: Flags, environment: Mapping[str, str]) -> Document:
        path, named_by = _file_and_source(flags, environment)
        try:
            document = read_document(path)
        except FileNotFoundError:
            if named_by is not None:
                self._mistakes.append(Mistake(named_by, "", f"There is no file {path}."))
            return Document("", {}, {})
        except UnreadableError as error:
            self._mistakes.append(Mistake(Source("file", str(path)), "", f"{error}."))
            return Document("", {}, {})
        self.file = path
        self.digest = hashlib.sha256(document.text.encode()).hexdigest()
        for line, message in document.broken.items():
            self._mistakes.append(Mistake(Source("file", str(path), line), "", f"{message}."))
        return document

    def _overlay(self, origin: Source, table: str, key: str, value: object) -> None:
        """Put a value of the command line or the environment over the file's."""
        if value is None:
            return
        section = self._tables.setdefault(table, {})
        if isinstance(section, dict):
            section[key] = value
            self._origins[table, key] = origin

    def _add_model(self, text: str) -> None:
        model_id, path = model_from_flag(text)
        models = self._tables.setdefault(MODELS, {})
        if not isinstance(models, dict):
            return
        flag = Source("flag", f"--model {text}")
        if _path_of(models.get(model_id)) == path:
            return
        if model_id in models:
            self._mistakes.append(
                Mistake(
                    flag,
                    label((MODELS, model_id)),
                    f"two models have this id: give one of them another, as in "
                    f"--model {path}=OTHER_ID.",
                )
            )
            return
        models[model_id] = {"path": path}
        self._origins[MODELS, model_id] = flag

    def _host(self, name: str, table: object) -> HostSettings:
        place = (HOSTS, name)
        nothing = dict.fromkeys(HOST_KEYS, "")
        if not isinstance(table, dict):
            self._complain(place, f"expected a table, as in [{label(place)}]")
            return HostSettings(**nothing)
        return HostSettings(**{**nothing, **self._values(place, HOST_KEYS, table)})

    def _model(self, model_id: str, table: object) -> ModelSettings:
        place = (MODELS, model_id)
        if not isinstance(table, dict):
            self._complain(place, f"expected a table, as in [{label(place)}]")
            self._wrong.add((*place, "path"))
            return ModelSettings(path="")
        return ModelSettings(**{"path": "", **self._values(place, MODEL_KEYS, table)})

    def _group(self, name: str, table: object) -> GroupSettings:
        place = (GROUPS, name)
        if not isinstance(table, dict):
            self._complain(place, f"expected a table, as in [{label(place)}]")
            self._wrong.add((*place, "models"))
            return GroupSettings(models=())
        return GroupSettings(**{"models": (), **self._values(place, GROUP_KEYS, table)})

    def _values(
        self, table: Place, known: Mapping[str, Definition], given: dict[str, Any]
    ) -> dict[str, Any]:
        values = {}
        for name, value in given.items():
            place = (*table, name)
            if name not in known:
                self._complain(place, _unknown("key", name, known))
                continue
            kind = known[name].kind
            try:
                values[name] = kind.read(value)
                self._given.append(place)
            except UnexpectedError as error:
                element = place if error.index is None else (*place, error.index)
                self._complain(element, f"expected {kind.expected}, not {_shown(error.value)}")
        for name, definition in known.items():
            if definition.required and name not in values:
                self._wrong.add((*table, name))
                # It may be in a line that can't be read.
                left_out = any(name in line for line in self._document.left_out)
                if name not in given and not left_out:
                    self._complain(
                        (*table, name), f"it is missing; expected {definition.kind.expected}"
                    )
        return values

    def _complain(self, place: Place, message: str) -> None:
        self._mistakes.append(Mistake(self._source(place), label(place), _sentence(message)))

    def _source(self, place: Place) -> Source:
        for length in range(len(place), 0, -1):
            if origin := self._origins.get(place[:length]):
                return origin
        return Source("file", str(self.file), self._locations.line(place))

    @functools.cached_property
    def _locations(self) -> Locations:
        return Locations(self._document.text)


def _is_value(given: object) -> bool:
    """Whether that is a key's, and no model's table."""
    return given is not None and not isinstance(given, dict)


def _path_of(model: object) -> object:
    return model.get("path") if isinstance(model, dict) else None


def _sentence(message: str) -> str:
    return message if message.endswith((".", "?")) else f"{message}."


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    if name in _HOMES:
        return f"unknown here; it is a key of {_HOMES[name]}"
    if found := nearest(name, known):
        return f"unknown {what}; did you mean {found}?"
    if found := nearest(name, _HOMES):
        return f"unknown {what}; did you mean {found} in {_HOMES[found]}?"
    return f"unknown {what}; known are {', '.join(known)}"


def _shown(value: object) -> str:
    """A value as it was written, in short."""
    match value:
        case str():
            shown = toml_text(value)
        case bool():
            shown = str(value).lower()
        case dict():
            shown = "a table"
        case list():
            shown = "a list"
        case int() if abs(value) >= 10**_SHOWN_CHARACTERS:
            shown = "so large a number"
        case _:
            shown = str(value)
    return shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[:_SHOWN_CHARACTERS]}..."
