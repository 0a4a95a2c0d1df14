"""A real browser, driven by a test: Chromium without a window, through its DevTools protocol over a pipe.

Nothing but the browser is needed: messages are JSON with a zero byte after each, on the file descriptors 3
and 4 of the process (``--remote-debugging-pipe``).
"""

import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from opencil.report.page import page
from opencil.study.study import Study

SECONDS = 30.0  # the longest wait for an answer; a healthy browser answers in milliseconds
#: Put two file descriptors where the browser expects them, then become the browser.
_PLACE = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""


def find_browser() -> str | None:
    """The browser's command, or None where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((found for name in names if (found := shutil.which(name))), None)


class Browser:
    """One page in a browser of its own.

    ``problems`` is what it complained about, ``loaded`` what it fetched, ``loads`` how many pages it showed.
    """

    def __init__(self, command: str, profile: Path) -> None:
        self.problems: list[str] = []
        self.loaded: list[str] = []
        self.loads = 0
        self._number, self._buffer, self._session = 0, b"", ""
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        # Above 3 and 4, so that putting one in its place does not overwrite the other.
        given = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (theirs_in, theirs_out)]
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
        ]
        flags += ["--disable-extensions", "--disable-background-networking", "--remote-debugging-pipe"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PLACE, *map(str, given), command, *flags, f"--user-data-dir={profile}"],
            pass_fds=given,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for fd in (theirs_in, theirs_out, *given):
            os.close(fd)
        self._in, self._out = ours_in, ours_out
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **values: Any) -> Any:
        """Send a command and give its result; events that come meanwhile are noted."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": values}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive(method)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def open(self, path: Path, width: int = 1280, height: int = 900, hash: str = "") -> None:
        """Load a file, as if it were double-clicked, into a window of some size; wait until it is drawn."""
        phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )
        for url in (
            "about:blank",
            path.absolute().as_uri() + hash,
        ):  # another hash alone would not load it anew
            before = self.loads
            self.call("Page.navigate", url=url)
            self.await_load(before)
        self.wait("document.documentElement.dataset.ready === 'yes'")

    def await_load(self, before: int) -> None:
        """Wait until more pages have been loaded than ``before``."""
        while self.loads == before:
            self._note(self._receive("the loading of a page"))

    def evaluate(self, script: str) -> Any:
        """The value of an expression on the page; of a promise, what it comes to."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{script}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until an expression is true, looking whenever the page is drawn."""
        script = f"""new Promise((done, failed) => {{
            const end = performance.now() + {1000 * SECONDS / 2};
            const look = () => {{
                if ({condition}) done(true);
                else if (performance.now() > end) failed(new Error("waited in vain"));
                else requestAnimationFrame(look);
            }};
            look();
        }})"""
        self.evaluate(script)

    def key(self, name: str, code: int, text: str = "") -> None:
        """Press a key and let it go."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, windowsVirtualKeyCode=code, text=text)

    def close(self) -> None:
        """End the browser."""
        self._session = ""
        with contextlib.suppress(OSError, RuntimeError, TimeoutError):
            self.call("Browser.close")
        try:
            self._process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def _receive(self, method: str) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], SECONDS)
            piece = os.read(self._in, 1 << 20) if ready else b""
            if not piece:
                raise TimeoutError(f"the browser does not answer {method}")
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        values = event.get("params", {})
        kind = event.get("method")
        if kind == "Runtime.exceptionThrown":
            self.problems.append(str(values["exceptionDetails"]))
        elif kind == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning", "assert"):
            self.problems.append(str(values["args"]))
        elif kind == "Log.entryAdded":
            self.problems.append(str(values["entry"]))
        elif kind == "Page.loadEventFired":
            self.loads += 1
        elif kind == "Network.requestWillBeSent":
            self.loaded.append(values["request"]["url"])
        elif kind == "Page.javascriptDialogOpening":
            self.problems.append(f"dialog: {values['message']}")
            self.call("Page.handleJavaScriptDialog", accept=True)


class PageBrowser(Browser):
    """The results page in a browser, as a reader handles it."""

    def board(self) -> list[list[str]]:
        """The leaderboard's lines: the text of each cell behind the tick box, but names as registered."""
        cells = "[...row.cells].slice(1).map(cell => cell.innerText)"
        cells += ".toSpliced(1, 2, ...JSON.parse(row.dataset.key))"
        found: list[list[str]] = self.evaluate(
            f"[...document.querySelectorAll('#board tbody tr')].map(row => {cells})"
        )
        return found

    def choose(self, name: str, *values: str) -> None:
        """Choose in a list; where several can be ticked, these and no others, and none for all."""
        self.evaluate(f"""(() => {{
            const wanted = {json.dumps(values)};
            const single = document.querySelector(`select[name={name}]`);
            if (single) {{
                single.value = wanted[0];
                if (single.value !== wanted[0]) throw new Error("it has no such choice");
                single.dispatchEvent(new Event("change", {{ bubbles: true }}));
                return;
            }}
            const list = document.querySelector(`details[data-name={name}]`);
            if (!list.checkVisibility()) throw new Error("there is nothing to choose");
            list.open = true;
            list.querySelector("button").click();
            for (const value of wanted) {{
                const box = [...list.querySelectorAll("input[type=checkbox]")].find(b => b.value === value);
                if (!box) throw new Error("it has no such choice");
                box.click();
            }}
            list.open = false;
        }})()""")

    def curves(self) -> list[str]:
        """The paths of the chart's curves."""
        script = "[...document.querySelectorAll('#chart path.curve')].map(p => p.getAttribute('d'))"
        found: list[str] = self.evaluate(script)
        return found

    def legend(self) -> list[str]:
        """The names of the chart's curves."""
        script = "[...document.querySelectorAll('#legend .name')].map(n => n.innerText)"
        found: list[str] = self.evaluate(script)
        return found

    def saved(self, place: str, form: str) -> str:
        """What the button of a form ("CSV", "LaTeX") beside some place would write into a file."""
        script = f"""(() => {{
            const kept = URL.createObjectURL, click = HTMLAnchorElement.prototype.click;
            return new Promise((done, failed) => {{
                URL.createObjectURL = (blob) => {{ blob.text().then(done, failed); return "blob:none"; }};
                HTMLAnchorElement.prototype.click = () => {{}};
                const buttons = [...document.querySelectorAll({json.dumps(place)} + " .saving button")];
                buttons.find((button) => button.textContent === {form!r}).click();
            }}).finally(() => {{
                URL.createObjectURL = kept;
                HTMLAnchorElement.prototype.click = click;
            }});
        }})()"""
        text: str = self.evaluate(script)
        return text


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageBrowser]:
    """A browser for all tests; they are skipped, and say so, where there is none."""
    command = find_browser()
    if command is None:
        pytest.skip("there is no chromium here to open the page in: apt-get install chromium brings it")
    browser = PageBrowser(command, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def quiet(browser: PageBrowser) -> Iterator[PageBrowser]:
    """The browser; afterwards it must not have complained, nor have asked the network for anything."""
    browser.problems.clear()
    browser.loaded.clear()
    yield browser
    assert browser.problems == []
    assert [url for url in browser.loaded if not url.startswith(("file:", "blob:", "about:"))] == []


@pytest.fixture
def show(quiet: PageBrowser, tmp_path: Path) -> Callable[..., PageBrowser]:
    """Open a page of some rows and runs; the browser."""

    def opened(
        rows: pd.DataFrame, runs: list[Any], width: int = 1280, hash: str = "", **values: Any
    ) -> PageBrowser:
        path = tmp_path / "page.html"
        path.write_text(page(Study(rows, runs), **values), encoding="utf-8")
        quiet.open(path, width, hash=hash)
        return quiet

    return opened
