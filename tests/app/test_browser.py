"""The app in a headless Chromium."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import PATIENCE, Page, open_browser, resized, run_app, wait_until
from helpers import pprs
from PIL import Image

from pprs.app.catalog import DIGIT_EXAMPLES
from pprs.app.certification import STOP
from pprs.data import open_dataset
from pprs.dither import Dither, DitherClassifier
from pprs.model import load_model
from pprs.noise import Gaussian
from pprs.partition import parse_partition
from pprs.smoothing.certificate import round_down
from pprs.smoothing.classifier import SmoothedClassifier

PARTITIONS = (None, "slic:n_segments=50,blur=3", "slic/soft/shifts:k=4")

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, digits_model: Path) -> Iterator[str]:
    """Start the app with two runs, and return its url."""
    folder = tmp_path_factory.mktemp("page")
    for name, partition in (("rs", "none"), ("slic", "slic:n_segments=50,blur=3")):
        pprs(
            "certify", "--model", digits_model, "--data", "builtin:mnist5k", "--sigma", 0.25, "--n", 100, "--limit", 6,
            "--partition", partition, "--engine", "torch", "--out", folder / "runs" / name,
        )  # fmt: skip
    with run_app(folder, "--runs", str(folder / "runs")) as url:
        yield url


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with open_browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def page(driver: Any, url: str) -> Page:
    return Page(driver, url)


def certify_with_library(sigma: float) -> list[float]:
    index = DIGIT_EXAMPLES[0][1]
    model, image = load_model("builtin:digits"), open_dataset("builtin:mnist5k")[index].image
    radii = []
    for text in PARTITIONS:
        g = SmoothedClassifier(model.module, 10, Gaussian(sigma), None if text is None else parse_partition(text))
        radii.append(g.certify(image, n0=100, n=2000, alpha=0.001, index=index, stop=STOP).radius)
    return radii


def describe_counted_votes() -> str:
    image = open_dataset("builtin:mnist5k")[DIGIT_EXAMPLES[0][1]].image
    certificate = DitherClassifier(load_model("builtin:digits"), 10, Dither(510)).certify(image)
    return certificate.describe(str(DIGIT_EXAMPLES[0][0]), "your 28x28 grey file")


def test_radii_equal_those_of_the_library_and_no_other_host_is_contacted(page: Page, url: str) -> None:
    page.wait_done("sigma=0.25", "seed 0")
    assert len(page.all("#images figure")) == 6
    page.write("#sigma input[type=number]", "0.4")
    page.wait_done("sigma=0.4")
    for i, expected in enumerate(certify_with_library(0.4)):
        assert page.numbers(i)[0] == expected
        if expected > 0:
            text = page.text(f"#m{i} .statement")
            claim = f"no change of L2 norm up to {round_down(expected)} to your 28x28 grey file can alter this label"
            assert claim in text
        else:
            assert "Abstained" in page.text(f"#m{i} .statement")
    messages = [json.loads(line["message"])["message"] for line in page.driver.get_log("performance")]
    urls = {m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"}
    assert any(u.startswith(url) for u in urls)
    assert [u for u in urls if not u.startswith((url, "data:", "blob:", "chrome"))] == []
    errors = [e["message"] for e in page.driver.get_log("browser") if e["level"] == "SEVERE"]
    assert errors == []


def test_a_long_certification_leaves_room_for_others_and_can_be_stopped(page: Page, driver: Any, url: str) -> None:
    page.wait_done("seed 0")
    page.unfold("Noise, samples", "#n input")
    page.write("#n input", "100000")
    page.wait("#live[data-state=running]", "at most 100,000 samples")
    first = driver.current_window_handle
    driver.switch_to.new_window("window")
    try:
        other = Page(driver, url)
        other.wait_done("at most 2,000 samples")  # while the long one runs
        driver.switch_to.window(first)
        assert page.all("#live[data-state=running]")
        page.one("#stop").click()
        page.wait_done("stopped by you")
        assert 0 < page.numbers(1)[1] < 100_000
    finally:
        for handle in set(driver.window_handles) - {first}:
            driver.switch_to.window(handle)
            driver.close()
        driver.switch_to.window(first)


def test_uploads(page: Page, tmp_path: Path) -> None:
    page.wait_done("seed 0")
    (tmp_path / "garbage.png").write_bytes(np.random.default_rng(0).bytes(5000))
    page.one("#upload input[type=file]").send_keys(str(tmp_path / "garbage.png"))
    page.wait("#preview .pp.error", "cannot be read as an image", "complete")
    time.sleep(1)
    assert page.all("#results .pp") == []  # nothing was started, and the message appears once
    assert "Error" not in page.one("#preview").text
    Image.linear_gradient("L").resize((6000, 5000)).save(tmp_path / "large.png", compress_level=1)
    page.driver.refresh()
    page.wait_done("seed 0")
    page.one("#upload input[type=file]").send_keys(str(tmp_path / "large.png"))
    page.wait_done("the 28x28 grey image that the network takes, made from your 6000x5000 grey file")
    assert len(page.all("#images figure")) == 6


def test_other_tabs_a_narrow_window_and_the_keyboard(page: Page) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    page.wait_done("seed 0")
    page.driver.execute_script("document.querySelector('#live').dataset.before = 1")
    for _ in range(60):  # the button can be reached and pressed by keyboard
        ActionChains(page.driver).send_keys(Keys.TAB).perform()
        if page.driver.switch_to.active_element.get_attribute("id") == "go":
            break
    else:
        raise AssertionError("the keyboard does not reach the button")
    assert page.all("#live[data-before]") != []  # passing a control changes nothing
    ActionChains(page.driver).send_keys(Keys.ENTER).perform()
    page.wait("#live[data-state=done]:not([data-before])", "seed 0")
    page.tab("See a radius")
    page.wait("#directions", "a random direction", "there may be worse ones")
    page.write("#norm input[type=number]", "0.71")
    page.wait("#directions", "0.71")
    norms = [float(e.get_attribute("data-delta")) for e in page.all("#directions [data-delta]")]
    assert norms == pytest.approx([0.0, 0.71, 0.71], rel=1e-9)
    with resized(page.driver, 390, 844):
        assert page.driver.execute_script("return document.documentElement.scrollWidth") <= 390
        page.tab("Compare")
        page.wait("#numbers", "slic", "RS", "image by image")
        wait_until(lambda: len(page.all("#gallery figure")) == 6, "the gallery")
        assert page.driver.execute_script("return document.documentElement.scrollWidth") <= 390
        page.tab("Tune")
        page.write("#search-budget input[type=number]", "10")
        page.one("#search-go").click()
        wait_until(lambda: page.all("#search-chart img"), "the chart")
        page.one("#search-stop").click()
        page.wait("#search-state", "stopped by you")
        for name, id in (("Segment", "segment"), ("Label set", "set"), ("Patch", "patch"), ("Certain", "certain")):
            page.tab(name)
            wait_until(lambda css=f"#{id}-go": page.one(css).is_displayed(), id)
            wait_until(lambda css=f"#{id}-upload": not page.is_shown(css), f"the folding of {id}")
            assert page.driver.execute_script("return document.documentElement.scrollWidth") <= 390
        page.one("#certain-go").click()
        page.wait("#counted[data-state=done]", describe_counted_votes(), "510 passes")
        assert len(page.all("#counted figure")) == 3
        assert page.driver.execute_script("return document.documentElement.scrollWidth") <= 390
        page.tab("Patch")
        wait_until(lambda: page.one("#patch-go").is_displayed(), "the button")
        page.one("#patch-go").click()
        page.wait("#patch[data-state=done]", "Double masking", "passes")
        assert len(page.all("#patch figure")) == 3
        assert page.driver.execute_script("return document.documentElement.scrollWidth") <= 390
        page.tab("Signal")
        page.wait("#signals", "original: signal 0", "averaged")
        wait_until(lambda: not page.is_shown("#signal-canvas canvas"), "the folding of signal")
        page.unfold("Drawing, upload", "#signal-canvas canvas")
        for key in (Keys.ARROW_UP, Keys.ARROW_RIGHT):  # they draw
            page.one("#signal-canvas canvas").send_keys(key)
        page.wait("#signals", "original: your curve")
        assert page.driver.execute_script("return document.documentElement.scrollWidth") <= 390


def test_results_follow_the_button_on_a_telephone_and_other_settings_are_folded(driver: Any, url: str) -> None:
    for width, height, folded in ((1280, 900, False), (390, 844, True)):
        with resized(driver, width, height):
            page = Page(driver, url)
            page.wait_done("seed 0")
            wait_until(lambda page=page, f=folded: page.is_shown("#partition-A") != f, "the folding")
            assert not page.is_shown("#labels")
            top = "return document.querySelector(arguments[0]).getBoundingClientRect().top + window.scrollY"
            button, images, votes = (driver.execute_script(top, css) for css in ("#go", "#images", "#live"))
            assert votes < 1100
            if folded:
                assert button < images < 700


def test_runs_are_compared_and_downloaded(page: Page, tmp_path: Path) -> None:
    fetch = {"behavior": "allow", "downloadPath": str(tmp_path)}
    page.driver.execute_cdp_cmd("Browser.setDownloadBehavior", fetch)
    page.tab("Compare")
    page.wait("#numbers", "slic", "RS")
    for button, name in (("#csv", "rows.csv"), ("#png", "curves.png")):
        wait_until(lambda css=button: page.one(css).is_enabled(), button)
        page.one(button).click()
        wait_until(lambda name=name: (tmp_path / name).exists(), name)
    rows = (tmp_path / "rows.csv").read_text().splitlines()
    assert len(rows) == 1 + 12
    assert rows[0].startswith("method,idx,label,predict,radius")
    assert Image.open(tmp_path / "curves.png").width > 500


def get(url: str, **headers: str) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=PATIENCE) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def post(url: str, body: bytes) -> int:
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
    try:
        return int(urllib.request.urlopen(request, timeout=PATIENCE).status)
    except urllib.error.HTTPError as error:
        return error.code


def test_files_hosts_and_sizes_are_refused(url: str, digits_model: Path) -> None:
    assert get(url) == 200
    for path in ("/etc/passwd", str(digits_model), str(Path(__file__))):
        for way in ("gradio_api/file=", "file=", "gradio_api/file/"):
            assert get(f"{url}/{way}{path}") in (403, 404)
    assert get(url, Host="elsewhere.example") == 403
    for way in ("monitoring", "gradio_api/vibe-code", "gradio_api/proxy=http://localhost/", "gradio_api/runs", "docs"):
        assert get(f"{url}/{way}") == 404
    config = json.loads(urllib.request.urlopen(f"{url}/config", timeout=PATIENCE).read())
    names = {c["id"]: c["props"].get("elem_id") for c in config["components"]}
    preview = next(
        d for d in config["dependencies"] if names.get((d["inputs"] or [0])[0]) == "model" and len(d["inputs"]) > 9
    )
    for path in (str(Path(__file__).parents[2] / "docs" / "cat.png"), "http://localhost/x.png", "../../x.png"):
        file = {"path": path, "orig_name": "x.png", "meta": {"_type": "gradio.FileData"}}
        sent = {"fn_index": preview["id"], "session_hash": "forged", "data": [None, None, file]}
        assert post(f"{url}/gradio_api/queue/join", json.dumps(sent).encode()) == 403
    assert post(f"{url}/gradio_api/queue/join", b"garbage") == 400
    assert post(f"{url}/gradio_api/vibe-edit", b"{}") == 404
    large = urllib.request.Request(f"{url}/gradio_api/upload", data=b"x" * 30_000_000, method="POST")
    with pytest.raises((urllib.error.HTTPError, urllib.error.URLError), match="413|reset|Broken pipe"):
        urllib.request.urlopen(large, timeout=PATIENCE)
