"""The server predicts, learns and reports; hostile requests are refused or harmless."""

import asyncio
import io
import re
import threading
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import opencil
from opencil.openworld import serve
from opencil.openworld.serve import Service, create_app

pytest.importorskip("fastapi")
testclient = pytest.importorskip("fastapi.testclient")
HERE = "http://127.0.0.1:8000"
Files = list[tuple[str, tuple[str, bytes, str]]]


@pytest.fixture
def service(make: Callable[..., opencil.OpenWorldClassifier], folder: Path, tmp_path: Path) -> Service:
    clf = make(reject=0.2).learn(folder)
    clf.save(tmp_path / "it.opencil")
    return Service(clf)


def client(service: Service, **values: Any) -> Any:
    return testclient.TestClient(create_app(service, **values), base_url=HERE)


def files(*contents: bytes, name: str = "it.png") -> Files:
    return [("files", (name, content, "image/png")) for content in contents]


def png(width: int = 30, height: int = 20, mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    Image.effect_noise((width, height), 80).convert(mode).save(file, "PNG")
    return file.getvalue()


def test_it_predicts_as_the_classifier_does(service: Service, folder: Path) -> None:
    paths = sorted(folder.glob("*/*.png"))[::7]
    expected = service.classifier.predict(folder).set_index("file").loc[list(map(str, paths))]
    answer = client(service).post("/predict", files=files(*(path.read_bytes() for path in paths)))
    found = answer.json()["predictions"]
    assert [row["label"] for row in found] == expected["label"].tolist()
    assert [row["p_value"] for row in found] == pytest.approx(expected["p_value"].tolist())
    assert [tuple(row["best"]) for row in found] == expected["best"].tolist()
    assert {row["file"] for row in found} == {"it.png"}


def test_it_learns_what_it_is_taught_and_saves_when_it_should(service: Service, tmp_path: Path) -> None:
    path, new = tmp_path / "it.opencil", [png(40 + i, 30) for i in range(8)]
    before, web = path.read_bytes(), client(service)
    calibrated = len(service.classifier.calibration_.scores)
    answer = web.post("/learn", files=files(*new), data={"labels": ["noise"] * 8}).json()
    assert answer["classes"] == ["class 0", "class 1", "class 2", "class 3", "noise"]
    assert web.get("/classes").json() == answer
    assert len(service.classifier.calibration_.scores) == calibrated  # none that was taught
    assert path.read_bytes() == before
    web = client(Service(service.classifier, path))
    web.post("/learn", files=files(png(), png(31)), data={"labels": ["more", "more"]})
    assert "more" in opencil.OpenWorldClassifier.load(path, runtime="torch").classes_


def test_predictions_meanwhile_are_of_the_old_or_the_new_classifier(service: Service) -> None:
    old, image, seen, done = service.classifier, png(), list[str](), threading.Event()

    def predict() -> None:
        while not done.is_set():
            seen.extend(str(row) for row in service.predict(["it"], [image]))

    thread = threading.Thread(target=predict)
    thread.start()
    service.learn([png(33 + i) for i in range(4)], ["noise"] * 4)
    done.set()
    thread.join()
    allowed = [str(Service(clf).predict(["it"], [image])[0]) for clf in (old, service.classifier)]
    assert set(seen) <= set(allowed)


def test_metrics_are_of_recent_predictions(service: Service) -> None:
    web = client(service)
    assert "opencil_images 0\n" in web.get("/metrics").text
    web.post("/predict", files=files(png(), png(9, 9, "L"), b"no image"))
    answer = web.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "opencil_images 2\n" in answer.text
    assert "opencil_unreadable 1\n" in answer.text


def test_files_that_are_no_images_are_noted_and_never_learned(service: Service) -> None:
    bomb = io.BytesIO()
    Image.new("1", (10_000, 6_000)).save(bomb, "PNG")
    hostile = [b"", b"<svg onload=alert(1)>", png()[:200], bomb.getvalue(), b"%!PS\n", b"/etc/passwd"]
    web = client(service)
    (alone,) = web.post("/predict", files=files(b"no image")).json()["predictions"]
    assert alone["note"].startswith("it ")
    assert (alone["label"], alone["p_value"], alone["score"], alone["best"]) == ("", None, None, [])
    assert "opencil_images 0\n" in web.get("/metrics").text
    sizes = png(1, 1), png(1, 300), png(300, 1, "L"), png(5, 5, "RGBA")
    rows = web.post("/predict", files=files(*hostile, *sizes)).json()["predictions"]
    assert [bool(row["note"]) for row in rows] == [True] * 6 + [False] * 4
    assert "pixels" in rows[3]["note"]
    assert [row["label"] for row in rows[:6]] == [""] * 6
    for content in hostile:
        answer = web.post("/learn", files=files(png(), content), data={"labels": ["x", "x"]})
        assert answer.status_code == 422
    assert service.classifier.classes_ == ["class 0", "class 1", "class 2", "class 3"]


@pytest.mark.parametrize(
    "labels", [[], ["a"], ["a", " "], ["a", "x" * 201], ["a", "unknown"], ["a", "b", "c"]]
)
def test_labels_that_do_not_fit_are_refused(service: Service, labels: list[str]) -> None:
    answer = client(service).post("/learn", files=files(png(), png(31)), data={"labels": labels})
    assert answer.status_code == 422
    assert isinstance(answer.json()["detail"], str)
    assert len(service.classifier.classes_) == 4


def test_large_requests_are_refused_while_they_come(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "LARGEST_REQUEST", 10_000)
    monkeypatch.setattr(serve, "MOST_FILES", 3)
    web, large = client(service), png(200, 200)
    assert len(large) > 10_000
    assert web.post("/predict", files=files(large)).status_code == 413
    # A body that comes in parts, without a length, is not waited for.
    start = b'--b\r\ncontent-disposition: form-data; name="files"; filename="a"\r\n\r\n'
    parts, sent = iter([start, *[b"x" * 1000] * 1000]), list[Any]()

    async def receive() -> Any:
        return {"type": "http.request", "body": next(parts), "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    kind = (b"content-type", b"multipart/form-data; boundary=b")
    headers, place = [(b"host", b"localhost"), kind], {"path": "/predict", "raw_path": b"/predict"}
    scope = {"type": "http", "method": "POST", **place, "query_string": b"", "headers": headers}
    asyncio.run(create_app(service)(scope, receive, send))
    assert sent[0]["status"] == 413
    assert len(list(parts)) > 980
    assert web.post("/predict", files=files(*[png(3, 3)] * 4)).status_code == 422
    assert web.post("/predict", files=files(png(3, 3))).status_code == 200


def test_many_and_slow_requests_leave_the_page_responsive(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    httpx, free, read = pytest.importorskip("httpx"), threading.Event(), list[str]()
    predict = service.predict

    def wait(names: Any, contents: Any) -> Any:
        read.append(names[0])
        free.wait(30)
        return predict(names, contents)

    monkeypatch.setattr(service, "predict", wait)

    async def slowly() -> Any:
        yield b"--b\r\n"
        await asyncio.Event().wait()

    async def send_many() -> None:
        app = create_app(service)
        web = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=HERE, timeout=None)
        posts = [asyncio.create_task(web.post("/predict", files=files(png()))) for _ in range(60)]
        refused = [await post for post in (await asyncio.wait(posts, return_when="FIRST_COMPLETED"))[0]]
        assert (await web.get("/")).status_code == 200
        assert len((await web.get("/classes")).json()["classes"]) == 4
        assert len(read) <= 2  # others wait before their files are read
        free.set()
        answers = await asyncio.gather(*posts)
        found = [answer.status_code for answer in answers]
        assert refused[0].status_code == 503
        assert sorted(found) == [200] * serve.MOST_REQUESTS + [503] * (60 - serve.MOST_REQUESTS)
        busy = answers[found.index(503)]
        assert busy.headers["retry-after"] == "5"
        assert "try again" in busy.json()["detail"]
        kind = {"content-type": "multipart/form-data; boundary=b"}
        monkeypatch.setattr(serve, "LONGEST_UPLOAD", 0.1)
        slow = [web.post("/learn", content=slowly(), headers=kind) for _ in range(serve.MOST_REQUESTS)]
        assert {answer.status_code for answer in await asyncio.gather(*slow)} == {408}
        monkeypatch.undo()
        assert (await web.post("/predict", files=files(png()))).status_code == 200  # nobody's place is lost

    asyncio.run(send_many())


def test_wrong_contents_are_refused(service: Service) -> None:
    web, kinds = (
        client(service),
        ("multipart/form-data; boundary=b", "multipart/form-data", "application/json", ""),
    )
    for path, kind in product(("/predict", "/learn"), kinds):
        for content in (b"", b"--b", b'{"files": ["/etc/passwd"]}', b"\x00" * 99):
            answer = web.post(path, content=content, headers={"content-type": kind})
            assert answer.status_code in (400, 422)
            assert "passwd" not in answer.text


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9000"},
        {"origin": "http://127.0.0.1:8000.evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"host": "evil.example", "origin": "http://evil.example"},  # a name that points to 127.0.0.1
        {"host": "127.0.0.1.evil.example"},
        {"host": "[::1"},
        {"host": ""},
    ],
)
def test_other_sites_cannot_teach(service: Service, headers: dict[str, str]) -> None:
    web = client(service)
    answer = web.post("/learn", files=files(png()), data={"labels": ["x"]}, headers=headers)
    assert answer.status_code == 403
    assert service.classifier.classes_ == ["class 0", "class 1", "class 2", "class 3"]
    if "host" in headers:
        assert web.get("/classes", headers=headers).status_code == 403


def test_its_own_page_can_teach(service: Service) -> None:
    headers = {"origin": HERE, "sec-fetch-site": "same-origin"}
    answer = client(service).post("/learn", files=files(png()), data={"labels": ["x"]}, headers=headers)
    assert answer.status_code == 200


def test_the_page_loads_nothing_from_elsewhere(service: Service) -> None:
    answer = client(service).get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"""(src|href)\s*=|@import|url\(|https?://|\son\w+=|innerHTML""", answer.text)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert [client(service).get(path).status_code for path in ("/docs", "/openapi.json", "/../x")] == [
        404
    ] * 3


def test_names_stay_text(service: Service) -> None:
    name, web = '<img src=x onerror="alert(1)">\n"\\', client(service)
    answer = web.post("/learn", files=files(png(), png(31), name=name), data={"labels": [name] * 2})
    assert name in answer.json()["classes"]
    assert answer.headers["content-type"] == "application/json"
    web.post("/predict", files=files(png()))
    metrics = web.get("/metrics").text
    assert all(
        re.fullmatch(r"# .*|\w+(\{class=\"([^\"\\]|\\.)*\"\})? \S+", line) for line in metrics.splitlines()
    )
