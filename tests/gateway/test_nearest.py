from __future__ import annotations

import pytest

from gateway.nearest import nearest, nearest_model, suggestion

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


def test_names() -> None:
    assert nearest("STATUS", ("start", "status")) == "status"
    assert nearest("top", ("events", "chat")) is None
    assert suggestion("top") == " Did you mean 'top'?"
    assert suggestion(None) == ""
