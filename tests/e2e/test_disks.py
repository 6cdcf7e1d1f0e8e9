"""A disk that isn't there at the start, comes, goes and comes again; and files that are kept from
the gateway, as macOS keeps them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faults import sitecustomize
from tests.support.folders import short_folder
from tests.support.gateway import START_S, Gateway, eventually
from tests.support.shapes import DEMO

pytestmark = pytest.mark.slow


class Disk:
    """A folder that a link leads to while it is mounted, as to the disk that a Mac starts from."""

    def __init__(self, folder: Path) -> None:
        self.volume = folder / "Volumes" / "Models"
        self.volume.parent.mkdir()
        self._content = folder / "content"
        shutil.copytree(DEMO, self._content / "kept")
        shutil.copytree(DEMO, self._content / "found" / "asked")

    def mount(self) -> None:
        self.volume.symlink_to(self._content)

    def remove(self) -> None:
        self.volume.unlink()


# The gateway takes the test's folder for /Volumes, looks often, and may not open some files.
CODE = """
if not in_worker():
    import builtins, errno, os, pathlib, io
    import gateway.system.file_access, gateway.models.disks
    gateway.system.file_access._PARENTS = ((pathlib.Path({parent!r}), 1),)
    gateway.models.disks._LOOK_S = 0.2
    opens = io.open
    def guarded(file, *arguments, **options):
        if str(file).startswith({denied!r}):
            raise PermissionError(errno.EPERM, "Operation not permitted", str(file))
        return opens(file, *arguments, **options)
    io.open = builtins.open = guarded
"""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with short_folder(ignore_cleanup_errors=True) as name:
        yield Path(name).resolve()


@pytest.fixture(scope="module")
def disk(folder: Path) -> Disk:
    return Disk(folder)


@pytest.fixture(scope="module")
def gateway(folder: Path, disk: Disk) -> Iterator[Gateway]:
    """Started as at boot, before the disk."""
    denied = folder / "denied"
    shutil.copytree(DEMO, denied)
    config = f"""
        [models]
        discover = ["{disk.volume}/found"]
        [models.kept]
        path = "{disk.volume}/kept"
        preload = true
        [models.asked-for]
        path = "{disk.volume}/kept"
        [models.denied]
        path = "{denied}"
    """
    code = CODE.format(parent=str(disk.volume.parent), denied=str(denied))
    running = Gateway(models=(), config=config, environment=sitecustomize(folder / "site", code))
    yield running
    assert running.stop() == 0, running.log


def test_a_disk_that_comes_and_goes(gateway: Gateway, disk: Disk) -> None:
    absent = f"The disk {disk.volume} isn't mounted"
    eventually(lambda: absent in (gateway.model("kept")["reason"] or ""))
    refused = gateway.chat("Hello", "asked-for")
    assert (refused.status_code, absent in refused.text) == (503, True)
    assert int(refused.headers["retry-after"]) > 0
    assert [model["id"] for model in gateway.status()["models"]] == ["kept", "asked-for", "denied"]
    eventually(lambda: absent in (gateway.model("asked-for")["reason"] or ""))
    (gone,) = eventually(lambda: gateway.events("disk"))
    assert (gone["path"], gone["mounted"]) == (str(disk.volume), False)
    assert gone["models"] == ["kept", "asked-for"]
    # The log comes after the event.
    eventually(lambda: "isn't mounted (models: kept, asked-for)" in gateway.log)

    disk.mount()
    eventually(lambda: gateway.model("kept")["state"] == "ready", START_S)
    assert "asked" in [model["id"] for model in gateway.status()["models"]], "found there"
    assert gateway.events("disk")[-1]["mounted"]

    disk.remove()
    eventually(lambda: "serves on" in (gateway.model("kept")["reason"] or ""))
    assert gateway.chat("Hello", "kept", max_tokens=3).status_code == 200
    gateway.order("unload", "kept").raise_for_status()
    refused = gateway.chat("Hello", "kept")
    assert (refused.status_code, absent in refused.text) == (503, True)
    assert "asked" in [model["id"] for model in gateway.status()["models"]], (
        "its disk may come back"
    )

    disk.mount()
    eventually(lambda: gateway.model("kept")["state"] == "ready", START_S)
    assert gateway.model("kept")["reason"] is None
    assert gateway.chat("Hello", "kept", max_tokens=3).status_code == 200


def test_files_that_the_system_keeps_from_the_gateway(gateway: Gateway, folder: Path) -> None:
    refused = gateway.chat("Hello", "denied")
    assert refused.status_code == 503
    assert f"The system keeps {folder}/denied/" in refused.text
    assert "Full Disk Access" in refused.text
    assert "Full Disk Access" in gateway.model("denied")["reason"]
    assert "Full Disk Access" in gateway.order("load", "denied").text
