"""What isn't a command in the documents: configuration, JSON, Python, links."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from gateway.cli import VERBS
from gateway.config.documents import key_tables
from gateway.config.read import read_settings
from gateway.config.settings import Flags
from tests.docs.fences import PAGES, ROOT, Fence, of_kind

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


def _place(fence: object) -> str:
    assert isinstance(fence, Fence)
    return fence.place


def test_every_verb_is_listed() -> None:
    page = (ROOT / "docs" / "serving.md").read_text("utf-8")
    table = page.partition("\n## Command line\n\n")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"`([a-z]+)`(?=[, ])", table.partition("---")[2])) == sorted(VERBS)


@pytest.mark.parametrize("fence", of_kind("toml"), ids=_place)
def test_configuration_is_right(fence: Fence, tmp_path: Path) -> None:
    """Whether the models and certificates are there isn't asked."""
    path = tmp_path / "config.toml"
    tables = (
        [] if "[models." in fence.text else re.findall(r'models = \["(.+)", "(.+)"\]', fence.text)
    )
    members = "".join(f'[models."{table}"]\npath = "demo"\n' for table in {*sum(tables, ())})
    path.write_text(fence.text + members, "utf-8")
    read_settings(Flags(config=path), {})


def test_a_server_that_loads_what_it_is_asked_for_has_a_name_to_ask_for() -> None:
    """It would be asked for the id, and would look for a repository of that name."""
    found = [
        (fence.page.name, model)
        for fence in of_kind("toml")
        for model in tomllib.loads(fence.text).get("models", {}).values()
        if isinstance(model, dict) and "mlx_audio.server" in model.get("command", ())
    ]
    assert len(found) == 3
    assert all({"name", "memory"} <= model.keys() for _, model in found), found


def test_a_row_has_the_cells_of_its_table() -> None:
    wrong = []
    for page in PAGES:
        cells = 0
        for line in page.read_text("utf-8").splitlines():
            found = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
            if cells and found and found != cells:
                wrong.append(f"{page.name}: {line[:80]}")
            cells = found and (cells or found)
    assert not wrong


@pytest.mark.parametrize("fence", of_kind("json"), ids=_place)
def test_json_is_json(fence: Fence) -> None:
    json.loads(fence.text)


@pytest.mark.parametrize("fence", of_kind("python"), ids=_place)
def test_python_is_python(fence: Fence) -> None:
    compile(fence.text, fence.page.name, "exec")


def _anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {word.replace(" ", "-") for word in words}


def test_links_lead_somewhere() -> None:
    links = [
        (page, target)
        for page in (*PAGES, ROOT / "bench" / "README.md")
        for target in LINK.findall(re.sub(r"`[^`\n]*`", "", page.read_text("utf-8")))
        if "://" not in target
    ]
    assert links
    for page, target in links:
        path, _, anchor = target.partition("#")
        found = page if not path else (page.parent / path).resolve()
        assert found.exists(), (page, target)
        if anchor:
            assert anchor in _anchors(found), (page, target)


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text("utf-8")
    named = {target.partition("#")[0] for target in LINK.findall(index)}
    missing = {page.name for page in PAGES[1:]} - named - {"README.md"}
    assert not missing


def test_sentences_fit_a_screen() -> None:
    """Rows of tables, blocks and pictures can't be broken into lines, and the code prints the
    tables of the configuration.
    """
    printed = {line for table in key_tables() for line in table.splitlines()}
    wide = [
        f"{page.name}: {line[:80]}"
        for page in (*PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md")
        for line in BLOCK.sub("", page.read_text("utf-8")).splitlines()
        if len(line) > 140 and not line.lstrip().startswith(("|", "![")) and line not in printed
    ]
    assert not wide
