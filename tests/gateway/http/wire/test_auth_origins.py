"""Names that a page could have had looked up for its own use."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from gateway.http.wire.auth import complaint, is_allowed


def refused(host: str, *, addresses: bool = False, origin: str | None = None) -> bool:
    headers = {"host": host} if origin is None else {"host": host, "origin": origin}
    reason = complaint(
        Headers(headers),
        http_1_0=False,
        hosts=("studio", "studio.local"),
        origins=(),
        addresses=addresses,
    )
    return reason is not None


@pytest.mark.parametrize(
    "host",
    [
        "192.168.1.7",
        "192.168.1.7:8642",
        "[fd00::7]:8642",
        "0.0.0.0:8642",
        "[::ffff:192.168.1.7]",
    ],
)
def test_addresses_count_where_others_can_come(host: str) -> None:
    assert not refused(host, addresses=True)
    assert refused(host)


@pytest.mark.parametrize("host", ["studio:8642", "STUDIO.local", "localhost", "127.0.0.1:1"])
def test_own_names_count(host: str) -> None:
    assert not refused(host, addresses=True)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "192.168.1.7.evil.example",
        "7.1.168.192.in-addr.arpa",
        "studio.evil.example",
        "studio.local.evil.example",
        "localhost.evil.example",
        # What some programs take for addresses, and a resolver for names.
        "3232235783",
        "0x7f.1",
        "127.1",
        "192.168.1.7@evil.example",
        "192.168.1.7:8642:80",
        "[192.168.1.7]x",
        "",
    ],
)
def test_a_bent_name_is_no_address(host: str) -> None:
    assert refused(host, addresses=True)


def test_the_page_of_an_address_is_not_that_of_another() -> None:
    assert refused("192.168.1.7:8642", addresses=True, origin="http://192.168.1.8:8642")
    assert refused("192.168.1.7:8642", addresses=True, origin="http://192.168.1.7:3000")
    assert not refused("192.168.1.7:8642", addresses=True, origin="http://192.168.1.7:8642")


LINK = {
    "host": "localhost:8642",
    "sec-fetch-site": "cross-site",
    "sec-fetch-mode": "navigate",
    "sec-fetch-dest": "document",
}


def _link_refused(*, opens_page: bool = True, **changes: str) -> bool:
    headers = Headers(
        {**LINK, **{name.replace("_", "-"): change for name, change in changes.items()}}
    )
    reason = complaint(headers, http_1_0=False, hosts=(), origins=(), opens_page=opens_page)
    return reason is not None


def test_a_link_from_another_site_opens_a_page_and_nothing_else() -> None:
    assert not _link_refused()
    assert not _link_refused(sec_fetch_site="same-site")
    assert _link_refused(opens_page=False)


@pytest.mark.parametrize(
    "changes",
    [
        {"sec_fetch_dest": "iframe"},
        {"sec_fetch_dest": "empty"},
        {"sec_fetch_mode": "no-cors"},
        {"sec_fetch_mode": "cors"},
        {"origin": "http://evil.example"},
        {"host": "evil.example"},
    ],
    ids=str,
)
def test_request_that_only_looks_like_link(changes: dict[str, str]) -> None:
    assert _link_refused(**changes)


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("app://obsidian.md", True),
        ("vscode-webview://0abc", True),
        ("moz-extension://7f-1", True),
        ("null", True),
        ("chrome-extension://abc", False),
        ("app:", False),
        ("app", False),
        ("xapp://obsidian.md", False),
        ("https://app://", False),
        (None, False),
    ],
)
def test_programs_and_their_pages_can_be_allowed(origin: str | None, allowed: bool) -> None:
    origins = ("app://*", "vscode-webview://*", "moz-extension://7f-1", "null")
    assert is_allowed(origin, origins) is allowed
    assert not is_allowed(origin, ())
