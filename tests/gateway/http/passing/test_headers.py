"""The headers that other servers and clients get."""

from __future__ import annotations

from gateway.http.passing.headers import client_headers, server_headers


def test_only_known_headers_pass() -> None:
    passed = [(b"content-type", b"a/b"), (b"cache-control", b"no-cache")]
    both = b"cookie set-cookie host via x-forwarded-for connection trailer x-litellm-tags x-own"
    to_server = b"authorization x-api-key forwarded x-real-ip x-original-url sec-fetch-mode origin"
    to_server += b" x-http-method-override x-portkey-config cf-connecting-ip content-length"
    to_client = b"alt-svc nel report-to refresh location server date x-bulkhead-left-out link"
    to_client += b" openai-organization anthropic-organization-id"
    to_client += b" access-control-allow-origin x-request-id x-ratelimit-limit-requests"
    # All that may pass is of the whole way, whatever Connection names.
    named = [(b"connection", b"close, content-type")]

    def among(names: bytes) -> list[tuple[bytes, bytes]]:
        return [*passed, *((name, b"other") for name in names.split()), *named]

    of_operators = b"openai-organization openai-project x-priority"
    names = both + b" " + to_server + b" " + of_operators
    by_operator = server_headers(among(names), "b", operator=True)
    assert {name for name, _ in by_operator} >= {*of_operators.split()}
    on = server_headers(among(names), "b", operator=False)
    assert on == [*passed, (b"via", b"other, 1.1 b")]
    sent = [(b"content-length", b"3"), *among(both + b" " + to_client)]
    assert client_headers(sent, 200, framed=True)[:-2] == sent[:3]
    assert {name for name, _ in client_headers(sent, 200, framed=False)} == {
        b"content-type",
        b"cache-control",
        b"content-security-policy",
        b"x-content-type-options",
    }
