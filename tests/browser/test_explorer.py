"""Drives the explorer as a user does: JupyterLab in a headless Chromium, notebook 00, a slider, another picture.

Needs Chromium with its driver (Debian: chromium, chromium-driver) and the extra `browser`. Screenshots stay in
build/browser. What this does not do: Voila, other browsers.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser
NAME = "00_collapse_in_one_minute.ipynb"
PATIENCE = 120.0  # seconds; a shared machine may have to compile the kernels first

# Quiet start: no news question over the page, and every cell in the page whether in view or not.
SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "notebook-extension/tracker": {"windowingMode": "none"},
}
KERNEL_IDLE = """
const panel = window.jupyterapp?.shell.currentWidget;
return panel?.sessionContext?.session?.kernel?.status === "idle";
"""


@pytest.fixture
def lab(repo_root: Path, tmp_path: Path) -> Iterator[str]:
    """Address of a JupyterLab, on loopback and behind a token, that serves a copy of notebook 00 with FAST on."""
    notebook = json.loads((repo_root / "notebooks" / NAME).read_text())
    (parameters,) = [cell for cell in notebook["cells"] if "parameters" in cell["metadata"].get("tags", [])]
    parameters["source"] = [line.replace("FAST = False", "FAST = True") for line in parameters["source"]]
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / NAME).write_text(json.dumps(notebook))
    for name, content in SETTINGS.items():
        file = tmp_path / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    token = secrets.token_hex(16)
    environment = os.environ | {
        "PYTHONPATH": str(repo_root),
        "JUPYTER_CONFIG_DIR": str(tmp_path / "config"),
        "JUPYTERLAB_SETTINGS_DIR": str(tmp_path / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(tmp_path / "workspaces"),
    }
    environment.pop("MPLBACKEND", None)  # the tests' own; a kernel draws inline
    options = [f"--port={port}", "--ServerApp.port_retries=0", "--ip=127.0.0.1", "--no-browser", "--allow-root"]
    options += [f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={tmp_path / 'work'}"]
    options += ["--LabApp.expose_app_in_browser=True"]
    log = (tmp_path / "lab.log").open("w")
    server = subprocess.Popen([sys.executable, "-m", "jupyter", "lab", *options], env=environment, stderr=log)
    base = f"http://127.0.0.1:{port}"
    try:
        _wait_for(base + f"/api/status?token={token}", server)
        yield f"{base}/lab/tree/{NAME}?token={token}"
    finally:
        server.terminate()
        server.wait(30)
        log.close()


@pytest.fixture
def driver(repo_root: Path) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="install the extra `browser`")
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        pytest.skip("needs chromium and chromedriver on the path")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in ("--headless=new", "--window-size=1500,1000", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(flag)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium refuses its sandbox to root
    service = webdriver.ChromeService(executable_path=chromedriver)
    browser = webdriver.Chrome(options=options, service=service)
    browser.set_script_timeout(60)
    yield browser
    browser.save_screenshot(str(_shots(repo_root) / "explorer_last.png"))  # what a failure saw
    browser.quit()


def test_a_slider_changes_the_picture(lab: str, driver: Any, repo_root: Path) -> None:
    selenium = pytest.importorskip("selenium.webdriver", reason="install the extra `browser`")
    ActionChains, Keys = selenium.ActionChains, selenium.Keys
    By = pytest.importorskip("selenium.webdriver.common.by").By
    WebDriverWait = pytest.importorskip("selenium.webdriver.support.ui").WebDriverWait

    wait = WebDriverWait(driver, PATIENCE, poll_frequency=0.5)

    def find(selector: str) -> Any:
        return wait.until(lambda d: d.find_elements(By.CSS_SELECTOR, selector))[0]

    def answered(word: str, *, after: str = "") -> str:
        """Wait until the words hold `word` and are not those of `after`."""

        def told(d: Any) -> str | bool:
            text = " ".join(e.text for e in d.find_elements(By.CSS_SELECTOR, ".lldsim-status"))
            return text if word in text and text != after else False

        return wait.until(told)

    shots = _shots(repo_root)
    driver.get(lab)
    find(".jp-Notebook .jp-Cell")
    wait.until(lambda d: d.execute_script(KERNEL_IDLE))
    driver.execute_script("window.jupyterapp.commands.execute('notebook:run-all-cells')")
    picture = find("img.lldsim-picture")
    first_words = answered("ollapse")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", picture)
    before = picture.get_attribute("src")
    assert picture.size["width"] > 300
    driver.save_screenshot(str(shots / "explorer_before.png"))

    handle = find(".lldsim-dial-llds-coef .noUi-handle")
    ActionChains(driver).drag_and_drop_by_offset(handle, 400, 0).perform()  # to the end: λ = 0.3
    dragged = answered("No collapse", after=first_words)
    wait.until(lambda _: picture.get_attribute("src") != before)
    assert "The run before collapsed at update" in dragged
    driver.save_screenshot(str(shots / "explorer_after.png"))

    at_drag = picture.get_attribute("src")
    handle.send_keys(Keys.ARROW_LEFT)  # sliders answer the keyboard too
    answered("No collapse", after=dragged)
    wait.until(lambda _: picture.get_attribute("src") != at_drag)
    assert find(".lldsim-dial-llds-coef .widget-readout").text == "0.2"
    assert find("a[download^='record-'][download$='.csv']").get_attribute("href").startswith("data:text/csv;base64,")


def _shots(repo_root: Path) -> Path:
    folder = repo_root / "build" / "browser"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _wait_for(address: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        assert server.poll() is None, "JupyterLab ended before it answered"
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, TimeoutError):
            time.sleep(0.5)
    raise AssertionError("JupyterLab did not answer")
