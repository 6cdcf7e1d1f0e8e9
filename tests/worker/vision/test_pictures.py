"""Pictures are measured before they are decoded."""

from __future__ import annotations

import io
import tracemalloc
from typing import Any

import numpy as np
import pytest
from PIL import Image

from protocol.requests import (
    MOST_PIXELS,
    MOST_SEEN_PIXELS,
    Picture,
)
from tests.support.pictures import GREEN, RED, bomb, png
from worker.vision import PictureInputs, PictureSpan, UndecodablePictureError
from worker.vision.pictures import decode_pictures, find_pictures


def _pictures(*files: bytes) -> list[Picture]:
    return [Picture(data, 0, f"picture {number}") for number, data in enumerate(files)]


def _saved(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_kinds(kind: str) -> None:
    (image,) = decode_pictures(_pictures(_saved(Image.new("RGB", (6, 4), RED), kind)))
    assert (image.mode, image.size) == ("RGB", (6, 4))
    red, green, blue = image.getpixel((3, 2))
    assert red > 240
    assert max(green, blue) < 15


def test_first_frame_of_those_that_move() -> None:
    frames = [Image.new("RGB", (6, 4), text) for text in ("red", "blue")]
    data = _saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    (image,) = decode_pictures(_pictures(data))
    assert image.getpixel((0, 0)) == RED


def test_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # Orientation: to be turned by a quarter.
    data = _saved(Image.new("RGB", (6, 4)), "JPEG", exif=exif)
    (image,) = decode_pictures(_pictures(data))
    assert image.size == (4, 6)


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_large_ones_are_made_smaller(kind: str) -> None:
    (image,) = decode_pictures(_pictures(_saved(Image.new("RGB", (6000, 1500), RED), kind)))
    assert MOST_SEEN_PIXELS * 0.9 < image.width * image.height <= MOST_SEEN_PIXELS
    assert abs(image.width / image.height - 4) < 0.02
    assert image.getpixel((0, 0))[0] > 240


def test_transparent_on_white() -> None:
    (image,) = decode_pictures(_pictures(_saved(Image.new("RGBA", (2, 2), (0, 0, 0, 0)), "PNG")))
    assert image.getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x89PNG\r\n\x1a\nnothing", "or is broken"),
        (_saved(Image.new("RGB", (4, 4)), "TIFF"), "it is no PNG"),
        (png(RED)[:-30], "can't be decoded"),
        (bomb(200, 200), "can't be decoded"),
        (bomb(10_000, 10_000), "10000 x 10000 pixels"),
        (bomb(60_000, 60_000), "too many pixels"),
    ],
    ids=["broken", "another kind", "cut off", "without pixels", "100 megapixels", "bomb"],
)
def test_refused(data: bytes, reason: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(UndecodablePictureError, match=reason) as refused:
            decode_pictures(_pictures(png(RED), data))
        assert refused.value.number == 1
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_pixels_of_all_together() -> None:
    """Neither is decoded, though only the second is too much."""
    half = bomb(10_000, MOST_PIXELS // 10_000)
    with pytest.raises(UndecodablePictureError, match="with those before it") as refused:
        decode_pictures(_pictures(half, png(RED)))
    assert refused.value.number == 1


def test_each_picture_has_its_tokens() -> None:
    tokens = [1, 9, 9, 2, 9, 9, 9, 3]
    red, green = _pictures(png(RED), png(GREEN))
    first, second = find_pictures(tokens, 9, [red, green])
    assert (first.begin, first.end, second.begin, second.end) == (1, 3, 4, 7)
    assert first.digest != second.digest
    assert find_pictures(tokens, 9, [green, red])[1].digest != first.digest
    # A picture that is seen as fewer tokens was made smaller.
    assert find_pictures([9, 9, 9], 9, [red])[0].digest != first.digest
    assert find_pictures([5, 9, 9], 9, [red])[0].digest == first.digest


@pytest.mark.parametrize(
    ("token", "begin", "end"), [(9, 1, 5), (8, 0, 6), (None, 0, 6)], ids=["tiles", "other", "none"]
)
def test_pictures_whose_tokens_are_not_distinguished(
    token: int | None, begin: int, end: int
) -> None:
    """They count as one."""
    (found,) = find_pictures([1, 9, 2, 9, 9, 3], token, _pictures(png(RED)))
    assert (found.begin, found.end) == (begin, end)


def _inputs(**arrays: Any) -> PictureInputs:
    return PictureInputs(arrays, 9, (PictureSpan(1, 3, b"a"), PictureSpan(4, 7, b"b")))


def test_the_pictures_before_a_place() -> None:
    inputs = _inputs()
    assert [inputs.before(index) for index in range(9)] == [0, 0, None, 1, 1, None, None, 2, 2]


def test_the_arrays_of_the_last_pictures() -> None:
    grids = np.array([[1, 2, 2], [1, 2, 3]])
    inputs = _inputs(image_grid_thw=grids, pixel_values=np.arange(10)[:, None])
    found = inputs.arrays_from(1)
    assert found is not None
    assert found["image_grid_thw"].tolist() == [[1, 2, 3]]
    assert found["pixel_values"].ravel().tolist() == [4, 5, 6, 7, 8, 9]
    assert _inputs(pixel_values=np.zeros((2, 3))).arrays_from(1) is not None
    assert _inputs(pixel_values=np.zeros((1, 7, 3))).arrays_from(1) is None
    assert _inputs(pixel_values=np.zeros((2, 3)), number=4).arrays_from(1) is None
