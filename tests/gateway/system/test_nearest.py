from __future__ import annotations

import pytest

from gateway.system.notation import alike, nearest, nearest_model, suggestion

IDS = ("mlx-community/Qwen3-4B-4bit", "Llama-3.2-3B-Instruct-4bit", "demo", "a/b")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("Demo", "demo"),
        ("demmo", "demo"),
        ("qwen3-4b-4bit", "mlx-community/Qwen3-4B-4bit"),
        ("Qwen/Qwen3-4B", "mlx-community/Qwen3-4B-4bit"),
        ("qwen3", "mlx-community/Qwen3-4B-4bit"),
        ("llama-3.2", "Llama-3.2-3B-Instruct-4bit"),
        ("gpt-4o", None),
        ("", None),
        ("/", None),
        ("demo" * 10_000_000, None),
    ],
)
def test_models_by_what_people_write(name: str, meant: str | None) -> None:
    assert nearest_model(name, IDS) == meant


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("acme/Tinny", ["acme/Tiny-4bit"]),
        ("tiny-4bit", ["acme/Tiny-4bit"]),
        ("acme/Large-4bit", ["acme/Large-8bit", "acme/Large-6bit"]),
        ("other/Else", []),
        ("acme/" * 10_000_000, []),
    ],
)
def test_several_that_are_alike(name: str, meant: list[str]) -> None:
    found = alike(name, ("acme/Tiny-4bit", "acme/Large-8bit", "acme/Large-6bit"))
    assert sorted(found[: len(meant) or None]) == sorted(meant)


def test_names() -> None:
    assert nearest("STATUS", ("start", "status")) == "status"
    assert nearest("top", ("events", "chat")) is None
    assert suggestion("top") == " Did you mean 'top'?"
    assert suggestion(None) == ""
