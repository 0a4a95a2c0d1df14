"""A person drops images on the page, names an unknown one and teaches it, in a real browser."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PIL import Image

import opencil
from opencil.openworld.serve import Service, create_app
from tests.report.browser.conftest import Browser, find_browser
from tests.report.browser.test_accessibility import AXE, violations

uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("fastapi")
NAME = '<img src=x onerror="alert(1)">'
DONE = "document.querySelector('#status').textContent.match(/unknown.*\\.$/)"


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    if (command := find_browser()) is None:
        pytest.skip("there is no chromium here to open the page in: apt-get install chromium brings it")
    found = Browser(command, tmp_path / "profile")
    yield found
    found.close()


@pytest.fixture
def address(make: Callable[..., opencil.OpenWorldClassifier], folder: Path) -> Iterator[str]:
    """The address of a server that runs in a thread."""
    server = uvicorn.Server(
        uvicorn.Config(create_app(Service(make(reject=0.2).learn(folder))), port=0, log_level="error")
    )
    started = threading.Event()
    start = server.startup

    async def startup(sockets: list[object] | None = None) -> None:
        await start(sockets)
        started.set()

    server.startup = startup
    thread = threading.Thread(target=server.run)
    thread.start()
    assert started.wait(60)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    server.should_exit = True
    thread.join()


def choose(browser: Browser, paths: list[Path]) -> None:
    document = browser.call("DOM.getDocument")["root"]["nodeId"]
    node = browser.call("DOM.querySelector", nodeId=document, selector="#files")["nodeId"]
    browser.call("DOM.setFileInputFiles", nodeId=node, files=list(map(str, paths)))
    browser.wait(DONE)


@pytest.mark.parametrize("width", [1440, 390])
def test_a_person_teaches_an_unknown_image(browser: Browser, address: str, folder: Path, width: int) -> None:
    strange = [folder.parent / f"strange{number}.png" for number in range(4)]
    for number, path in enumerate(strange):
        Image.effect_noise((40 + number, 40), 120).save(path)
    (folder.parent / "broken.png").write_bytes(b"no image")
    browser.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
    )
    before = browser.loads
    browser.call("Page.navigate", url=address)
    browser.await_load(before)
    browser.wait("document.documentElement.dataset.ready === 'yes'")
    choose(browser, [*strange, folder / "class 1" / "0.png", folder.parent / "broken.png"])
    texts = "[...document.querySelectorAll('.label')].map(label => label.textContent)"
    assert browser.evaluate(texts) == ["Unknown"] * 4 + ["class 1", "Not readable"]
    browser.evaluate(f"{AXE}")
    assert violations(browser.evaluate("axe.run()")) == []
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    sticky = "getComputedStyle(document.querySelector('#teaching')).position === 'sticky'"
    assert browser.evaluate(sticky) == (width > 600)  # a narrow screen has no place for it over the cards
    browser.evaluate(f"""[...document.querySelectorAll('.unknown input')].slice(0, 3).forEach((input) => {{
        input.value = {NAME!r};
        input.dispatchEvent(new Event("input"));
    }})""")
    assert browser.evaluate("document.querySelector('#teach').textContent") == "Teach 3 images"
    browser.evaluate("document.querySelector('#teach').click()")
    browser.wait("document.querySelector('#status').textContent.startsWith('Learned 3 images')")
    assert NAME in browser.evaluate(texts.replace(".label", ".label, .nearest button"))
    assert NAME in browser.evaluate(
        "[...document.querySelectorAll('#names li')].map(name => name.textContent)"
    )
    assert browser.evaluate("document.querySelectorAll('img[onerror], li:not(.card) img').length") == 0
    assert browser.evaluate("document.querySelector('#about').textContent").startswith("5 classes known")
    browser.evaluate("document.querySelector('#clear').click()")
    choose(browser, [folder / "class 1" / "0.png"])
    assert browser.evaluate("document.querySelector('#teach').checkVisibility()") is False
    browser.evaluate("show({ ...state, classes: ['black_footed_<b>albatross'] })")
    name = "document.querySelector('#names li')"
    assert browser.evaluate(f"{name}.innerHTML") == "black_<wbr>footed_<wbr>&lt;b&gt;albatross"
    assert browser.problems == []
    assert all(url.startswith((address, "blob:")) for url in browser.loaded if url != "about:blank")
