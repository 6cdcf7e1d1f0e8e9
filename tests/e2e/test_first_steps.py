"""What `serve` says beside the line that scripts read, and what a mistyped path gets."""

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


def test_a_path_with_a_typo_gets_the_one_that_was_meant() -> None:
    gateway = Gateway()
    try:
        for method, path, meant in (
            ("POST", "/v1/chat/completion", "/v1/chat/completions"),
            ("GET", "/admin/v1/statu", "/admin/v1/status"),
            ("GET", "/nothing-like-it-at-all", None),
        ):
            answer = gateway.client.request(method, path)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (404, "not_found")
            said = f"There is no {path} here; / lists the paths."
            assert error["message"] == said + (f" Did you mean {meant!r}?" if meant else "")
        anthropic = gateway.client.post("/v1/messages/count_token").json()
        assert anthropic["error"]["type"] == "not_found_error"
        assert "/v1/messages/count_tokens" in anthropic["error"]["message"]
    finally:
        gateway.stop()
