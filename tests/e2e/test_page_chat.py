"""The playground in a real browser: what people know of a chat, and answers that mean harm."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from tests.support.browser import Browser, missing
from tests.support.chat_server import ChatServer
from tests.support.gateway import Gateway

pytestmark = pytest.mark.outside_our_hands("Chromium and its driver are processes of others")

LAST = ".message.assistant:last-child"
LONG = "\n\n".join(f"Paragraph {number}, with **some** words." for number in range(60))
MARKDOWN = """# A heading

Words that are **strong**, *stressed*, ~~gone~~, `code` and &lt;quoted&gt;,
on two lines.

- one
  - within
- [x] done

| left | right |
| :-- | --: |
| 1<br>2 | <b>3</b> |

> A quote

1. first

   of two parts
2. second

```html
<script>const here = "a fence";</script>
```

[A link](https://example.org/a?b=c&d), <mailto:somebody@example.org>
"""
# What an answer may hold that means harm, or that another page would run or load.
HOSTILE = """<script>window.harmed = 1</script>

<img src=x onerror="window.harmed = 2">

Words <img src="http://127.0.0.1:9/inline" onerror="window.harmed = 3"> between words,
<a href="javascript:window.harmed = 4">a tag</a>, <svg onload="window.harmed = 5">,
<iframe srcdoc="<script>parent.harmed = 6</script>"></iframe>

[one](javascript:window.harmed=7) [two](JaVaScRiPt:window.harmed=8)
[three](java&#115;cript:window.harmed=9) [four](data:text/html,<script>parent.harmed=10</script>)
[five](vbscript:x) [six](<java\tscript:window.harmed=11>) [seven](//example.org/bare)
[eight](/admin/v1/keys "&quot; onmouseover=&quot;window.harmed=12")
<javascript:window.harmed=13>

![a picture](http://127.0.0.1:9/picture.png "title") ![x](data:image/svg+xml,<svg/onload=alert(1)>)
[![nested](http://127.0.0.1:9/nested.png)](javascript:window.harmed=14)

```"><script>window.harmed=15</script>
</code></pre><script>window.harmed = 16</script>
```

> - > 1. **[_`<img src=x onerror=window.harmed=17>`_](javascript:window.harmed=18)**

<style>body { display: none }</style>

[ref]: javascript:window.harmed=19
[ref] and [ok](https://example.org/fine)
"""


@pytest.fixture(scope="module")
def chats() -> Iterator[ChatServer]:
    with ChatServer() as running:
        yield running


@pytest.fixture(scope="module")
def gateway(chats: ChatServer) -> Iterator[Gateway]:
    running = Gateway(config=chats.config)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def browser(gateway: Gateway) -> Iterator[Browser]:
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with Browser() as running:
        yield running


@pytest.fixture
def page(browser: Browser, gateway: Gateway, chats: ChatServer) -> Iterator[Browser]:
    """In a new conversation with the model whose answers a test writes."""
    chats.pause_s = 0.0
    chats.held.clear()
    browser.resize(1440, 700)
    browser.open(f"{gateway.url}/ui#playground/far/writer")
    browser.driver.refresh()
    browser.until(lambda: browser.there("#message"))
    browser.click(".playground aside > button")
    chosen = ".choice select"
    browser.until(lambda: browser.find(chosen).get_attribute("value") == "far/writer")
    browser.until(lambda: not browser.there(".message"))
    yield browser
    chats.held.clear()
    assert browser.errors() == []


def _ask(page: Browser, chats: ChatServer, answer: str, question: str = "And?") -> None:
    chats.answer = answer
    page.type("#message", question + Keys.ENTER)


def _answered(page: Browser) -> None:
    page.until(lambda: page.there(f"{LAST}[aria-busy=false]"))


def _in_sight(page: Browser, selector: str) -> bool:
    """Whether its end is on the screen and nothing lies over it."""
    script = """
      const box = document.querySelector(arguments[0]).getBoundingClientRect();
      const at = document.elementFromPoint(box.left + 3, box.bottom - 3);
      return at !== null && document.querySelector(arguments[0]).contains(at);
    """
    return bool(page.driver.execute_script(script, selector))


def _scroll(page: Browser, top: int) -> None:
    page.driver.execute_script(
        "document.querySelector('.conversation').scrollTop = arguments[0]", top
    )


@pytest.mark.parametrize("size", [(1440, 700), (390, 700)])
def test_the_end_and_the_composer_are_always_seen(
    page: Browser, chats: ChatServer, size: tuple[int, int]
) -> None:
    page.resize(*size)
    for number in range(2):
        _ask(page, chats, LONG, f"Question {number}")
        page.until(lambda: page.there(LAST))
        _answered(page)
        page.until(lambda: _in_sight(page, f"{LAST} .text > :last-child"))
        assert _in_sight(page, "#message")
    page.driver.execute_script("location.hash = 'overview'")
    page.until(lambda: page.text("h1") == "Overview")
    page.driver.execute_script("location.hash = 'playground'")
    page.until(lambda: page.text("h1") == "Playground")
    page.until(lambda: _in_sight(page, f"{LAST} .text > :last-child"))
    whole = "return document.documentElement.scrollHeight"
    assert page.driver.execute_script(whole) <= size[1], "only the conversation scrolls"


def test_a_reader_of_what_is_above_is_left_there(page: Browser, chats: ChatServer) -> None:
    chats.held.set()
    _ask(page, chats, LONG)
    page.sees(LAST, "Paragraph 28,")
    page.until(lambda: _in_sight(page, f"{LAST} .text > :last-child"))
    _scroll(page, 10)
    page.until(lambda: page.there(".to-end"))
    chats.held.clear()
    _answered(page)
    assert (
        page.driver.execute_script("return document.querySelector('.conversation').scrollTop") == 10
    )
    page.click(".to-end")
    page.until(lambda: _in_sight(page, f"{LAST} .text > :last-child"))
    page.until(lambda: not page.there(".to-end"))
    _ask(page, chats, LONG, "Once more")
    page.until(lambda: page.text(".message:nth-child(4)"))
    _answered(page)
    page.until(lambda: _in_sight(page, f"{LAST} .text > :last-child"))


def test_markdown_is_drawn(page: Browser, chats: ChatServer) -> None:
    _ask(page, chats, MARKDOWN)
    _answered(page)
    within = f"{LAST} .markdown"
    for selector, text in {
        "h2": "A heading",
        "strong": "strong",
        "em": "stressed",
        "del": "gone",
        "p > code": "code",
        "ul > li li": "within",
        "td": "1\n2",
        "td.right": "<b>3</b>",
        "blockquote": "A quote",
        "ol > li + li": "second",
        "pre": '<script>const here = "a fence";</script>',
        ".code .head span": "html",
    }.items():
        assert page.text(f"{within} {selector}") == text, selector
    assert "code and <quoted>,\non two lines." in page.text(within)
    assert page.there(f"{within} input:checked:disabled")
    links = page.driver.execute_script(_LINKS, within)
    assert links == [
        ["https://example.org/a?b=c&d", "_blank", "noopener noreferrer"],
        ["mailto:somebody@example.org", "_blank", "noopener noreferrer"],
    ]
    assert page.findings() == []


_LINKS = """
  const links = document.querySelectorAll(`${arguments[0]} a`);
  return [...links].map((each) => [each.getAttribute("href"), each.target, each.rel]);
"""


def test_an_answer_can_do_no_harm(page: Browser, chats: ChatServer) -> None:
    _ask(page, chats, HOSTILE)
    _answered(page)
    within = f"{LAST} .markdown"
    foreign = "script, img, svg, iframe, style, object, [onerror], [onload], [onmouseover]"
    assert (
        page.driver.execute_script(
            "return document.querySelector(arguments[0]).querySelectorAll(arguments[1]).length",
            within,
            foreign,
        )
        == 0
    )
    shown = page.text(within)
    for name in ("<script>window.harmed = 1</script>", "onerror=", "<iframe srcdoc=", "<style>"):
        assert name in shown, "it is shown as it was written"
    targets = [item[0] for item in page.driver.execute_script(_LINKS, within)]
    assert set(targets) == {
        "http://127.0.0.1:9/picture.png",
        "http://127.0.0.1:9/nested.png",
        "https://example.org/fine",
    }
    assert page.driver.execute_script("return window.harmed ?? null") is None
    loaded = "return performance.getEntriesByType('resource').map((each) => each.name)"
    assert not [item for item in page.driver.execute_script(loaded) if ":9/" in item]


@pytest.mark.parametrize("text", [">" * 5000 + " deep", "- " * 3000 + "deep", "[" * 5000 + "deep"])
def test_endless_nesting_is_shown(page: Browser, chats: ChatServer, text: str) -> None:
    _ask(page, chats, text)
    _answered(page)
    page.sees(LAST, "deep")


FRAGMENTS = (
    *("\n", "\n\n", "\n    ", " ", "# ", "- ", "1. ", "2. ", "> ", "| a | b |\n| - | - |\n", "|"),
    *(
        "```",
        "~~~",
        "`",
        "**",
        "_",
        "~~",
        "[",
        "](",
        ")",
        "![",
        "<",
        ">",
        '"',
        "\\",
        "---",
        "- [x] ",
    ),
    *("word", "&lt;", "&#0;", "&#x6a;", "&colon;", "javascript:x", "https://e.org/", "data:,x"),
    *(
        "<script>x</script>",
        "<img src=x onerror=x>",
        "<!--",
        "-->",
        "<a href=javascript:x>",
        "</p>",
    ),
    *("<svg/onload=x>", "<br>", "<style>", "<iframe srcdoc=x>", "<x:y z>", "\r\n", "\t", "\u2028"),
)
# Draws each text whole, and as one that grows by a few characters. What is drawn is told.
DRAW = """
  const [texts, done] = arguments;
  (async () => {
    const { html, render } = await import("/ui/html.js");
    const { Markdown } = await import("/ui/markdown.js");
    const settled = () => new Promise((resolve) => setTimeout(resolve));
    const told = [];
    for (const text of texts) {
      const [whole, grown] = [document.createElement("div"), document.createElement("div")];
      render(html`<${Markdown} text=${text} growing=${false} />`, whole);
      for (let end = 3; end < text.length + 3; end += 3) {
        render(html`<${Markdown} text=${text.slice(0, end)} growing=${true} />`, grown);
      }
      const growing = grown.innerHTML;
      render(html`<${Markdown} text=${text} growing=${false} />`, grown);
      await settled();
      const elements = [...whole.querySelectorAll("*")];
      told.push({
        tags: elements.map((each) => each.localName),
        attributes: elements.flatMap((each) => each.getAttributeNames()),
        links: elements.filter((each) => each.localName === "a").map((each) => each.protocol),
        whole: whole.innerHTML,
        growing,
        grown: grown.innerHTML,
      });
    }
    done(told);
  })().catch((error) => done(`${error.stack}`));
"""
TAGS = (
    *("div", "p", "h2", "h3", "h4", "h5", "h6", "strong", "em", "del", "blockquote", "hr", "br"),
    *("code", "pre", "span", "button", "ul", "ol", "li", "input", "a"),
    *("table", "thead", "tbody", "tr", "th", "td"),
)
ATTRIBUTES = (
    *("class", "href", "title", "target", "rel", "tabindex", "role", "aria-label", "type"),
    *("disabled", "checked", "scope", "start"),
)


def test_nothing_but_known_elements_is_ever_drawn(page: Browser) -> None:
    chance = random.Random(1)
    texts = ["x" + "".join(chance.choices(FRAGMENTS, k=chance.randint(1, 30))) for _ in range(500)]
    told = page.driver.execute_async_script(DRAW, texts)
    assert isinstance(told, list), told
    for text, item in zip(texts, told, strict=True):
        assert set(item["tags"]) <= {*TAGS}, text
        assert set(item["attributes"]) <= {*ATTRIBUTES}, text
        assert set(item["links"]) <= {"http:", "https:", "mailto:"}, text
        assert item["grown"] == item["whole"], text
    # Before its end a growing text may differ for a moment, though hardly ever.
    assert sum(item["growing"] == item["whole"] for item in told) > 0.98 * len(told)


def test_copying_answers_and_code(page: Browser, chats: ChatServer) -> None:
    _ask(page, chats, MARKDOWN)
    _answered(page)
    origin = page.driver.execute_script("return location.origin")
    granted = {"origin": origin, "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    page.driver.execute_cdp_cmd("Browser.grantPermissions", granted)
    page.click("[aria-label='Copy the answer']")
    page.sees(f"{LAST} .below .copy", "Copied")
    assert _clipboard(page) == MARKDOWN
    page.click("[aria-label='Copy the code']")
    page.sees(f"{LAST} .code .copy", "Copied")
    assert _clipboard(page) == '<script>const here = "a fence";</script>'
    # Over plain HTTP from another machine a page has no clipboard.
    page.driver.execute_script(
        "Object.defineProperty(navigator, 'clipboard', { value: undefined })"
    )
    page.until(lambda: page.there("[aria-label='Copy the answer']"))
    page.driver.execute_script("document.addEventListener('copy', () => { window.taken = 1 })")
    page.click("[aria-label='Copy the answer']")
    page.sees(f"{LAST} .below .copy", "Copied")
    assert page.driver.execute_script("return window.taken") == 1


def _clipboard(page: Browser) -> Any:
    script = (
        "navigator.clipboard.readText().then(arguments[0], (error) => arguments[0](`${error}`))"
    )
    return page.driver.execute_async_script(script)


def test_another_conversation_goes_on_beside_one_that_streams(
    page: Browser, chats: ChatServer
) -> None:
    chats.held.set()
    _ask(page, chats, "The first answer, which takes its time.", "First question")
    page.sees(LAST, "The first")
    page.click(".playground aside > button")
    page.until(lambda: not page.there(".message"))
    assert page.there(".playground aside li .dot")
    chats.held.clear()
    _ask(page, chats, "The second answer.", "Second question")
    page.sees(LAST, "The second answer.")
    page.until(lambda: not page.there(".playground aside li .dot"))
    page.click(".playground aside li:nth-child(2) .title")
    page.sees(LAST, "The first answer, which takes its time.")
    assert page.text(".message.user") == "You\nFirst question"
    chats.held.set()
    page.click(f"{LAST} .below button:nth-child(2)")
    page.until(lambda: page.there(f"{LAST}[aria-busy=true]"))
    page.click(".playground aside .current [aria-label^=Delete]")
    page.sees("dialog", "First question")
    page.click("dialog button:not(.danger)")
    page.until(lambda: not page.there("dialog"))
    page.click(".playground aside .current [aria-label^=Delete]")
    page.click("dialog .danger")
    page.until(lambda: "First question" not in page.text(".playground aside ul"))
    assert not page.there(".message")
    page.until(lambda: page.driver.switch_to.active_element.text == "New conversation")


@contextlib.contextmanager
def _another_tab(page: Browser) -> Iterator[str]:
    """Of the same address, in sight; its first conversation is the one of the first tab."""
    first = page.driver.current_window_handle
    address = page.driver.current_url
    page.driver.switch_to.new_window("tab")
    page.resize(1440, 700)
    page.open(address)
    page.until(lambda: page.there(".message"))
    try:
        yield first
    finally:
        page.driver.close()
        page.driver.switch_to.window(first)


def test_turns_of_another_tab_are_never_lost(page: Browser, chats: ChatServer) -> None:
    _ask(page, chats, "The first answer.", "First question")
    _answered(page)
    with _another_tab(page) as first:
        second = page.driver.current_window_handle
        _ask(page, chats, "The second answer.", "Second question")
        page.sees(LAST, "The second answer.")
        _answered(page)
        page.driver.switch_to.window(first)
        page.sees(LAST, "The second answer.")
        # Both ask at once: each has its turn.
        chats.held.set()
        _ask(page, chats, "The third answer, in the first tab.", "Third question")
        page.sees(LAST, "The third")
        page.driver.switch_to.window(second)
        page.sees(LAST, "The third")
        _ask(page, chats, "The fourth answer.", "Fourth question")
        page.sees(".playground aside ul", "First question")
        chats.held.clear()
        page.sees(LAST, "The fourth answer.")
        _answered(page)
        page.driver.switch_to.window(first)
        page.sees(".talk > .error", "Another tab")
        page.sees(LAST, "The third answer, in the first tab.")
        page.until(lambda: "Fourth question" not in page.text(".messages"))
        page.driver.refresh()
        page.until(lambda: page.there(".playground aside li:nth-child(2)"))
        seen = ""
        for place in (1, 2):
            page.click(f".playground aside li:nth-child({place}) .title")
            page.until(lambda: page.there(LAST))
            page.sees(".messages", "The second answer.")
            seen += page.text(".messages")
        assert "The third answer, in the first tab." in seen
        assert "The fourth answer." in seen
        page.driver.switch_to.window(second)


def test_an_answer_that_a_reload_cuts_keeps_its_text(page: Browser, chats: ChatServer) -> None:
    chats.held.set()
    _ask(page, chats, "The answer begins, and then it takes its time.", "A question")
    page.sees(LAST, "The answer begins")
    page.until(lambda: "The answer begins" in str(_stored(page)))
    page.driver.refresh()
    page.sees(LAST, "The answer begins")
    page.sees(f"{LAST} .below", "Interrupted.")
    page.click(f"{LAST} .below button:nth-child(2)")
    # The old answer stays until there is more of the new one.
    page.until(lambda: len(chats.asked) > 1 and page.there(f"{LAST}[aria-busy=true]"))
    chats.held.clear()
    page.sees(LAST, "and then it takes its time.")
    _answered(page)
    assert page.text(".messages").count("The answer begins") == 1


def test_answering_again_keeps_the_old_answer_until_it_begins(
    page: Browser, chats: ChatServer
) -> None:
    _ask(page, chats, "The old answer.", "A question")
    _answered(page)
    chats.held.set()
    # Its first piece is its second half, too.
    chats.answer = "!"
    page.click(f"{LAST} .below button:nth-child(2)")
    page.until(lambda: page.there(f"{LAST}[aria-busy=true]"))
    assert "The old answer." in page.text(".messages")
    page.driver.find_element("css selector", "#message").send_keys(Keys.ESCAPE)
    page.until(lambda: not page.there("[aria-busy=true]"))
    page.sees(LAST, "The old answer.")
    chats.held.clear()
    page.click(f"{LAST} .below button:nth-child(2)")
    page.sees(LAST, "!")
    _answered(page)
    assert "The old answer." not in page.text(".messages")


def test_a_draft_belongs_to_its_conversation(page: Browser, chats: ChatServer) -> None:
    _ask(page, chats, "An answer.", "A question")
    _answered(page)
    page.type("#message", "half a thought")
    page.click(".playground aside > button")
    value = "return document.getElementById('message').value"
    page.until(lambda: page.driver.execute_script(value) == "")
    page.type("#message", "another")
    page.click(".playground aside li:first-child .title")
    page.until(lambda: page.driver.execute_script(value) == "half a thought")
    page.click(".playground aside > button")
    page.until(lambda: page.driver.execute_script(value) == "another")
    page.type("#message", "")


@pytest.mark.parametrize(
    ("state", "model", "request_state", "said"),
    [
        (
            "waiting",
            {"state": "loading", "reason": "loading: 1 GB of 2 GB"},
            None,
            "Waiting: the model is loading: 1 GB of 2 GB…",
        ),
        (
            "waiting",
            {"state": "backoff", "reason": "it died"},
            None,
            "Waiting: the model waits for its next start, it died…",
        ),
        (
            "streaming",
            {"state": "starting", "reason": None},
            "parked",
            "The model's process ended: the answer goes on in another one; the model is starting…",
        ),
        (
            "streaming",
            {"state": "ready", "reason": None},
            "parked",
            "The model's process ended: the answer goes on in another one…",
        ),
        ("streaming", {"state": "ready", "reason": None}, "running", None),
        ("streaming", {"state": "draining", "reason": None}, "running", None),
    ],
)
def test_an_answer_says_what_it_waits_for(
    page: Browser, state: str, model: dict[str, Any], request_state: str | None, said: str | None
) -> None:
    script = """
      const [state, model, requestState, done] = arguments;
      (async () => {
        const { html, render } = await import("/ui/html.js");
        const { Message } = await import("/ui/message.js");
        const box = document.createElement("ol");
        const message = { role: "assistant", text: state === "streaming" ? "Some" : "", state };
        const request = requestState && { state: requestState };
        render(html`<${Message} message=${message} model=${model} request=${request} />`, box);
        done(box.querySelector(".sum")?.textContent ?? null);
      })();
    """
    assert page.driver.execute_async_script(script, state, model, request_state) == said


def _stored(page: Browser) -> Any:
    script = """
      const [done] = arguments;
      import("/ui/conversation_store.js")
        .then(({ allConversations }) => allConversations())
        .then((found) => done(JSON.stringify(found[0] ?? null)));
    """
    return page.driver.execute_async_script(script)


def test_an_answer_says_how_fast_it_was_and_how_full_the_context_is(
    page: Browser, chats: ChatServer, gateway: Gateway
) -> None:
    gateway.load()
    page.click(".choice select option:first-child")
    page.type("#message", "What is Bulkhead?" + Keys.ENTER)
    _answered(page)
    page.sees(f"{LAST} .below", " tokens/s")
    page.sees(f"{LAST} .below", f" of {gateway.model()['context_tokens']:,} tokens of context")


def test_a_long_answer_is_drawn_piece_by_piece(page: Browser, chats: ChatServer) -> None:
    """What was drawn stays as it is, whatever comes behind it."""
    chats.held.set()
    _ask(page, chats, LONG)
    page.sees(LAST, "Paragraph 28,")
    mark = f"document.querySelector('{LAST} .markdown p').marked = true"
    page.driver.execute_script(mark)
    watch = """
      window.changed = 0;
      const first = document.querySelector(arguments[0]);
      new MutationObserver((all) => { window.changed += all.length })
        .observe(first, { subtree: true, childList: true, characterData: true });
    """
    page.driver.execute_script(watch, f"{LAST} .markdown p")
    chats.held.clear()
    _answered(page)
    assert page.driver.execute_script("return window.changed") == 0
    assert page.driver.execute_script(
        "return document.querySelector(arguments[0]).marked", f"{LAST} .markdown p"
    )
    paragraphs = "return document.querySelectorAll(arguments[0]).length"
    assert page.driver.execute_script(paragraphs, f"{LAST} .markdown > p") == 60


def test_without_a_model_a_link_leads_to_the_search(browser: Browser, tmp_path: Path) -> None:
    running = Gateway(models=(), environment={"HF_HUB_CACHE": str(tmp_path)})
    try:
        browser.open(f"{running.url}/ui#playground")
        browser.sees(".conversation .empty", "There is no model to ask")
        assert not browser.find(".composer button.primary").is_enabled()
        browser.click(".conversation .empty a")
        browser.sees("#search", "Find a model")
    finally:
        assert running.stop() == 0, running.log
