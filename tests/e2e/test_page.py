"""The page at /ui in a real browser, on a gateway with keys."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from selenium.webdriver.common.keys import Keys

from tests.cli.terminal import bulkhead
from tests.support.browser import Browser, missing
from tests.support.faults import in_engine_step, sitecustomize
from tests.support.folders import short_folder
from tests.support.gateway import START_S, Gateway, eventually
from tests.support.hub import Answer, Hub
from tests.support.pictures import RED, png
from tests.support.ports import free_port
from tests.support.pulls import model_files
from tests.support.shapes import DEMO
from tests.support.streams import open_stream

pytestmark = pytest.mark.outside_our_hands("Chromium and its driver are processes of others")

PULLED = "org/slow-4bit"
FOUND, HUGE = "mlx-community/Tiny3-4B-4bit", "org/Tiny3-4B-8bit"
QUESTION = "What is Bulkhead?"
MISSING = "a-company/whose-models-have-names-that-tell-it-all-30B-A3B-Instruct-4bit"
MISSING_FOLDER = "/nowhere/" + "/".join(["a-folder-within-another"] * 6)
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}},
            "required": ["city"],
        },
    },
}
VIEWS = ("overview", "playground", "connect/demo", "logs/demo", "keys")
# What a browser says by itself of responses that a test provokes.
PROVOKED = re.compile(r"status of (400|401|503) |ERR_(CONNECTION|INCOMPLETE|EMPTY|SOCKET|ABORTED)")


class Site:
    """A gateway that can be started anew where it was, with its keys."""

    def __init__(self, state_dir: Path, hub: Hub, cache: Path, faults: Path) -> None:
        # Each engine step takes a tenth of a second, or two whole ones, while the flag is there.
        self.slow, self.slower = faults / "slow", faults / "slower"
        self._state_dir = state_dir
        self._port = free_port()
        self._config = (
            f'[hub]\nendpoint = "{hub.url}"\n[models."{MISSING}"]\npath = "{MISSING_FOLDER}"\n'
        )
        step = in_engine_step(
            f"time.sleep(0.1 * os.path.exists({str(self.slow)!r})"
            f" + 2 * os.path.exists({str(self.slower)!r}))"
        )
        self._environment = {
            **sitecustomize(faults / "site", step),
            "HF_HUB_CACHE": str(cache),
        }
        made = bulkhead("key", "add", "first", "--state-dir", str(state_dir))
        assert made.returncode == 0, made.stderr
        self.gateway = self._start()

    @property
    def admin_key(self) -> str:
        return (self._state_dir / "admin.key").read_text().strip()

    @property
    def url(self) -> str:
        return f"{self.gateway.url}/ui"

    @contextlib.contextmanager
    def slowed(self) -> Iterator[None]:
        self.slow.touch()
        try:
            yield
        finally:
            self.slow.unlink()
            self.slower.unlink(missing_ok=True)

    def stop(self) -> None:
        assert self.gateway.stop() == 0, self.gateway.log

    def start(self) -> None:
        self.gateway = self._start()

    def _start(self) -> Gateway:
        where = ("--port", str(self._port), "--state-dir", str(self._state_dir))
        gateway = Gateway(*where, config=self._config, environment=self._environment)
        gateway.client.headers["x-api-key"] = self.admin_key
        return gateway


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    demo = {path.name: path.read_bytes() for path in DEMO.iterdir() if path.is_file()}
    repositories = {PULLED: model_files(shard_bytes=3_000_000), FOUND: demo, HUGE: demo}
    with Hub(repositories) as running:
        huge = {"parameters": {"U32": 10**12}, "total": 10**12}
        running.told[HUGE] = {"safetensors": huge, "usedStorage": 10**13}
        yield running


@pytest.fixture(scope="module")
def site(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    cache, faults = tmp_path_factory.mktemp("cache"), tmp_path_factory.mktemp("faults")
    with short_folder() as folder:
        running = Site(Path(folder) / "state", hub, cache, faults)
        yield running
        running.stop()


@pytest.fixture(scope="module")
def browser(site: Site) -> Iterator[Browser]:
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with Browser() as running:
        yield running


@pytest.fixture
def page(browser: Browser, site: Site) -> Iterator[Browser]:
    """Signed in, on the overview; no test leaves errors in the console."""
    browser.open(site.url)
    browser.until(lambda: browser.there(".sign-in") or browser.there("#memory"))
    if browser.there(".sign-in"):
        _sign_in(browser, site.admin_key)
    _show(browser, "overview")
    browser.sees(".connection", "live")
    yield browser
    errors = [error["message"] for error in browser.errors()]
    assert [error for error in errors if not PROVOKED.search(error)] == []


def _sign_in(page: Browser, key: str) -> None:
    page.type(".sign-in input[type=password]", key)
    page.click(".sign-in button")


def _show(page: Browser, view: str) -> None:
    page.driver.execute_script("location.hash = arguments[0]", view)
    title = view.split("/")[0].title()
    page.until(lambda: page.text("h1") == title)


def _state(page: Browser) -> str:
    return page.text("[data-model=demo] .state")


def _settings(page: Browser, **settings: str) -> None:
    """Of the playground, for a new conversation; all others as they are at first."""
    kept = {"model": "demo", "temperature": "0", **settings}
    script = "localStorage.setItem('bulkhead.playground', arguments[0]); location.reload()"
    _show(page, "playground")
    page.driver.execute_script(script, json.dumps(kept))
    page.until(lambda: page.text("h1") == "Playground" and page.there("#message"))
    page.click(".playground aside > button")
    page.until(lambda: not page.there(".message"))


def _ask(page: Browser, text: str = QUESTION) -> None:
    page.type("#message", text + Keys.ENTER)


def _answered(page: Browser) -> str:
    """The whole of the last answer."""
    page.until(lambda: page.there(".message.assistant:last-child[aria-busy=false]"))
    return page.text(".message.assistant:last-child .text")


def test_files_are_open_and_locked_down(site: Site) -> None:
    with httpx.Client(base_url=site.gateway.url) as stranger:
        index = stranger.get("/ui")
        assert index.headers["content-type"] == "text/html; charset=utf-8"
        policy = index.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy, "nothing from outside"
        assert stranger.get("/ui/").content == index.content
        assert stranger.head("/ui").headers["etag"] == index.headers["etag"]
        named = re.findall(r'"(/ui/[^"]+)"', index.text)
        assert "/ui/app.js" in named
        for item in named:
            file = stranger.get(item)
            assert file.status_code == 200, item
            known = {"if-none-match": file.headers["etag"]}
            assert stranger.get(item, headers=known).status_code == 304
        for name in ("/ui/nothing.js", "/ui/%2e%2e/page.py", "/ui/..%2fpage.py", "/ui/vendor"):
            assert stranger.get(name).status_code == 404, name
        for name in ("/admin/v1/live", "/admin/v1/requests"):
            assert stranger.get(name).status_code == 401, name


@pytest.mark.slow
def test_only_the_admin_key_signs_in(browser: Browser, site: Site) -> None:
    browser.open(site.url)
    browser.sees(".sign-in", "Admin key")
    assert browser.findings() == []
    _sign_in(browser, "sk-bulkhead-wrong")
    browser.sees(".sign-in .error", "not known here")
    browser.driver.refresh()
    browser.sees(".sign-in .error", "not known here")
    _sign_in(browser, site.admin_key)
    browser.sees(".connection", "live")
    browser.driver.refresh()
    browser.sees(".connection", "live")


@pytest.mark.slow
def test_a_load_is_watched(page: Browser, site: Site) -> None:
    site.gateway.order("unload").raise_for_status()
    page.until(lambda: _state(page) == "unloaded")
    page.click("[aria-label='Load demo']")
    page.until(lambda: _state(page) == "ready")
    page.sees(".events", "demo was loaded in ")
    page.until(lambda: "demo: ready" in page.find("[aria-labelledby=models] [role=status]").text)
    assert page.text(".legend[aria-label=Promised]").startswith("Promised\ndemo\n")
    page.click("[aria-labelledby=memory] button.quiet")
    assert page.text(".legend[aria-label=Promised]").startswith("Promised\nFloor\n")
    page.click("[aria-label='Unload demo']")
    page.until(lambda: _state(page) == "unloaded")
    assert not page.there("dialog"), "nothing was cut"


def test_a_check_is_started_followed_and_cancelled(page: Browser, site: Site) -> None:
    button = "[data-model=demo] [aria-label='{} of demo']"
    page.click(button.format("Check"))
    page.click(button.format("Cancel check"))
    page.sees("[data-model=demo] .error", "The check was cancelled.")
    page.click(button.format("Check"))
    page.sees("[data-model=demo] [role=status]", "files")
    page.sees("[data-model=demo] .last-check summary", "Check: ")
    page.click("[data-model=demo] .last-check summary")
    report = site.gateway.client.get("/admin/v1/models/demo/check").json()
    page.sees("[data-model=demo] .last-check", report["findings"][0]["what"])
    page.sees(".events", "The check of demo: ")
    assert page.findings() == []


def test_faults_stand_at_the_top_and_terms_are_explained(page: Browser) -> None:
    page.sees(
        ".troubles", f"'{MISSING}' can't be loaded: There is no model folder {MISSING_FOLDER}"
    )
    assert page.find(".cards h3").text == MISSING
    assert "1 with trouble" in page.text("[aria-labelledby=models]")
    page.click(".troubles summary")
    page.until(lambda: page.there(".troubles [open]"))
    assert MISSING_FOLDER not in page.text(".cards"), "it stands once"
    page.sees(".cards", "It can't be served: see above.")
    page.click(".cards .bad a")
    page.until(lambda: page.driver.switch_to.active_element.get_attribute("class") == "troubles")
    assert "#overview" in page.driver.current_url
    page.click(f"[aria-label='Load {MISSING}']")
    page.sees(".cards .error", "The load failed.")
    page.click(".legend .term")
    page.sees(".meaning:popover-open", ".")
    page.type("[aria-label='Filter of events']", "nothing is like this")
    page.sees("[aria-labelledby=events]", "No event is like that.")
    page.type("[aria-label='Filter of events']", "NO MODEL FOLDER")
    page.sees(".events .sentence", f"{MISSING} is unloaded: ")


def test_the_last_hour_and_day_are_drawn(page: Browser, site: Site) -> None:
    site.gateway.say("Hello", max_tokens=20)
    page.sees(".history .key", "demo")
    os.kill(site.gateway.worker_pid(), signal.SIGKILL)
    plot = ".history .plot"

    def description() -> str:
        return page.find(plot).get_attribute("aria-label") or ""

    page.until(lambda: "1 death" in description())
    assert page.there(f"{plot} canvas")
    page.sees(".history .key", "Budget")
    assert page.text(".moment output") == "now"
    page.find(".moment input").send_keys(Keys.ARROW_LEFT)
    page.until(lambda: re.fullmatch(r"\d\d:\d\d:\d\d", page.text(".moment output")))
    assert " held of " in (page.find(".moment input").get_attribute("aria-valuetext") or "")
    chosen = page.text(".moment output")
    steps = int(page.find(".moment input").get_attribute("max") or 0)
    page.until(lambda: int(page.find(".moment input").get_attribute("max") or 0) > steps)
    assert page.text(".moment output") == chosen, "it stays as steps come"
    page.find(".moment input").send_keys(Keys.END)
    page.until(lambda: page.text(".moment output") == "now")
    page.click(".as-table summary")
    page.sees(".as-table table", "Worst first token")
    assert page.findings() == []
    page.click("[aria-label='Last day']")
    page.sees("#history", "Last day")


def test_now_is_what_the_gateway_says_now(page: Browser, site: Site) -> None:
    site.gateway.say("Hello", max_tokens=20)
    key, first = ".history .key", ".history .small figure:last-child figcaption"
    page.until(lambda: "in the last 10 s" in page.text(first))
    site.gateway.order("unload").raise_for_status()
    # The last step still has it, and now nothing is held of it.
    page.until(lambda: re.search(r"^demo\n0 B$", page.text(key), re.MULTILINE))
    assert page.text(".moment output") == "now"


def test_colours_differ_while_there_are_enough(page: Browser) -> None:
    script = """
      const [calls, done] = arguments;
      import("/ui/memory_shares.js").then(({ coloured }) => {
        let colours = new Map();
        done(calls.map((ids) => [...(colours = coloured(colours, ids))]));
      });
    """
    calls = ["abc", "acd", "abcdefgh", "bgh", "bgh"]
    found = page.driver.execute_async_script(script, [[*call] for call in calls])
    colours = [dict(item) for item in found]
    assert [{*colour} for colour in colours] == [{*text} for text in calls]
    assert all(len({*entry.values()}) == min(6, len(entry)) for entry in colours)
    assert colours[0]["a"] == colours[2]["a"], "each keeps its own"
    assert colours[3] == colours[4]


@pytest.mark.slow
def test_waiting_page_shows_the_reason(page: Browser, site: Site) -> None:
    site.gateway.order("unload").raise_for_status()
    with site.slowed():
        site.slower.touch()
        waiting = open_stream(
            site.gateway, QUESTION, headers={"x-api-key": site.admin_key}, max_tokens=3
        )
        page.until(lambda: re.search(r"runs|waits, number 1 in the queue", page.text(".why")))
    assert waiting.join().outcome


@pytest.mark.slow
def test_an_answer_goes_on_after_a_kill(page: Browser, site: Site) -> None:
    asked = {"temperature": 0, "max_tokens": 120}
    expected = site.gateway.say(QUESTION, **asked)
    _settings(page, maxTokens="120")
    with site.slowed():
        _ask(page)
        page.until(lambda: len(page.text(".message.assistant .text")) > 20)
        site.slower.touch()
        _show(page, "overview")
        page.sees("tbody tr.running", "admin")
        page.click("[aria-label='Kill demo']")
        page.sees("dialog", "1 request on the way")
        page.click("dialog button:not(.danger)")
        page.until(lambda: not page.there("dialog"))
        before = site.gateway.worker_pid()
        page.click("[aria-label='Kill demo']")
        page.click("dialog .danger")
        eventually(lambda: site.gateway.events("resume"), START_S)
        assert site.gateway.worker_pid() != before
    _show(page, "playground")
    assert _answered(page) == expected.strip()
    page.driver.refresh()
    page.sees(".playground aside .current", QUESTION)
    assert _answered(page) == expected.strip()


@pytest.mark.slow
def test_reasoning_and_tool_calls_are_shown(page: Browser) -> None:
    _settings(page, think="yes", maxTokens="300")
    _ask(page)
    answer = _answered(page)
    assert "think>" not in answer
    page.click(".message.assistant .reasoning summary")
    page.until(lambda: page.text(".message.assistant .reasoning .text"))
    _settings(page, tools=json.dumps([TOOL]), toolChoice="required", maxTokens="200")
    _ask(page, "What is the weather in Oslo?")
    page.sees(".tool-call", "get_weather")
    page.sees(".tool-call pre", '"city"')
    page.until(lambda: page.there(".tool-call input"))
    assert page.findings() == []
    page.type(".tool-call input", "sunny" + Keys.ENTER)
    page.sees(".message.tool", "sunny")
    _answered(page)
    assert not page.there(".message.assistant .error")


@pytest.mark.slow
def test_a_picture_goes_along(page: Browser, tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    picture.write_bytes(png(RED))
    _settings(page)
    page.find(".composer input[type=file]").send_keys(str(picture))
    page.until(lambda: page.there(".composer .pictures img"))
    _ask(page, "What is this?")
    page.until(lambda: page.there(".message.user img.picture"))
    page.sees(".message.assistant .error", "picture")


def test_an_answer_can_be_stopped(page: Browser, site: Site) -> None:
    _settings(page)
    with site.slowed():
        _ask(page, "Tell me a story.")
        page.until(lambda: page.text(".message.assistant .text"))
        site.slower.touch()
        page.click(".composer .danger")
        page.sees(".message.assistant", "Stopped.")
        eventually(lambda: site.gateway.model()["active_requests"] == 0)


@pytest.mark.slow
def test_logs_follow_a_model(page: Browser, site: Site) -> None:
    site.gateway.load()
    _show(page, "logs/demo")
    page.until(lambda: re.search(r"^20\d\d-", page.text(".log"), re.MULTILINE))
    known = page.text(".log")
    site.gateway.order("restart").raise_for_status()
    page.until(lambda: len(page.text(".log")) > len(known))
    site.gateway.say(QUESTION, max_tokens=5)
    page.choose(".choice select", "")
    page.sees(".log", " info: demo is ready")
    page.sees(".log", " info: POST /v1/chat/completions: 200, demo, key admin, ")
    page.sees(".log", " + 5 tokens, ")
    page.click("[aria-label='Level of the log'] option:nth-child(2)")
    page.until(lambda: "demo is ready" not in page.text(".log"))
    page.sees(".log", " warning: ")


def test_lines_connect_clients_with_a_model(page: Browser, site: Site) -> None:
    _show(page, "connect/demo")
    page.sees("[aria-label='Lines for Claude Code']", f"ANTHROPIC_BASE_URL={site.gateway.url}\n")
    page.sees("[aria-label='Lines for other clients']", "YOUR_KEY")
    page.sees("#client-other", "Other clients")
    # The context of the embedded model is too short for an agent.
    page.sees(".notice", "Claude Code needs 32,768 tokens of context, and demo knows 4,096 at most")
    page.click(".choice select option:first-child")
    page.sees("[aria-label='Lines for Zed']", MISSING)


@pytest.mark.slow
def test_keys_are_made_and_revoked(page: Browser, site: Site) -> None:
    _show(page, "keys")
    page.type("[name=name]", "laptop")
    page.type("[name=rpm]", "30")
    page.click("[name=models][value=demo]")
    page.click(".fields .primary")
    page.until(lambda: page.text(".secret").startswith("sk-bulkhead-"))
    headers = {"authorization": f"Bearer {page.text('.secret')}"}
    answer = httpx.get(f"{site.gateway.url}/v1/models", headers=headers)
    assert [item["id"] for item in answer.json()["data"]] == ["demo"]
    page.sees("tbody", "only demo, 30 requests/min")
    page.click(".notice button:last-child")
    page.click("[aria-label='Change laptop']")
    page.sees("#key-form", "Limits of laptop")
    assert page.find("[name=rpm]").get_attribute("value") == "30"
    page.type("[name=rpm]", "31")
    page.click("[name=models][value=demo]")
    page.click(".fields .primary")
    page.sees("tbody", "31 requests/min")
    page.sees("#key-form", "New key")
    answer = httpx.get(f"{site.gateway.url}/v1/models", headers=headers)
    assert len(answer.json()["data"]) > 1
    page.click("[aria-label='Revoke laptop']")
    page.click("dialog .danger")
    page.until(lambda: "laptop" not in page.text("tbody"))
    assert httpx.get(f"{site.gateway.url}/v1/models", headers=headers).status_code == 401


def _code(site: Site) -> str:
    answer = site.gateway.client.post("/admin/v1/page/codes").raise_for_status()
    code: str = answer.json()["code"]
    return code


@pytest.mark.slow
def test_a_code_signs_in_once_and_leaves_no_trace(page: Browser, site: Site) -> None:
    shown = "return sessionStorage.getItem('bulkhead.admin-key')"
    page.click("header > .quiet")
    page.sees(".sign-in", "Admin key")
    address = f"{site.url}#code={_code(site)}"
    page.open(address)
    page.sees(".connection", "live")
    assert page.driver.current_url == site.url
    assert page.driver.execute_script(shown) not in (None, site.admin_key)
    page.driver.refresh()
    page.sees(".connection", "live")
    secret = page.driver.execute_script(shown)
    page.click("header > .quiet")
    page.sees(".sign-in", "Admin key")
    signed_out = {"authorization": f"Bearer {secret}"}
    assert httpx.get(f"{site.gateway.url}/metrics", headers=signed_out).status_code == 401
    page.open(address)
    page.sees(".sign-in .error", "used already")
    assert page.driver.current_url == site.url
    assert page.driver.execute_script(shown) is None


@pytest.mark.slow
def test_a_key_that_reads_is_shown_no_orders(page: Browser, site: Site) -> None:
    client = site.gateway.client
    made = client.post("/admin/v1/keys", json={"name": "board", "reads": True}).json()
    site.gateway.load()
    page.sees("[data-model=demo] .actions", "Kill")
    page.click("header > .quiet")
    _sign_in(page, made["key"])
    page.sees(".connection", "live")
    page.sees("[data-model=demo]", "ready")
    assert page.text("[data-model=demo] .actions") == ""
    assert page.text("nav").split() == ["Overview", "Keys"]
    assert page.findings() == []
    _show(page, "keys")
    page.sees("tbody", "only reads")
    assert not page.there("tbody button")
    assert not page.there("form")
    client.delete("/admin/v1/keys/board").raise_for_status()
    page.sees(".sign-in .error", "not known here")


@pytest.mark.slow
def test_a_pull_is_cancelled_and_resumed(page: Browser, hub: Hub) -> None:
    hub.rate = 4e5
    try:
        page.type("[aria-labelledby=pulls] input", PULLED + Keys.ENTER)
        page.until(lambda: int(page.find(".pulls progress").get_attribute("value") or 0) > 0)
        page.click(f"[aria-label='Cancel {PULLED}']")
        page.sees(".pulls .state", "cancelled")
    finally:
        hub.rate = None
    page.click(f"[aria-label='Resume {PULLED}']")
    page.sees(".pulls .state", "done")
    page.type("[aria-labelledby=pulls] input", "org/nowhere" + Keys.ENTER)
    page.sees(".pulls .state", "failed")
    assert not page.there("[aria-label='Resume org/nowhere']"), "it would fail again"


@pytest.mark.slow
def test_a_model_is_found_pulled_and_talked_to(page: Browser, hub: Hub) -> None:
    hub.search_answers = [Answer(status=429)]
    page.type("[type=search]", "tiny3 4b" + Keys.ENTER)
    page.sees("[aria-labelledby=search] .error", "too often")
    page.click("[aria-labelledby=search] [aria-label=Dismiss]")
    page.type("[type=search]", "tiny3 4b" + Keys.ENTER)
    page.sees(f"[data-repository='{FOUND}']", "fits now")
    page.sees(f"[data-repository='{FOUND}']", "1,000 downloads a month")
    page.sees(f"[data-repository='{HUGE}']", "doesn't fit")
    assert page.findings() == []
    hub.rate = 2e5
    try:
        page.click(f"[aria-label='Pull {FOUND}']")
        page.until(lambda: int(page.find(".pulls progress").get_attribute("value") or 0) > 0)
    finally:
        hub.rate = None
    page.sees(".pulls .card", "It is served as Tiny3-4B-4bit.")
    page.click("[aria-label='Load Tiny3-4B-4bit now']")
    page.until(lambda: page.text("[data-model='Tiny3-4B-4bit'] .state") == "ready")
    _settings(page, maxTokens="20")
    _show(page, "overview")
    page.click(".pulls [aria-label='Chat with Tiny3-4B-4bit']")
    page.until(lambda: page.find(".choice select").get_attribute("value") == "Tiny3-4B-4bit")
    _ask(page)
    assert "Bulkhead" in _answered(page)
    _show(page, "overview")
    page.type("[type=search]", "tiny3 4bit" + Keys.ENTER)
    page.until(lambda: page.there(".found [aria-label='Chat with Tiny3-4B-4bit']"))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_serves_screen_readers_and_small_screens(page: Browser, scheme: str) -> None:
    page.scheme(scheme)
    for view in VIEWS:
        _show(page, view)
        for width in (1280, 390):
            page.resize(width, 900)
            assert page.findings() == [], (view, width)
            taken = "return document.documentElement.scrollWidth"
            assert page.driver.execute_script(taken) <= width, (view, width)
    page.resize(1280, 1000)


@pytest.mark.slow
def test_all_is_reached_with_the_keyboard(page: Browser, site: Site) -> None:
    site.gateway.order("unload").raise_for_status()
    page.until(lambda: _state(page) == "unloaded")
    page.driver.execute_script("document.activeElement.blur()")
    left = {"Skip to the content", "Playground", "Load demo", "Logs of demo", "Sign out"}
    for _ in range(60):
        page.driver.switch_to.active_element.send_keys(Keys.TAB)
        element = page.driver.switch_to.active_element
        left -= {element.get_attribute("aria-label") or element.text}
        if not left:
            break
    assert left == set()
    assert page.driver.execute_script("return document.activeElement.matches(':focus-visible')")


def test_it_comes_back_with_the_gateway(page: Browser, site: Site) -> None:
    site.stop()
    page.sees(".connection", "lost")
    page.sees("main > .sum .bad", "There is no connection to the gateway since ")
    assert page.text(".moment output") != "now"
    assert page.there(".history canvas")
    site.start()
    page.sees(".connection", "live")
    page.until(lambda: _state(page) == "unloaded")
    page.click("[aria-label='Load demo']")
    page.until(lambda: _state(page) == "ready")
