"""What may be asked for, and which repositories it may be."""

from __future__ import annotations

import pytest

from gateway.library.reference import parse_reference


@pytest.mark.parametrize(
    ("text", "candidates"),
    [
        ("mlx-community/Qwen3-4B-4bit", ("mlx-community/Qwen3-4B-4bit",)),
        ("Qwen/Qwen3-4B:4bit", ("Qwen/Qwen3-4B-4bit", "mlx-community/Qwen3-4B-4bit")),
        ("mlx-community/Qwen3-4B:8bit", ("mlx-community/Qwen3-4B-8bit",)),
        (
            "me/Qwen3-4B-4bit:4bit",
            (
                "me/Qwen3-4B-4bit",
                "me/Qwen3-4B-4bit-4bit",
                "mlx-community/Qwen3-4B-4bit-4bit",
            ),
        ),
        ("https://huggingface.co/Qwen/Qwen3-4B/", ("Qwen/Qwen3-4B",)),
        ("https://huggingface.co/Qwen/Qwen3-4B/tree/main", ("Qwen/Qwen3-4B",)),
        (
            "hf.co/Qwen/Qwen3-4B:4bit-DWQ",
            ("Qwen/Qwen3-4B-4bit-DWQ", "mlx-community/Qwen3-4B-4bit-DWQ"),
        ),
    ],
)
def test_which_repositories_it_may_be(text: str, candidates: tuple[str, ...]) -> None:
    assert parse_reference(text).candidates == candidates


@pytest.mark.parametrize(
    "text",
    [
        "",
        "qwen3",
        "a/b/c",
        "../x",
        "a/..",
        "a/b:",
        "a/b:c:d",
        "-a/b",
        "a/b-",
        "a/b--c",
        "a/ü",
        f"a/{'b' * 100}",
    ],
)
def test_text_that_names_no_model_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected OWNER/NAME"):
        parse_reference(text)


def test_a_name_without_owner_is_told_of_the_community() -> None:
    with pytest.raises(ValueError, match="mlx-community/qwen3"):
        parse_reference("qwen3")
