"""Serve a classifier over HTTP: predict, learn, metrics, and a page for people."""

import asyncio
import base64
import copy
import hashlib
import re
import threading
import warnings
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pandas as pd

from opencil.errors import BadInput, OpenCILError
from opencil.openworld.export import check_packages

if TYPE_CHECKING:
    from fastapi import FastAPI

    from opencil.openworld.classifier import OpenWorldClassifier

#: Limits of a request; images have at most the pixels that all readers allow.
LARGEST_REQUEST, MOST_FILES, LONGEST_NAME = 64 * 2**20, 64, 200
#: Predictions that the metrics are about, at most.
WINDOW = 10_000
#: Requests that compute at a time: decoding a large image takes about a gigabyte.
_TOGETHER = 2
#: Requests with files at a time, those that wait included, and the seconds in which their bytes must come.
MOST_REQUESTS, LONGEST_UPLOAD = 16, 120.0
#: Connections at a time; further ones are refused.
MOST_CONNECTIONS = 256
LOCAL = ("127.0.0.1", "localhost", "::1")
_COLUMNS = ("file", "label", "p_value", "score", "best", "note")
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Service:
    """A classifier that several threads use: they predict with the old or the new one while it learns.

    With ``saves_to``, what was learned is written to that file after each request to learn.
    """

    def __init__(self, classifier: "OpenWorldClassifier", saves_to: Path | None = None) -> None:
        self.classifier, self.saves_to = classifier, saves_to
        self._window: deque[dict[str, Any]] = deque(maxlen=WINDOW)
        self._learning, self._changing = threading.Lock(), threading.Lock()

    def describe(self) -> dict[str, Any]:
        """Return the classes, the promise of the threshold, and the limits of requests."""
        classifier, saves = self.classifier, self.saves_to is not None
        limits = {"files": MOST_FILES, "bytes": LARGEST_REQUEST, "name": LONGEST_NAME}
        classes, promise = classifier.classes_, classifier.promise_
        return {"classes": classes, "promise": promise, "saves": saves, "limits": limits}

    def predict(self, names: Sequence[str], contents: Sequence[bytes]) -> list[dict[str, Any]]:
        """Return a row for each image file, with a note instead of a label if it cannot be read."""
        classifier = self.classifier
        found = classifier.predict(list(contents))
        rows = [{str(key): value for key, value in row.items()} for row in found.to_dict("records")]
        for number, (name, row) in enumerate(zip(names, rows, strict=True)):
            # The classifier has their numbers alone.
            row |= {"file": name, "note": row["note"].replace(f"image {number} ", "it ", 1)}
        with self._changing:
            if classifier is self.classifier:
                self._window.extend(rows)
        return [{key: None if value != value else value for key, value in row.items()} for row in rows]

    def learn(self, contents: Sequence[bytes], labels: Sequence[str]) -> dict[str, Any]:
        """Learn image files of named classes, all or none; return the description."""
        labels = [label.strip() for label in labels]
        if len(labels) != len(contents) or not all(0 < len(label) <= LONGEST_NAME for label in labels):
            raise BadInput(f"each file needs the name of a class, of 1 to {LONGEST_NAME} characters")
        with self._learning, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the promise is part of the answer
            learned = copy.copy(self.classifier)
            # People teach what was rejected: held-out images of it would lower the threshold.
            learned.learn(list(contents), labels, calibrate=False)
            if self.saves_to is not None:
                learned.save(self.saves_to)
            with self._changing:
                self.classifier = learned
                self._window.clear()
        return self.describe()

    def metrics(self) -> str:
        """Return Prometheus's text on the latest predictions of this classifier."""
        with self._changing:
            classifier, rows = self.classifier, list(self._window)
        return classifier.report(pd.DataFrame(rows, columns=list(_COLUMNS))).prometheus()


def create_app(service: Service, hosts: Sequence[str] = LOCAL) -> "FastAPI":
    """Return the web application; ``hosts`` are the names that it answers to, or ``*`` for all.

    Pages of other sites can send requests to this machine: they are refused by their ``Origin``, and by
    ``Host`` if they made a name of theirs point here.
    """
    check_packages("opencil serve", "serve", "fastapi", "uvicorn", "python_multipart")
    from fastapi import FastAPI, File, Form, Request, UploadFile
    from fastapi.concurrency import run_in_threadpool
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

    app = FastAPI(title="OpenCIL", docs_url=None, redoc_url=None, openapi_url=None)
    page = (resources.files("opencil.openworld") / "serve.html").read_text(encoding="utf-8")
    policy = page_policy(page)
    computing, learning = asyncio.Semaphore(_TOGETHER), asyncio.Lock()

    @app.exception_handler(OpenCILError)
    async def refuse(_: Request, error: OpenCILError) -> Response:
        return JSONResponse({"detail": str(error)}, 422)

    @app.exception_handler(RequestValidationError)
    async def refuse_form(_: Request, __: RequestValidationError) -> Response:
        return JSONResponse({"detail": "a form of files is needed, and to learn a label for each file"}, 422)

    @app.get("/")
    def show_page() -> Response:
        return HTMLResponse(page, headers={"Content-Security-Policy": policy})

    @app.get("/classes")
    def list_classes() -> dict[str, Any]:
        return service.describe()

    @app.post("/predict")
    async def predict(files: list[UploadFile] = File()) -> dict[str, Any]:
        names = [file.filename or "" for file in files]
        async with computing:  # those that wait have their files on disk, and no thread
            found = await run_in_threadpool(lambda: service.predict(names, _read(files)))
        return {"predictions": found}

    @app.post("/learn")
    async def learn(files: list[UploadFile] = File(), labels: list[str] = Form()) -> dict[str, Any]:
        async with learning, computing:
            return await run_in_threadpool(lambda: service.learn(_read(files), labels))

    @app.get("/metrics")
    def metrics() -> Response:
        return PlainTextResponse(service.metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    app.add_middleware(Gate, hosts=hosts)
    return app


def _read(files: Sequence[Any]) -> list[bytes]:
    if len(files) > MOST_FILES:
        raise BadInput(f"a request has {len(files)} files: {MOST_FILES} are allowed")
    return [file.file.read() for file in files]


def page_policy(page: str) -> str:
    """Return a Content-Security-Policy that allows the page's own script and style, and its own server."""
    allowed = []
    for tag in ("script", "style"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        allowed.append(f"{tag}-src 'sha256-{digest}'")
    none = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    return f"{none}; {'; '.join(allowed)}; img-src blob:; connect-src 'self'"


class Gate:
    """Refuse requests for other hosts, from pages of other sites, too large, too slow, or too many."""

    def __init__(self, app: Any, hosts: Sequence[str]) -> None:
        self.app, self.hosts, self.posts = app, hosts, 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass an allowed request on, and count its bytes while they come."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        from fastapi import HTTPException
        from fastapi.responses import JSONResponse

        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if problem := self._problem(headers, scope["method"]):
            more = {"retry-after": "5"} if problem[0] == 503 else None
            await JSONResponse({"detail": problem[1]}, problem[0], more)(scope, receive, send)
            return
        seen = 0
        until: float | None = asyncio.get_running_loop().time() + LONGEST_UPLOAD

        async def counted() -> Message:
            nonlocal seen, until
            try:
                async with asyncio.timeout_at(until):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, _TOO_SLOW, {"connection": "close"}) from None
            seen += len(message.get("body", b""))
            if seen > LARGEST_REQUEST:
                raise HTTPException(413, _TOO_LARGE)
            if not message.get("more_body"):
                until = None  # the next message is that the client went away
            return message

        async def hardened(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        self.posts += scope["method"] == "POST"
        try:
            await self.app(scope, counted, hardened)
        finally:
            self.posts -= scope["method"] == "POST"

    def _problem(self, headers: dict[str, str], method: str) -> tuple[int, str] | None:
        """Return the status and the sentence for a request that is refused."""
        host = headers.get("host", "")
        if "*" not in self.hosts and _name_of(f"//{host}") not in self.hosts:
            return 403, f"this server answers to {', '.join(self.hosts)} alone"
        ours = headers.get("origin") in (None, f"http://{host}", f"https://{host}")
        ours = ours and headers.get("sec-fetch-site") in (None, "none", "same-origin")
        if method == "POST" and not ours:
            return 403, "requests from pages of other sites are refused"
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > LARGEST_REQUEST:
            return 413, _TOO_LARGE
        if method == "POST" and self.posts >= MOST_REQUESTS:
            return 503, f"{self.posts} requests are waiting already: try again in a few seconds"
        return None


_TOO_LARGE = f"a request has more than {LARGEST_REQUEST // 2**20} MiB: send fewer or smaller images"
_TOO_SLOW = f"the files did not come within {LONGEST_UPLOAD:.0f} seconds: send fewer or smaller images"
_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]


def _name_of(address: str) -> str | None:
    """Return the host's name in an address, without its port, or None."""
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None
