"""Names to classes: registering, finding, creating, labels, installed plugins."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar

import pytest

import opencil
from opencil import BadInput, registry
from opencil.registry import BACKBONES, DATASETS, DETECTORS, LEARNERS, Paper, Registry
from opencil.validation import Positive, Values, plain

ALL = [LEARNERS, DETECTORS, DATASETS, BACKBONES]
METHODS = pytest.mark.parametrize("kind", [LEARNERS, DETECTORS], ids=lambda r: r.kind)


@pytest.fixture
def things() -> Registry[Any]:
    """An empty registry, at home in a package that registers nothing."""
    return Registry("thing", "opencil.published")


@dataclass
class Thing(Values):
    """A thing.

    It has more to say.
    """

    size: Positive = 1.0
    parts: list[str] = field(default_factory=list)
    inner: dict[str, float] = field(default_factory=lambda: {"a": 1.0, "b": 2.0})
    named: ClassVar[Mapping[str, Mapping[str, Any]]] = {"tiny": {"size": 0.1, "inner": {"b": 9.0}}}


# --- what is built in ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL, ids=lambda r: r.kind)
def test_every_entry_is_described_and_can_be_created(kind: Registry[Any]) -> None:
    assert kind.names()
    for name in kind.names():
        assert len(kind.entry(name).about) > 10
        if name != "timm":  # needs a network's name, and a package of its own
            kind.create(name)


UNPUBLISHED = {"joint", "replay", "finetune", "combined"}  # bounds, and what this project adds


@METHODS
def test_every_method_has_its_paper_equation_and_title(kind: Registry[Any]) -> None:
    for name in kind.names():
        entry = kind.entry(name)
        if name not in UNPUBLISHED:
            assert entry.paper is not None
            assert entry.paper.title
            assert 1990 < entry.paper.year < 2100
            assert entry.paper.link.startswith("https://"), f"{name} has no link"
        equation = vars(entry.make)["equation"]
        assert re.match(r"([LS][^=]*|z_c) = ", equation), f"{name}: no loss, score or logit"
        assert equation.count("{") == equation.count("}")
        assert entry.title.lower().replace(" ", "-").replace("++", "-pp") == name


@METHODS
def test_every_preset_can_be_created_and_changes_something(kind: Registry[Any]) -> None:
    for name in kind.names():
        for label in kind.entry(name).named:
            kind.create(f"{name}@{label}")
            assert kind.defaults(f"{name}@{label}") != kind.defaults(name)


def test_other_libraries_names_of_detectors_are_ours() -> None:
    for alias, name in DETECTORS.aliases.items():
        assert DETECTORS.create(alias) == DETECTORS.create(name)
        assert alias not in DETECTORS.names()
    assert opencil.create_detector("EnergyBased@warm").registered_name == "energy@warm"
    layers = {"detector": {"ebo": {"temperature": 2.0}, "MLS": {}, "energy": {}}}
    config = opencil.resolve({"cil": "icarl", **layers}, settings=["detector.ebo.by_task=true"])
    assert config.detector["energy"] == {"temperature": 2.0, "by_task": True}
    assert list(config.detector) == ["energy", "maxlogit"]


def test_a_registered_name_is_no_alias(things: Registry[Any]) -> None:
    things.aliases = {"ebo": "thing"}
    things.register("thing")(Thing)
    assert things.entry("ebo").name == "thing"
    things.register("ebo")(type("Own", (Thing,), {}))
    assert things.entry("ebo").name == "ebo"


def test_an_unknown_name_in_a_file_of_this_folder_suggests_the_file(
    things: Registry[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text('@opencil.register_thing(\n    "my-thing")\nclass Mine: ...')
    with pytest.raises(BadInput, match=r"--plugin mine\.py$"):
        things.entry("my-thing")
    with pytest.raises(BadInput, match=r"'my-thin' is unknown: allowed are none$"):
        things.entry("my-thin")


# --- registering -----------------------------------------------------------------------------------


def test_register_find_create(things: Registry[Any]) -> None:
    paper = Paper("On things", 2024)
    assert things.register("thing", paper=paper)(Thing) is Thing, "the decorator returns the class"
    entry = things.entry("thing")
    assert (entry.make, entry.paper, entry.about) == (Thing, paper, "A thing.")
    made = things.create("thing", size=2)
    assert made == Thing(size=2.0)
    assert isinstance(made.size, float)


def test_an_entry_has_the_title_of_its_own_class(things: Registry[Any]) -> None:
    @things.register("told")
    class Told:
        title = "ToLD"

    @things.register("silent")
    class Silent(Told):
        pass

    assert [things.entry(name).title for name in ("told", "silent")] == ["ToLD", "Silent"]
    things.register("loud-1")(Silent)
    assert things.entry("loud-1").title == "loud-1"


@pytest.mark.parametrize("name", [None, b"one", 3, ["one"]])
def test_a_name_is_a_text(things: Registry[Any], name: Any) -> None:
    with pytest.raises(BadInput, match="a name is needed"):
        things.create(name)


def test_names_are_sorted_and_match_shell_patterns(things: Registry[Any]) -> None:
    for name in ("norm-b", "a-norm", "0", "norm-a", "a-b_c2"):
        things.register(name)(Thing)
    assert things.names() == ["0", "a-b_c2", "a-norm", "norm-a", "norm-b"]
    assert things.names("*norm*") == ["a-norm", "norm-a", "norm-b"]
    assert things.names("norm-[ab]") == ["norm-a", "norm-b"]
    assert things.names("nothing*") == []


@pytest.mark.parametrize(
    "name", ["", "Big", "with space", "../a", ".hidden", "-dash", "a*", "a,b", "a@b", "all"]
)
def test_names_and_labels_that_cannot_be_used(things: Registry[Any], name: str) -> None:
    with pytest.raises(BadInput, match=re.escape(repr(name))):
        things.register(name)
    assert things.names() == []
    things.register("thing")(Thing)
    if name != "all":
        with pytest.raises(BadInput, match=re.escape(repr(f"thing@{name}"))):
            things.entry(f"thing@{name}")


def test_a_name_is_taken_once_and_the_same_definition_replaces_itself(things: Registry[Any]) -> None:
    def cell() -> type:
        @things.register("mine")
        @dataclass
        class Mine(Values):
            """Mine."""

        return Mine

    cell()
    second = cell()
    assert things.entry("mine").make is second
    with pytest.raises(BadInput, match=r"'mine' is already registered by .*test_registry"):
        things.register("mine")(Thing)
    assert things.entry("mine").make is second


@pytest.mark.parametrize(
    ("kind", "base", "method"),
    [(LEARNERS, "Learner", "stages"), (DETECTORS, "Detector", "scores"), (DATASETS, "Dataset", "load")],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
def test_a_class_without_its_contract_is_refused(kind: Registry[Any], base: str, method: str) -> None:
    incomplete = type("Mine", (getattr(opencil, base),), {"__doc__": "Lacks its method."})
    for make, named in [(Thing, base), (lambda: Thing(), base), (incomplete, method)]:
        with pytest.raises(BadInput, match=rf"^{kind.kind} 'mine' .*{named}"):
            kind.register("mine")(make)
    assert "mine" not in kind.names()


# --- creating --------------------------------------------------------------------------------------


def test_a_name_may_carry_a_label(things: Registry[Any]) -> None:
    things.register("thing")(Thing)
    assert things.entry("thing@small") is things.entry("thing")
    assert things.create("thing@small", size=0.5) == Thing(size=0.5)
    assert things.names() == ["thing"]
    with pytest.raises(BadInput, match=r"thing@small\.sise = 3 .*did you mean 'size'"):
        things.create("thing@small", sise=3)


def test_a_label_may_be_a_preset(things: Registry[Any]) -> None:
    things.register("thing")(Thing)
    tiny = Thing(size=0.1, inner={"a": 1.0, "b": 9.0})
    assert things.create("thing@tiny") == tiny
    assert things.defaults("thing@tiny") == plain(tiny)
    assert things.create("thing@tiny", size=0.2) == Thing(size=0.2, inner={"a": 1.0, "b": 9.0})
    assert things.create("thing@other") == things.create("thing") == Thing()
    assert Thing.named["tiny"] == {"size": 0.1, "inner": {"b": 9.0}}, "it is not changed"


@pytest.mark.parametrize("kind", [LEARNERS, DETECTORS, DATASETS], ids=lambda r: r.kind)
def test_every_class_refuses_unknown_values(kind: Registry[Any]) -> None:
    for name in kind.names():
        with pytest.raises(BadInput, match=rf"{name}\.not_there = 1"):
            kind.create(name, not_there=1)
    with pytest.raises(BadInput, match="blocks"):
        opencil.create_backbone("resnet8", blocks=3)


# --- installed plugins -----------------------------------------------------------------------------


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What another installed package would offer; plugins are looked for again."""
    points: list[Any] = []
    monkeypatch.setattr(registry, "entry_points", lambda group: points if group == "opencil.plugins" else [])
    registry.load_plugins.cache_clear()
    yield points
    registry.load_plugins.cache_clear()


def test_an_installed_plugin_registers_from_outside(offered: list[Any]) -> None:
    class Point:
        name, value = "mine", "my_package.my_methods:Outside"
        loaded = 0

        def load(self) -> None:
            self.loaded += 1

            @opencil.register_detector("from-outside")
            @dataclass
            class Outside(opencil.LogitDetector):
                """From outside."""

                def scores(self, outputs: opencil.Outputs) -> Any:
                    return outputs.logits[:, 0]

    point = Point()
    offered.append(point)
    assert "from-outside" in opencil.list_detectors()
    assert "from-outside" in opencil.resolve(detector=["all"]).detector
    assert point.loaded == 1, "plugins are imported once"
    assert DETECTORS.plugin_of("from-outside") == "my_package.my_methods"
    assert DETECTORS.plugin_of("msp") == ""


def test_an_installed_plugin_that_raises_is_named_with_its_line(
    offered: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "installed_and_broken.py"
    file.write_text("import sys\n\nsys.exit('no licence')\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    offered.append(EntryPoint("mine", "installed_and_broken:Method", registry.GROUP))
    for ask in (opencil.list_detectors, opencil.list_metrics):  # the second time as the first
        with pytest.raises(opencil.OpenCILError) as told:
            ask()
        for fragment in ("'mine'", "installed_and_broken.py, line 3", "SystemExit: no licence"):
            assert fragment in str(told.value)


def test_a_family_that_is_no_text_is_refused() -> None:
    msp = DETECTORS.entry("msp").make
    with pytest.raises(BadInput, match="family"):
        DETECTORS.register("odd")(type("Odd", (msp,), {"family": 1}))
    assert "odd" not in DETECTORS.names()
