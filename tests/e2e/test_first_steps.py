"""What `serve` says to whoever has started it, beside the one line that scripts read."""

from __future__ import annotations

import pytest

from tests.support.gateway import Gateway, eventually


@pytest.mark.parametrize(
    ("models", "told"),
    [
        (("demo", "demo=other"), "Its models are demo, other. To chat, type in another terminal: "),
        ((), "It has no model yet: `bulkhead run` in another terminal finds one."),
    ],
)
def test_the_page_the_models_and_one_step(models: tuple[str, ...], told: str) -> None:
    gateway = Gateway(models=models)
    try:
        page = f"Its page is {gateway.url}/ui. {told}"
        eventually(lambda: page in gateway.log)
    finally:
        assert gateway.stop() == 0, gateway.log
    assert gateway.process.stdout is not None
    assert gateway.process.stdout.read() == "", "scripts read one line"
