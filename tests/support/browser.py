"""A real headless Chromium, and what tests do in it."""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from selenium import webdriver
from selenium.common.exceptions import (
    ElementClickInterceptedException,
    NoSuchElementException,
    StaleElementReferenceException,
)
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from tests.support.gateway import START_S, eventually

_AXE = Path(__file__).parent / "axe" / "axe.min.js.gz"
_MISSED = (
    ElementClickInterceptedException,
    NoSuchElementException,
    StaleElementReferenceException,
)


def missing() -> str | None:
    """Why there is no browser here; None: there is one."""
    lacks = [text for text in ("chromium", "chromedriver") if shutil.which(text) is None]
    if not lacks:
        return None
    return f"no {' and no '.join(lacks)}: make browser installs Debian's as root"


class Browser:
    """Elements are named by CSS selectors. The page draws them anew whenever it likes, so whatever
    is done to one is done again if it was gone meanwhile.
    """

    def __init__(self) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for text in ("--headless=new", "--disable-dev-shm-usage", "--disable-gpu"):
            options.add_argument(text)
        if os.geteuid() == 0:
            # Root has no sandbox; there is nothing in here but the gateway's own page.
            options.add_argument("--no-sandbox")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        service = Service(shutil.which("chromedriver"))
        self.driver = webdriver.Chrome(options=options, service=service)
        self.driver.set_script_timeout(120)
        self.resize(1280, 1000)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.driver.quit()

    def resize(self, width: int, height: int) -> None:
        """The page's own width, which no window could be so narrow for."""
        self._command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def scheme(self, name: str) -> None:
        """`light` or `dark`."""
        feature = {"name": "prefers-color-scheme", "value": name}
        self._command("Emulation.setEmulatedMedia", features=[feature])

    def open(self, url: str) -> None:
        self.driver.get(url)

    def there(self, selector: str) -> bool:
        return bool(self.driver.find_elements(By.CSS_SELECTOR, selector))

    def until(self, condition: Callable[[], Any]) -> Any:
        """The first true value of a condition about elements that come and go."""

        def holds() -> Any:
            with contextlib.suppress(*_MISSED):
                return condition()

        # A page shows what a load has led to, too.
        return eventually(holds, START_S)

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """What is seen of it; nothing while it isn't there."""
        try:
            return self.find(selector).text
        except _MISSED:
            return ""

    def click(self, selector: str) -> None:
        self.until(lambda: (self.find(selector).click(), True))

    def type(self, selector: str, text: str) -> None:
        """Instead of what stands there."""

        def typed() -> bool:
            # `clear` tells the page nothing, so the page may put the old text back before the keys.
            whole = Keys.CONTROL + "a" + Keys.NULL + Keys.DELETE
            self.find(selector).send_keys(whole + text)
            return True

        self.until(typed)

    def choose(self, selector: str, value: str) -> None:
        """In a `select`."""
        self.click(f"{selector} option[value='{value}']")

    def sees(self, selector: str, text: str) -> None:
        self.until(lambda: text in self.text(selector))

    def errors(self) -> list[dict[str, Any]]:
        """Of the console, since the last call."""
        return [item for item in self.driver.get_log("browser") if item["level"] == "SEVERE"]

    def findings(self) -> list[tuple[str, list[str]]]:
        """Serious and critical ones of axe in the page as it is, each with where it is."""
        self.driver.execute_script(gzip.decompress(_AXE.read_bytes()).decode())
        found = self.driver.execute_async_script(
            "axe.run().then(arguments[0], (error) => arguments[0]({ error: String(error) }))"
        )
        return [
            (violation["id"], [node["html"] for node in violation["nodes"]])
            for violation in found["violations"]
            if violation["impact"] in ("serious", "critical")
        ]

    def _command(self, name: str, **parameters: Any) -> None:
        self.driver.execute_cdp_cmd(name, parameters)
