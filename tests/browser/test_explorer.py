"""Drives the explorer as a user does, in a headless Chromium: notebook 00, a slider, another picture.

Once in JupyterLab and once under Voila (`pip install voila`), each skipped with its reason where something is missing.
Needs Chromium with its driver (Debian: chromium, chromium-driver) and the extra `browser`. Screenshots stay in
build/browser. What this does not do: other browsers.
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
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser
NAME = "00_collapse_in_one_minute.ipynb"
PATIENCE = 240.0  # seconds; a shared machine may have to compile the kernels first

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
def lab(work: Path, tmp_path: Path) -> Iterator[str]:
    """Address of notebook 00 in a JupyterLab, on loopback and behind a token."""
    for name, content in SETTINGS.items():
        file = tmp_path / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content))
    options = ["--ServerApp.port_retries=0", "--ip=127.0.0.1", "--allow-root", "--LabApp.expose_app_in_browser=True"]
    options += [f"--ServerApp.root_dir={work}"]
    token = secrets.token_hex(16)
    options += [f"--IdentityProvider.token={token}"]
    with _serving(["jupyter", "lab", *options], f"/api/status?token={token}", tmp_path) as base:
        yield f"{base}/lab/tree/{NAME}?token={token}"


@pytest.fixture
def voila(work: Path, tmp_path: Path) -> Iterator[str]:
    """Address of notebook 00 as a Voila page, on loopback and behind a token."""
    pytest.importorskip("voila", reason="needs Voila: pip install voila")
    token = secrets.token_hex(16)
    options = [str(work / NAME), "--Voila.ip=127.0.0.1", f"--token={token}"]
    with _serving(["voila", *options], f"/voila/api/shutdown/none?token={token}", tmp_path) as base:
        yield f"{base}/?token={token}"


@pytest.fixture
def work(repo_root: Path, tmp_path: Path) -> Path:
    """A folder with a copy of notebook 00 that has FAST on."""
    notebook = json.loads((repo_root / "notebooks" / NAME).read_text())
    (parameters,) = [cell for cell in notebook["cells"] if "parameters" in cell["metadata"].get("tags", [])]
    parameters["source"] = [line.replace("FAST = False", "FAST = True") for line in parameters["source"]]
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / NAME).write_text(json.dumps(notebook))
    return folder


@contextmanager
def _serving(module: list[str], ready: str, tmp_path: Path) -> Iterator[str]:
    """Run a module with its options on a free port of the loopback interface; yield its address once it answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        "JUPYTER_CONFIG_DIR": str(tmp_path / "config"),
        "JUPYTERLAB_SETTINGS_DIR": str(tmp_path / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(tmp_path / "workspaces"),
    }
    environment.pop("MPLBACKEND", None)  # the tests' own; a kernel draws inline
    call = [sys.executable, "-m", *module, f"--port={port}", "--no-browser"]
    with (tmp_path / "server.log").open("w") as log:
        server = subprocess.Popen(call, env=environment, stdout=log, stderr=log)
        try:
            _wait_for(f"http://127.0.0.1:{port}{ready}", server)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(30)


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


def test_a_slider_changes_the_picture_in_jupyterlab(lab: str, driver: Any, repo_root: Path) -> None:
    By = pytest.importorskip("selenium.webdriver.common.by").By
    WebDriverWait = pytest.importorskip("selenium.webdriver.support.ui").WebDriverWait
    wait = WebDriverWait(driver, PATIENCE, poll_frequency=0.5)
    driver.get(lab)
    wait.until(lambda d: d.find_elements(By.CSS_SELECTOR, ".jp-Notebook .jp-Cell"))
    wait.until(lambda d: d.execute_script(KERNEL_IDLE))
    driver.execute_script("window.jupyterapp.commands.execute('notebook:run-all-cells')")
    play(driver, _shots(repo_root), "explorer")


def test_a_slider_changes_the_picture_under_voila(voila: str, driver: Any, repo_root: Path) -> None:
    driver.get(voila)
    play(driver, _shots(repo_root), "voila")


def play(driver: Any, shots: Path, stem: str) -> None:
    """Drag lambda to its end, then press a key, and expect another picture and other words each time."""
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

    picture = find("img.lldsim-picture")
    first_words = answered("ollapse")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", picture)
    before = picture.get_attribute("src")
    assert picture.size["width"] > 300
    driver.save_screenshot(str(shots / f"{stem}_before.png"))

    handle = find(".lldsim-dial-llds-coef .noUi-handle")
    ActionChains(driver).drag_and_drop_by_offset(handle, 400, 0).perform()  # to the end: λ = 0.3
    dragged = answered("No collapse", after=first_words)
    wait.until(lambda _: picture.get_attribute("src") != before)
    assert "The run before collapsed at update" in dragged
    driver.save_screenshot(str(shots / f"{stem}_after.png"))

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
    """Return when the server answers anything at all, a refusal included."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        assert server.poll() is None, "the server ended before it answered"
        try:
            with urllib.request.urlopen(address, timeout=10):
                return
        except urllib.error.HTTPError:
            return
        except (urllib.error.URLError, TimeoutError):
            time.sleep(0.5)
    raise AssertionError(f"the server did not answer within {PATIENCE:.0f} s")
