"""The app in a headless Chromium: a running app, a browser, and a page in it. For tests and for `screenshots.py`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE = 240.0  # seconds; a busy machine is not a failure
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")


def wait_until(get: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """Return the first value that is true, or fail after a long time."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        value = get()
        if value:
            return value
        time.sleep(0.1)
    raise AssertionError(f"timed out while waiting for {what}")


@contextmanager
def run_app(folder: Path, *options: str, env: Mapping[str, str] | None = None) -> Iterator[str]:
    """Start the app on any free port, with `folder` as working folder and cache, and yield its url."""
    (folder / "cache").mkdir(exist_ok=True)
    settings = {"PPRS_CACHE": str(folder / "cache"), "COLUMNS": "200", "PYTHONUNBUFFERED": "1"}
    with (folder / "log").open("w") as log:
        app = subprocess.Popen(
            [sys.executable, "-m", "pprs", "app", "--port", "0", "--engine", "torch", *options],
            env=os.environ | settings | dict(env or {}), stdout=log, stderr=subprocess.STDOUT, cwd=folder,
        )  # fmt: skip
        try:
            yield wait_until(lambda: _find_url(app, folder / "log"), "the url of the page")
        finally:
            app.terminate()
            app.wait(PATIENCE)
    output = (folder / "log").read_text()
    assert "Traceback" not in output, output


def _find_url(app: subprocess.Popen[bytes], log: Path) -> str | None:
    output = log.read_text()
    assert app.poll() is None, output
    return next((word for word in output.split() if word.startswith("http://localhost:")), None)


@contextmanager
def open_browser(profile: Path) -> Iterator[Any]:
    """Open a browser that contacts no other machine by itself."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    for flag in (
        "headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "disable-quic", "no-first-run",
        "disable-background-networking", "disable-component-update", "disable-sync", "window-size=1280,900",
        "hide-scrollbars", f"user-data-dir={profile}",
    ):  # fmt: skip
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
    try:
        yield browser
    finally:
        browser.quit()


@contextmanager
def resized(driver: Any, width: int, height: int, *, mobile: bool = True) -> Iterator[None]:
    """Show the page in a window of this size."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        yield
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


class Page:
    """A browser window with the page."""

    def __init__(self, driver: Any, url: str) -> None:
        self.driver = driver
        driver.get(url)

    def all(self, css: str) -> list[Any]:
        """Return all elements."""
        return list(self.driver.find_elements("css selector", css))

    def one(self, css: str) -> Any:
        """Wait for an element, and return it."""
        return wait_until(lambda: next(iter(self.all(css)), None), css)

    def is_shown(self, css: str) -> bool:
        """Return whether an element is there and not hidden."""
        script = "const e = document.querySelector(arguments[0]); return Boolean(e && e.offsetParent)"
        return bool(self.driver.execute_script(script, css))

    def text(self, css: str) -> str:
        """Return the current text, even while the element is being replaced."""
        text = self.driver.execute_script("return document.querySelector(arguments[0])?.textContent", css)
        return str(text or "")

    def wait(self, css: str, *words: str) -> str:
        """Wait until an element contains these words, and return its text."""
        return str(wait_until(lambda: all(w in self.text(css) for w in words) and self.text(css), f"{words} in {css}"))

    def tab(self, name: str) -> None:
        """Open a tab as soon as it exists. In a narrow window, it may be in a menu."""
        wait_until(lambda: self._open_tab(name), name)

    def _open_tab(self, name: str) -> bool:
        """Click on a tab, and return whether it was there. The page may replace its tabs at any moment."""
        from selenium.common.exceptions import StaleElementReferenceException

        try:
            return self._click_tab(name)
        except StaleElementReferenceException:
            return False

    def _click_tab(self, name: str) -> bool:
        shown = [b for b in self.all("button[role=tab]") if b.text == name]
        if not shown:
            for menu in self.all(".overflow-menu > button"):
                if menu.is_displayed():  # while the page is drawn, it exists but is hidden
                    menu.click()
            shown = [b for b in self.all(".overflow-dropdown button") if b.text.strip() == name]
        if shown:
            shown[0].click()
        return bool(shown)

    def wait_done(self, *words: str) -> None:
        """Wait until a certification whose text contains these words has ended."""
        self.wait("#live[data-state=done]", *words)

    def unfold(self, title: str, css: str) -> None:
        """Open the accordion with this title, and wait until an element in it is shown."""
        next(b for b in self.all("button.label-wrap") if title in b.text).click()
        wait_until(lambda: self.is_shown(css), css)

    def write(self, css: str, text: str) -> None:
        """Replace the content of a box."""
        from selenium.webdriver.common.keys import Keys

        box = self.one(css)
        box.send_keys(Keys.CONTROL, "a")
        box.send_keys(text, Keys.ENTER)

    def numbers(self, method: int) -> tuple[float, int]:
        """Return the unrounded radius and the number of samples of a method."""
        big = self.one(f"#m{method} .big .num")
        return float(big.get_attribute("data-radius")), int(big.get_attribute("data-samples"))
