"""Reads file, environment and flags into one configuration, and reports all mistakes at once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.config.host_file import with_host_files
from gateway.config.key import Section, UnexpectedError
from gateway.config.layers import (
    ConfigError,
    Layers,
    Mistake,
    ValueSource,
    missing,
    no_table,
    sentence,
    unexpected,
    unknown,
)
from gateway.config.machine_rules import (
    TLS_PLACES,
    Places,
    Sought,
    heads_complaints,
    key_complaints,
    network_complaints,
    picture_complaints,
)
from gateway.config.model_folders import (
    NotThereError,
    find_adapter,
    find_draft,
    find_model,
    find_program,
)
from gateway.config.model_settings import ModelSettings
from gateway.config.rules import complaints, group_complaints
from gateway.config.settings import DiscoverySettings, Flags, Settings
from gateway.config.tables import GROUPS, MODELS, NAMED, SECTIONS, TABLES, keys_of, label
from gateway.config.toml_locations import Place

# For each key of a model that names a folder: the function that finds the folder.
_LOOKS: Final[dict[str, Callable[[str, tuple[str, ...]], str]]] = {
    "path": find_model,
    "adapter": find_adapter,
    "draft_model": find_draft,
}


class Located(msgspec.Struct, frozen=True):
    """The absolute folders that a worker loads for the keys `path`, `adapter` and `draft_model`.
    `path` may also be a repository in the Hugging Face cache, and is the program of a command.
    """

    path: str
    adapter: str | None = None
    draft_model: str | None = None


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration without mistakes, and the sources of its values.

    `file` is the file that was read, or None, and `digest` is a hash of its content. `located` maps
    the id of each model to its folders. `absent` maps the id of each model with a missing folder to
    a mistake that says so; such a model is served once the folder exists. `sources` maps the place
    of each key that was given to the source of its value; other keys have their defaults.
    `discovered` has the ids of models on a disk that have no table. `names` maps the names of these
    models, and names that are reserved for models that are away, to the places of the models.
    `news` are sentences about names that other models have now. `broken` maps names that models had
    to the reasons why these models aren't served now.
    """

    settings: Settings
    file: Path | None
    digest: str | None
    located: dict[str, Located]
    absent: dict[str, Mistake]
    sources: dict[Place, ValueSource]
    discovered: frozenset[str] = frozenset()
    names: dict[str, str] = {}
    news: tuple[str, ...] = ()
    broken: dict[str, str] = {}

    def source(self, place: Place) -> ValueSource:
        return self.sources.get(place, ValueSource("default"))


def read_settings(flags: Flags, environment: Mapping[str, str]) -> Settings:
    """The settings in force. A flag overrides an environment variable, and a variable overrides the
    file. Whether the models exist is not checked.

    Raises:
        ConfigError: with all mistakes.
    """
    reading = _ConfigurationReading(flags, environment)
    settings = reading.settings()
    reading.raise_mistakes()
    return settings


class DraftConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration with its mistakes. Defaults replace wrong values. Models whose `path` is
    wrong or not given are left out. `file` is the file that was read, or None.
    """

    settings: Settings
    file: Path | None
    digest: str | None
    mistakes: list[Mistake]


def read_draft(flags: Flags, environment: Mapping[str, str]) -> DraftConfiguration:
    """Read the valid part of a configuration. Whether the models exist is not checked."""
    reading = _ConfigurationReading(flags, environment)
    settings = reading.settings()
    return DraftConfiguration(
        settings=reading.without_lost(settings),
        file=reading.layers.file,
        digest=reading.layers.digest,
        mistakes=reading.mistakes,
    )


def read_configuration(
    flags: Flags, environment: Mapping[str, str], places: Places | None = None
) -> Configuration:
    """Read the configuration, and find the folders of its models. At least one model must exist. A
    caller that reads the configuration again passes the same `places`, so that a path that still
    hangs isn't asked twice.

    Raises:
        ConfigError: with all mistakes.
    """
    reading = _ConfigurationReading(flags, environment)
    settings = reading.settings()
    places = places or Places()
    reading.check_network(settings, places)
    reading.check_pictures(settings, places)
    located = reading.locate_models(settings, places)
    reading.check_ranks(settings, located, places)
    if reading.mistakes or len(reading.absent) == len(settings.models):
        reading.count_absent()
    reading.raise_mistakes()
    return Configuration(
        settings=settings,
        file=reading.layers.file,
        digest=reading.layers.digest,
        located=located,
        absent=reading.absent,
        sources=reading.sources(),
    )


def raise_absent(absent: Iterable[Mistake]) -> None:
    """Raise ConfigError with these mistakes if there are any."""
    if mistakes := list(absent):
        raise ConfigError(mistakes)


def raise_misfits(configuration: Configuration, misfits: Iterable[tuple[str, str]]) -> None:
    """Raise ConfigError if a group lacks room. `misfits` has the name of each such group, with the
    reason.
    """
    mistakes = []
    for name, why in misfits:
        place = (GROUPS, name, "models")
        mistakes.append(Mistake(configuration.source(place), label(place), sentence(why)))
    if mistakes:
        raise ConfigError(mistakes)


class _ConfigurationReading:
    """Makes settings from tables, and collects mistakes. Call `settings` first, and only once."""

    def __init__(self, flags: Flags, environment: Mapping[str, str]) -> None:
        self.layers = Layers(flags, environment)
        self.absent: dict[str, Mistake] = {}
        self._mistakes = list(self.layers.mistakes)
        self._given: list[Place] = []
        self._wrong: set[Place] = set()

    def settings(self) -> Settings:
        """The settings, with defaults in place of wrong values."""
        sections: dict[str, Any] = {}
        for name, table in self.layers.tables.items():
            if name not in TABLES:
                self._complain((name,), unknown("table", name, TABLES))
            elif not isinstance(table, dict):
                self._complain((name,), no_table((name,)))
            elif name in SECTIONS:
                sections[name] = self._section(SECTIONS[name], (name,), table)
            else:
                if name == MODELS:
                    known = keys_of(DiscoverySettings)
                    beside = {key: table[key] for key in known if _is_value(table.get(key))}
                    sections["discovery"] = self._section(DiscoverySettings, (name,), beside)
                    table = {key: keys for key, keys in table.items() if key not in beside}
                sections[name] = {
                    key: self._section(NAMED[name], (name, key), keys)
                    for key, keys in table.items()
                }
        settings, mistakes = with_host_files(Settings(**sections))
        for place, message in (*mistakes, *complaints(settings)):
            # Without its command a model seems to have keys that don't belong to it.
            silent = {place, (*place[:2], "command")} & self._wrong
            if not silent or place[2:] == ("command",):
                self._complain(place, message)
        for place, message in group_complaints(settings):
            if (*place[:2], "models") not in self._wrong:
                self._complain(place, message)
        return settings

    def check_network(self, settings: Settings, places: Places) -> None:
        """Check the API keys and certificates that a gateway needs if other machines reach it."""
        # A setting of TLS may seem to be missing: its name is misspelt, or its line isn't TOML.
        unsure = any(
            not mistake.key or mistake.key.startswith("gateway") for mistake in self._mistakes
        )
        judged = {mistake.key for mistake in self._mistakes}
        for place, message in network_complaints(settings, places):
            if label(place) not in judged and not (unsure and place in TLS_PLACES):
                self._complain(place, message)

    def check_pictures(self, settings: Settings, places: Places) -> None:
        """Check the folders in which requests may name pictures."""
        for place, message in picture_complaints(settings, places):
            self._complain(place, message)

    def locate_models(self, settings: Settings, places: Places) -> dict[str, Located]:
        """Find the folders of each model. Leave out models whose `path` is wrong."""
        sought = {
            (model_id, key): Sought(key, path)
            for model_id, model in settings.models.items()
            for key in _LOOKS
            if not model.command
            and (path := getattr(model, key)) is not None
            and (MODELS, model_id, key) not in self._wrong
        }
        looks: dict[Sought, Callable[[], str]] = {
            wanted: functools.partial(_LOOKS[wanted.what], wanted.path, settings.gateway.allow)
            for wanted in sought.values()
        }
        for model_id, model in settings.models.items():
            if model.command and (MODELS, model_id, "command") not in self._wrong:
                # The program takes the place of the folder.
                program, folder = model.command[0], model.folder
                sought[model_id, "path"] = sought_program = Sought(f"program for {folder}", program)
                looks[sought_program] = functools.partial(find_program, program, folder)
        answers = places.locate(looks)
        located: dict[str, dict[str, str]] = {model_id: {} for model_id in settings.models}
        for (model_id, key), item in sought.items():
            command = settings.models[model_id].command
            place = (MODELS, model_id, "command" if command and key == "path" else key)
            match answers[item]:
                case NotThereError() as error:
                    located[model_id][key] = error.place
                    self.absent[model_id] = self._mistake(place, str(error))
                case ValueError() as error:
                    self._complain(place, str(error))
                case path:
                    located[model_id][key] = path
        return {
            model_id: Located(**folders)
            for model_id, folders in located.items()
            if "path" in folders
        }

    def check_ranks(
        self, settings: Settings, located: Mapping[str, Located], places: Places
    ) -> None:
        """Check upstreams' key files, and whether ranks can share a model's attention heads."""
        folders = {
            model_id: item.path
            for model_id, item in located.items()
            if not settings.models[model_id].command
        }
        for place, message in key_complaints(settings, places):
            self._complain(place, message)
        # The key `split` may be in a line that isn't TOML.
        if not any("split" in line for line in self.layers.left_out):
            for place, message in heads_complaints(settings, folders, places):
                self._complain(place, message)

    def without_lost(self, settings: Settings) -> Settings:
        """The settings without the models whose `path` is wrong or not given."""
        models = {
            model_id: model
            for model_id, model in settings.models.items()
            if (MODELS, model_id, "path") not in self._wrong
        }
        return msgspec.structs.replace(settings, models=models)

    def sources(self) -> dict[Place, ValueSource]:
        return {place: self.layers.source(place) for place in self._given}

    @property
    def mistakes(self) -> list[Mistake]:
        return sorted(self._mistakes, key=lambda mistake: mistake.source.line or 0)

    def count_absent(self) -> None:
        """Count missing models among the mistakes."""
        self._mistakes += self.absent.values()

    def raise_mistakes(self) -> None:
        if self._mistakes:
            raise ConfigError(self.mistakes)

    def _section(self, section: type[Section], table: Place, given: object) -> Section:
        """The values of a table. A wrong value is a mistake, and the default replaces the value."""
        keys = keys_of(section)
        values = {name: definition.assumed for name, definition in keys.items()}
        if not isinstance(given, dict):
            self._complain(table, no_table(table))
            self._wrong.update((*table, name) for name in keys)
            return section(**values)
        for name, value in given.items():
            place = (*table, name)
            if name not in keys:
                self._complain(place, unknown("key", name, keys))
                continue
            try:
                values[name] = keys[name].read(value)
                self._given.append(place)
            except* UnexpectedError as group:
                self._wrong.add(place)
                for error in group.exceptions:
                    assert isinstance(error, UnexpectedError)
                    element = place if error.index is None else (*place, error.index)
                    expected = error.expected or keys[name].key.expected
                    self._complain(element, unexpected(expected, error.value))
        for name, definition in keys.items():
            if section is ModelSettings and name == "path" and "command" in given:
                if not values["command"] and name not in given:
                    # No folder is to be looked for. An empty list is reported here alone.
                    self._wrong.add((*table, name))
                    if (*table, "command") not in self._wrong:
                        self._wrong.add((*table, "command"))
                        self._complain((*table, "command"), "it is empty: the program comes first")
                continue
            if definition.required and name not in given:
                self._wrong.add((*table, name))
                # The key may be in a line that isn't TOML.
                if not any(name in line for line in self.layers.left_out):
                    self._complain((*table, name), missing(definition.key))
        return section(**values)

    def _complain(self, place: Place, message: str) -> None:
        self._mistakes.append(self._mistake(place, message))

    def _mistake(self, place: Place, message: str) -> Mistake:
        return Mistake(self.layers.source(place), label(place), sentence(message))


def _is_value(given: object) -> bool:
    """Whether an entry of the table `models` is the value of a key, and not a model's table."""
    return given is not None and not isinstance(given, dict)
