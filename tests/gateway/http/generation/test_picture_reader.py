"""Pictures of requests: what is read, and what is refused with which words."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from gateway.config.settings import GatewaySettings
from gateway.http.generation.pictures import PictureReader, Source
from gateway.requests.share import ByteBudget, Share
from gateway.system.refusal import Refusal
from protocol.requests import MOST_PICTURE_BYTES, MOST_PICTURES
from tests.support.pictures import GREEN, RED, data_url, png

CLOSED = GatewaySettings()
NAME = "messages[0].content[1].image_url"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "shown"
    folder.mkdir()
    (folder / "a picture.png").write_bytes(png(RED))
    (tmp_path / "hidden.png").write_bytes(png(GREEN))
    return folder


def _open(folder: Path) -> GatewaySettings:
    return GatewaySettings(image_folders=(str(folder),))


def _share() -> Share:
    return Share(ByteBudget(1 << 30))


async def _read(url: str, settings: GatewaySettings = CLOSED) -> bytes:
    (data,) = await PictureReader().read([Source(url, NAME)], settings, _share())
    return data


async def _refused(url: str, settings: GatewaySettings = CLOSED) -> str:
    with pytest.raises(Refusal) as refused:
        await _read(url, settings)
    assert (refused.value.status, refused.value.param) == (400, NAME)
    assert refused.value.message.startswith(f"{NAME}: ")
    return refused.value.message


async def test_data_urls() -> None:
    assert await _read(data_url(png(RED))) == png(RED)
    assert await _read(data_url(png(RED)).replace("data:", "DATA:")) == png(RED)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("data:image/png,abc", "must be in base64"),
        ("data:image/png;base64", "must be in base64"),
        ("data:image/png;base64,iVB!", "base64 can't be read"),
        ("data:image/png;base64,AAAA", "no PNG, JPEG, WebP or GIF"),
        ("data:image/svg+xml;base64,PHN2Zz4=", "no PNG, JPEG, WebP or GIF"),
        ("ftp://host/a.png", "send a data URL"),
        ("", "an absolute path"),
        ("a.png", "an absolute path"),
        ("http://1.1.1.1/a.png", "fetches no pictures from other machines"),
        ("HTTPS://1.1.1.1/a.png", "fetches no pictures from other machines"),
        ("/a.png", "names none"),
        ("file:///a.png", "names none"),
        ("file://server/a.png", "of this machine"),
    ],
)
async def test_remote_pictures_are_refused_by_default(url: str, reason: str) -> None:
    assert reason in await _refused(url)


async def test_picture_too_large() -> None:
    assert "24 MiB is the most" in await _refused(data_url(png(RED) + bytes(MOST_PICTURE_BYTES)))


async def test_pictures_too_large_together() -> None:
    most = png(RED) + bytes(MOST_PICTURE_BYTES - 2000)
    sources = [
        Source(data_url(data), f"picture {place}") for place, data in enumerate([most, most])
    ]
    with pytest.raises(Refusal) as refused:
        await PictureReader().read(sources, CLOSED, _share())
    assert refused.value.param == "picture 1"


async def test_too_many_pictures() -> None:
    sources = [Source(data_url(png(RED)), f"picture {place}") for place in range(MOST_PICTURES + 1)]
    with pytest.raises(Refusal) as refused:
        await PictureReader().read(sources, CLOSED, _share())
    assert refused.value.param == f"picture {MOST_PICTURES}"


async def test_picture_files_are_read(folder: Path) -> None:
    assert await _read(f"{folder}/a picture.png", _open(folder)) == png(RED)
    assert await _read(f"file://{folder}/a%20picture.png", _open(folder)) == png(RED)
    assert await _read(f"file://localhost{folder}/a%20picture.png", _open(folder)) == png(RED)


async def test_links_within_folders_are_followed(folder: Path) -> None:
    (folder / "link.png").symlink_to("a picture.png")
    linked = folder.parent / "another name"
    linked.symlink_to(folder)
    assert await _read(f"{folder}/link.png", _open(folder)) == png(RED)
    assert await _read(f"{linked}/a picture.png", _open(folder)) == png(RED)
    assert await _read(f"{folder}/a picture.png", _open(linked)) == png(RED)


async def test_files_outside_folders_are_refused(folder: Path) -> None:
    (folder / "link.png").symlink_to(folder.parent / "hidden.png")
    (folder / "loop.png").symlink_to(folder / "loop.png")
    (folder.parent / "shown too").mkdir()
    (folder.parent / "shown too" / "a.png").write_bytes(png(GREEN))
    words = {
        await _refused(f"{folder}/{text}", _open(folder))
        for text in ("link.png", "loop.png", "none.png", "../hidden.png", "../shown too/a.png")
    }
    words.add(await _refused("/etc/passwd", _open(folder)))
    words.add(await _refused(f"file://{folder}/%2e%2e/hidden.png", _open(folder)))
    # One sentence for all: nobody learns what there is.
    assert words == {f"{NAME}: there is no such file in gateway.image_folders."}


async def test_odd_files_are_refused(short_path: Path) -> None:
    os.mkfifo(short_path / "pipe.png")
    (short_path / "text.png").write_text("a text")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(short_path / "socket.png"))
        for name in ("pipe.png", "socket.png", "text.png", ""):
            await _refused(f"{short_path}/{name}", _open(short_path))


async def test_pictures_are_counted_before_more_are_read() -> None:
    """Some bytes of a body may name a picture of megabytes."""
    picture = png(RED)
    budget = ByteBudget(len(picture))
    share = Share(budget)
    sources = [Source(data_url(picture), NAME)] * 2
    with pytest.raises(Refusal) as refused:
        await PictureReader().read(sources, CLOSED, share)
    assert refused.value.code == "overloaded"
    share.release()
    assert await PictureReader().read(sources[:1], CLOSED, Share(budget)) == [picture]
