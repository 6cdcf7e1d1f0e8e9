"""Rules between keys, which hold on every machine.

Each rule yields the place of each mistake in the configuration, with a message.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import quote

from gateway.config.key import toml_text
from gateway.config.model_folders import expand_home
from gateway.config.model_settings import (
    COMMAND_KEYS,
    COMPUTED_KEYS,
    LOCAL,
    GroupSettings,
    ModelSettings,
)
from gateway.config.settings import HUGGING_FACE, Settings
from gateway.config.tables import GROUPS, keys_of
from gateway.config.toml_locations import Place
from gateway.system.notation import nearest

Complaint: TypeAlias = tuple[Place, str]

_HOST_NAME: Final = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+")
_PAGE_ORIGIN: Final = re.compile(
    r"null|[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?"
    # The names of a program's pages differ from one installation to the next.
    r"|(?!https?:)[a-z][a-z0-9+.-]*://\*"
)
# ssh takes a destination that begins with a hyphen for an option.
_SSH: Final = re.compile(r"[A-Za-z0-9_][!-~]{0,254}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PATH: Final = re.compile(r"/(?!/)[!-\"$-~]*")
_UPSTREAM: Final = re.compile(
    r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>[0-9]{1,5}))?(/[!-~]*)?"
)
_ENDPOINT: Final = re.compile(r"https?://[^\s/?#@]+(/[^\s?#]*)?")
_LAST_PORT: Final = 65535
# File names have at most 255 bytes on macOS and Linux, and a suffix follows the id.
_LONGEST_ID: Final = 200
# Unicode's categories of control characters, surrogates, and ends of lines and paragraphs.
_STEERING: Final = ("Cc", "Cs", "Zl", "Zp")


def complaints(settings: Settings) -> Iterator[Complaint]:
    """Mistakes in values that have the right type and are within their bounds."""
    yield from _host(settings)
    yield from _state_dir(settings)
    yield from _visitors(settings)
    yield from _ids(settings)
    yield from _aliases(settings)
    yield from _pictures(settings)
    yield from _ranks(settings)
    yield from _hub(settings)
    yield from _hosts(settings)
    yield from _commands(settings)
    yield from _upstreams(settings)


def _hosts(settings: Settings) -> Iterator[Complaint]:
    for name, host in settings.hosts.items():
        if name == LOCAL or not _NAME.fullmatch(name):
            yield (
                ("hosts", name),
                f"{toml_text(name)} is no name of another host: 1 to 64 letters, digits or ._- "
                f"that begin with a letter or digit, and not {toml_text(LOCAL)}, which is this one",
            )
        if not _SSH.fullmatch(host.ssh):
            yield (
                ("hosts", name, "ssh"),
                f"{toml_text(host.ssh)} is no destination for ssh, as studio2 or me@studio2.local",
            )
        if not host.command.strip():
            yield ("hosts", name, "command"), "it is empty"


def _hub(settings: Settings) -> Iterator[Complaint]:
    endpoint = settings.hub.endpoint
    if endpoint is not None and not _ENDPOINT.fullmatch(endpoint):
        yield (
            ("hub", "endpoint"),
            f"{toml_text(endpoint)} is no address, as https://huggingface.co without anything "
            "behind it but a path",
        )
    if settings.hub.folder_path is not None and not Path(settings.hub.folder_path).is_absolute():
        yield ("hub", "folder"), f"{toml_text(settings.hub.folder_path)} is not an absolute path"
    for index, place in enumerate(settings.discovery.discover):
        if place != HUGGING_FACE and not expand_home(place).is_absolute():
            yield (
                ("models", "discover", index),
                f"{toml_text(place)} is neither an absolute path nor {toml_text(HUGGING_FACE)}",
            )


def _host(settings: Settings) -> Iterator[Complaint]:
    gateway = settings.gateway
    if not _HOST_NAME.fullmatch(gateway.host.lower()):
        yield (
            ("gateway", "host"),
            f"{toml_text(gateway.host)} is not a name or an address alone: neither http:// nor a "
            "port belong to it",
        )


def _state_dir(settings: Settings) -> Iterator[Complaint]:
    state_dir = settings.gateway.state_dir or ""
    if state_dir.startswith("~") and expand_home(state_dir) == Path(state_dir):
        yield ("gateway", "state_dir"), f"there is no home of {Path(state_dir).parts[0]}"


def _visitors(settings: Settings) -> Iterator[Complaint]:
    """Mistakes in allowed hosts and origins. They have to be written exactly as browsers send them,
    in lower case.
    """
    for index, host in enumerate(settings.gateway.allowed_hosts):
        if not _HOST_NAME.fullmatch(host):
            yield (
                ("gateway", "allowed_hosts", index),
                f"{toml_text(host)} is not a name or an address alone, in lower case: neither "
                "https:// nor a port belong to it",
            )
    for index, origin in enumerate(settings.gateway.allowed_origins):
        if not _PAGE_ORIGIN.fullmatch(origin):
            yield (
                ("gateway", "allowed_origins", index),
                f'{toml_text(origin)} is not an origin in lower case, as "https://chat.example" '
                'or "http://localhost:3000" without anything behind it, nor "null", nor all '
                'pages of a program, as "vscode-webview://*"',
            )


def _ids(settings: Settings) -> Iterator[Complaint]:
    for model_id in settings.models:
        if not 0 < len(quote(model_id, safe="", errors="replace")) <= _LONGEST_ID:
            yield (
                ("models", model_id),
                f"an id has 1 to {_LONGEST_ID} characters, as log files are named after it "
                "(others than ASCII count several times)",
            )
        elif not _is_one_line(model_id):
            yield (
                ("models", model_id),
                "an id is one line without control characters; --model FOLDER=ID gives another "
                "one than the folder's name",
            )
        elif {".", ".."} & set(model_id.split("/")):
            yield (
                ("models", model_id),
                "no part of an id is . or .., as these have a meaning in addresses",
            )


def _aliases(settings: Settings) -> Iterator[Complaint]:
    taken = dict.fromkeys(settings.models, "a model's id")
    for model_id, model in settings.models.items():
        for index, alias in enumerate(model.aliases):
            if alias in taken:
                yield (
                    ("models", model_id, "aliases", index),
                    f"{toml_text(alias)} is {taken[alias]} already",
                )
            elif not _is_one_line(alias):
                yield (
                    ("models", model_id, "aliases", index),
                    "an alias is one line without control characters",
                )
            taken.setdefault(alias, f"an alias of {toml_text(model_id)}")


def _pictures(settings: Settings) -> Iterator[Complaint]:
    for index, folder in enumerate(settings.gateway.image_folders):
        if not expand_home(folder).is_absolute():
            yield (
                ("gateway", "image_folders", index),
                f"{toml_text(folder)} is not an absolute path",
            )
    for model_id, model in settings.models.items():
        for key in ("adapter", "draft_model"):
            if model.pictures and getattr(model, key) is not None:
                yield (("models", model_id, key), "a model with pictures = true can't have one")


def _ranks(settings: Settings) -> Iterator[Complaint]:
    for model_id, model in settings.models.items():
        for key in ("adapter", "draft_model", "pictures"):
            if len(model.places) > 1 and getattr(model, key):
                yield (
                    ("models", model_id, key),
                    "a model that several processes compute (local, ranks) can't have this",
                )
        for index, place in enumerate(model.ranks):
            rank = ("models", model_id, "ranks", index)
            if index == 0 and place.host != LOCAL:
                yield rank, f"rank 0 runs beside the gateway: its host is {toml_text(LOCAL)}"
            elif place.host != LOCAL and place.host not in settings.hosts:
                known = ", ".join(map(toml_text, dict.fromkeys((LOCAL, *settings.hosts))))
                yield rank, f"there is no host {toml_text(place.host)}; known are {known}"
        if model.backend == "jaccl" and any(
            len(rank_place.interfaces) != len(model.places) - 1 for rank_place in model.places
        ):
            yield (
                ("models", model_id, "backend"),
                '"jaccl" joins machines by RDMA: every one of the ranks names its devices towards '
                "each of the others, in their order, as interfaces",
            )
        if model.ranks and model.local > 1:
            yield ("models", model_id, "local"), "ranks say already how many processes there are"
        if model.python is not None and model.ranks_here < len(model.places):
            yield (
                ("models", model_id, "python"),
                "a model with ranks on other hosts runs in the environments of bulkhead there",
            )


_PLACES: Final = ("{port}", "{socket}")
# Less like a place are words that the program itself may know, as {host}.
_MISSPELT: Final = 0.8
_BRACED: Final = re.compile(r"\{[a-z]+\}")
_PLAIN_PATH: Final = re.compile(r"(?:/(?!\.{0,2}/|\.{1,2}$)[^/\0-\x1f*%?#;\\\x7f]*)+")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _commands(settings: Settings) -> Iterator[Complaint]:
    for model_id, model in settings.models.items():
        table = ("models", model_id)
        for key in COMPUTED_KEYS if model.command else COMMAND_KEYS:
            definition = keys_of(ModelSettings)[key]
            usual = "" if definition.required else definition.default
            if getattr(model, key) != usual:
                whose = "a path" if model.command else "a command"
                yield (*table, key), f"only a model with {whose} has this key"
        if not model.command:
            continue
        words = " ".join((*model.command, *model.environment.values()))
        if not model.command[0].strip():
            yield (*table, "command"), "its first text is the program"
        elif not any(place in words for place in _PLACES):
            yield (
                (*table, "command"),
                "it names neither {port} nor {socket}, so the server isn't told where to listen",
            )
        for word in _BRACED.findall(words):
            meant = next(iter(difflib.get_close_matches(word, _PLACES, 1, _MISSPELT)), word)
            if meant != word:
                yield (*table, "command"), f"{word} stands for nothing; did you mean {meant}?"
        for name in model.environment:
            if not _VARIABLE.fullmatch(name) or name.startswith("BULKHEAD_"):
                yield (*table, "environment", name), f"{toml_text(name)} is no name for a variable"
        for index, path in enumerate(model.paths):
            if not _PLAIN_PATH.fullmatch(path):
                yield (
                    (*table, "paths", index),
                    f"{toml_text(path)} is no path: it begins with /, and has neither steps such "
                    'as "..", nor //, nor any of *%?#;\\. All below a path is passed on, too',
                )
        if model.health is not None and not _PATH.fullmatch(model.health):
            yield (*table, "health"), f"{toml_text(model.health)} is no path that begins with /"
        if model.name is not None and not (model.name.strip() and model.name.isprintable()):
            yield (*table, "name"), f"{toml_text(model.name)} is no name"
        for key, files in (("folder", (model.folder,)), ("files", model.files)):
            for index, file in enumerate(files):
                if file is not None and not expand_home(file).is_absolute():
                    place = (*table, key, index) if key == "files" else (*table, key)
                    yield place, f"{toml_text(file)} is not an absolute path"


def _upstreams(settings: Settings) -> Iterator[Complaint]:
    for name, upstream in settings.upstreams.items():
        if not _NAME.fullmatch(name):
            yield (
                ("upstreams", name),
                f"{toml_text(name)} is no name of an upstream: 1 to 64 letters, digits or ._- that "
                "begin with a letter or digit",
            )
        url = upstream.url
        if (fault := _fault(url)) is not None:
            yield (
                ("upstreams", name, "url"),
                (f"{fault}: expected an address such as https://box.local:8642/v1"),
            )
        elif upstream.certificate is not None and not url.startswith("https:"):
            yield ("upstreams", name, "certificate"), "only an address with https has one"


def _fault(url: str) -> str | None:
    """Why this is no address of an upstream; None if it is one. A password isn't repeated."""
    if "@" in url:
        return "a name and a password can't stand in it (@), and a key belongs into key_file"
    if {*"?#"} & {*url}:
        return f"{toml_text(url)} has more than a path behind its host (? or #)"
    parts = _UPSTREAM.fullmatch(url)
    if parts is None:
        return f"{toml_text(url)} is no address of a server"
    if int(parts["port"] or 1) > _LAST_PORT:
        return f"{parts['port']} is no port, as the last one is {_LAST_PORT}"
    return None


def _is_one_line(text: str) -> bool:
    """Whether a text is one line without control characters, and can be encoded. The name of a
    folder can't be encoded if it isn't UTF-8.
    """
    return not any(unicodedata.category(character) in _STEERING for character in text)


_KINDS = ("together", "swap", "reserve")


def group_complaints(settings: Settings) -> Iterator[Complaint]:
    """Mistakes in groups whose values have the right types."""
    for name, group in settings.groups.items():
        yield from _members(name, group, settings)
        yield from _kinds(name, group, settings)
    yield from _overlaps(settings)


def _members(name: str, group: GroupSettings, settings: Settings) -> Iterator[Complaint]:
    seen: set[str] = set()
    aliases = {
        alias: model_id for model_id, model in settings.models.items() for alias in model.aliases
    }
    for index, model_id in enumerate(group.models):
        place = (GROUPS, name, "models", index)
        if model_id in seen:
            yield place, f"{toml_text(model_id)} is in it already"
        elif model_id in aliases:
            yield (
                place,
                f"{toml_text(model_id)} is an alias, of the id {toml_text(aliases[model_id])}",
            )
        elif model_id not in settings.models:
            meant = nearest(model_id, settings.models)
            hint = f"did you mean {toml_text(meant)}?" if meant else "a member needs one"
            yield place, f"no model {toml_text(model_id)} has a table of its own; {hint}"
        seen.add(model_id)
    if len(seen) < 2:
        yield _members_place(name), "a group has two models at least"


def _kinds(name: str, group: GroupSettings, settings: Settings) -> Iterator[Complaint]:
    if not any(getattr(group, kind) for kind in _KINDS):
        yield ((GROUPS, name), "it says nothing of its models: set together, swap or reserve")
    if group.together and group.swap:
        yield (
            (GROUPS, name, "swap"),
            "models that are loaded together can't exclude each other: together or swap is wrong",
        )
    for index, model_id in enumerate(group.models):
        model = settings.models.get(model_id)
        if group.swap and model is not None and model.pinned:
            yield (
                (GROUPS, name, "models", index),
                f"{toml_text(model_id)} is pinned, so it would never make room for the others: "
                "unpin it, or take it out",
            )


def _overlaps(settings: Settings) -> Iterator[Complaint]:
    """Mistakes in groups that share models. A model may be in one group with `together`, in one
    with `reserve`, and in several with `swap`.
    """
    names = list(settings.groups)
    for number, name in enumerate(names):
        group = settings.groups[name]
        for other_name in names[:number]:
            other = settings.groups[other_name]
            shared = [model for model in group.models if model in other.models]
            for kind in ("together", "reserve"):
                if shared and getattr(group, kind) and getattr(other, kind):
                    yield (
                        _members_place(name),
                        f"{toml_text(shared[0])} is in {toml_text(other_name)} too, and a model is "
                        f"in one group with {kind} at most: make one of the two",
                    )
            if len(shared) > 1 and (
                (group.together and other.swap) or (group.swap and other.together)
            ):
                yield (
                    _members_place(name),
                    f"{toml_text(shared[0])} and {toml_text(shared[1])} are loaded together by one "
                    f"of {toml_text(other_name)} and {toml_text(name)}, and exclude each other by "
                    "the other",
                )


def _members_place(name: str) -> Place:
    return (GROUPS, name, "models")
