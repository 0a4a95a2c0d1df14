"""Uploads and downloads speak with a server that stands in for the Hugging Face Hub, on this machine."""

import base64
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pandas as pd
import pytest
import yaml

import opencil
from opencil import BadInput
from opencil.submissions.hub import list_files

pytest.importorskip("huggingface_hub")
COMMIT = "0123456789" * 4


class StandIn(BaseHTTPRequestHandler):
    """The part of the Hub's interface that a commit and a download use; files are kept in memory."""

    def do_POST(self) -> None:
        hub: Any = self.server
        body, (path, _, query) = self._read(), self.path.partition("?")
        if self.headers["Authorization"] != "Bearer hf_ada":
            return self._answer({"error": "Invalid username or password."}, status=401)
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            hub.created.append((asked.get("type", "model"), name))
            return self._answer({"url": f"{hub.address}/{asked.get('type', 'model')}s/{name}"})
        if path == "/api/validate-yaml":
            yaml.safe_load(json.loads(body)["content"].split("---")[1])
            return self._answer({"errors": [], "warnings": []})
        _, _, kind, owner, name, action, _ = path.split("/")
        if action == "preupload":
            files = [one["path"] for one in json.loads(body)["files"]]
            modes = [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in files]
            return self._answer({"files": modes})
        lines = [json.loads(line) for line in body.splitlines()]
        for line in (line["value"] for line in lines if line["key"] == "file"):
            hub.files[f"{kind}/{owner}/{name}", line["path"]] = base64.b64decode(line["content"])
        done = {"commitOid": COMMIT, "commitUrl": f"{hub.address}/{kind}/{owner}/{name}/commit/{COMMIT}"}
        pull = (
            {"pullRequestUrl": f"{hub.address}/{owner}/{name}/discussions/1"} if "create_pr" in query else {}
        )
        return self._answer({"success": True, **done, **pull})

    def do_GET(self) -> None:
        hub: Any = self.server
        path = unquote(self.path.partition("?")[0])
        if path.startswith("/api/datasets/ada/digits/"):
            of_set = {
                name: file for (place, name), file in hub.files.items() if place == "datasets/ada/digits"
            }
            if "/tree/" in path:
                return self._answer([describe(name, file) for name, file in of_set.items()])
            siblings = [{"rfilename": name} for name in of_set]
            return self._answer({"id": "ada/digits", "sha": COMMIT, "siblings": siblings, "tags": []})
        content = hub.files.get(("datasets/ada/digits", path.partition(f"/resolve/{COMMIT}/")[2]))
        if content is None:
            return self._answer({"error": "Repository not found"}, status=404, code="RepoNotFound")
        return self._send(200, content, etag=f'"{hashlib.sha1(content).hexdigest()}"')

    do_HEAD = do_GET

    def _read(self) -> bytes:
        if self.headers["Transfer-Encoding"] != "chunked":
            return self.rfile.read(int(self.headers["Content-Length"] or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, content: Any, status: int = 200, code: str = "") -> None:
        self._send(status, json.dumps(content).encode(), code=code)

    def _send(self, status: int, content: bytes, etag: str = "", code: str = "") -> None:
        self.send_response(status)
        for name, value in {"ETag": etag, "X-Error-Code": code, "X-Repo-Commit": COMMIT}.items():
            if value:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


def describe(name: str, file: bytes) -> dict[str, Any]:
    return {"type": "file", "path": name, "size": len(file), "oid": hashlib.sha1(file).hexdigest()}


@pytest.fixture
def hub() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
    server.address = f"http://127.0.0.1:{server.server_port}"
    server.files, server.created = {}, []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def call(hub: Any, folder: Path, *words: str, token: str = "hf_ada") -> subprocess.CompletedProcess[str]:
    """Call Python in a process of its own, as the library reads the Hub's address when it is imported."""
    variables = {"HF_ENDPOINT": hub.address, "HF_TOKEN": token, "HF_HOME": str(folder / "home")}
    proxies = {name: "" for name in os.environ if name.lower().endswith("_proxy")}
    variables |= {"HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "*"} | proxies
    return subprocess.run(
        [sys.executable, *words], env=os.environ | variables, capture_output=True, text=True, timeout=120
    )


UPLOAD = ("-m", "opencil", "submissions", "upload")


def test_a_submission_goes_to_the_hub_as_it_is_and_its_rows_come_back(
    hub: Any, submitted: Path, tmp_path: Path
) -> None:
    (submitted / "private.txt").write_text("key", encoding="utf-8")
    done = call(hub, tmp_path, *UPLOAD, str(submitted), "ada/digits")
    assert done.returncode == 0, done.stderr
    assert "not uploaded: private.txt" in done.stdout
    (submitted / "private.txt").unlink()
    assert done.stdout.splitlines()[-1] == f"{hub.address}/datasets/ada/digits/commit/{COMMIT}"
    assert hub.created == [("dataset", "ada/digits")]
    sent = {name: content for (_, name), content in hub.files.items()}
    here = {path.relative_to(submitted).as_posix(): path for path in submitted.rglob("*") if path.is_file()}
    assert sent == {name: path.read_bytes() for name, path in here.items()}
    card = yaml.safe_load(sent["README.md"].decode().split("---")[1])
    ((pattern,),) = [[one["path"] for one in config["data_files"]] for config in card["configs"]]
    assert [path.name for path in submitted.glob(pattern)] == ["rows.parquet"]

    read = "import opencil, sys; opencil.load_published('ada/digits').to_parquet(sys.argv[1])"
    done = call(hub, tmp_path, "-c", read, str(tmp_path / "read.parquet"))
    assert done.returncode == 0, done.stderr
    expected = opencil.load_published(submitted)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "read.parquet"), expected, check_dtype=False)
    assert expected["study"].unique().tolist() == ["."]


def test_a_model_gets_a_card_and_a_pull_request(hub: Any, tmp_path: Path) -> None:
    (tmp_path / "model.pt2").write_bytes(b"weights")
    words = (str(tmp_path / "model.pt2"), "others/model", "--kind", "model", "--pull-request")
    done = call(hub, tmp_path, *UPLOAD, *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{hub.address}/others/model/discussions/1"
    assert hub.created == []  # a pull request is to a repository that is there
    assert hub.files["models/others/model", "model.pt2"] == b"weights"
    card = hub.files["models/others/model", "README.md"].decode()
    assert yaml.safe_load(card.split("---")[1])["library_name"] == "opencil"
    assert hashlib.sha256(b"weights").hexdigest() in card


def test_what_the_hub_refuses_is_told_in_a_sentence(hub: Any, submitted: Path, tmp_path: Path) -> None:
    done = call(hub, tmp_path, *UPLOAD, str(submitted), "ada/digits", token="hf_bob")
    assert done.returncode == 1
    assert "error: the Hub refuses" in done.stderr
    assert "Traceback" not in done.stderr
    assert hub.files == {}
    (submitted / "home").symlink_to(tmp_path)
    with pytest.raises(BadInput, match=r"home in .* is a link"):
        list_files(submitted)


@pytest.mark.parametrize("source", ["no-such-folder", "results/study", "here/no", Path("ada/digits")])
def test_paths_are_not_asked_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str | Path
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("opencil.submissions.hub._CLONE", tmp_path / "clone/results")
    (tmp_path / "clone/results/study").mkdir(parents=True)
    with pytest.raises(BadInput, match=r"there is no folder .* or a dataset on the Hub as owner/name"):
        opencil.load_published(source)
