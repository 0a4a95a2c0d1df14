"""Names to things: registering, finding, creating, plugins."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

import opencil
from opencil import BadInput, registry
from opencil.errors import nearest, unknown
from opencil.registry import BACKBONES, DATASETS, DETECTORS, LEARNERS, Paper, Registry
from opencil.validation import Positive, Values, plain

ALL = [LEARNERS, DETECTORS, DATASETS, BACKBONES]


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


def test_ours_are_there() -> None:
    assert opencil.list_learners() == LEARNERS.names()
    assert "icarl" in opencil.list_learners()
    assert {"msp", "maxlogit", "energy"} <= set(opencil.list_detectors())
    assert {"digits", "digits-held-out", "photo-patches", "noise"} <= set(opencil.list_datasets())
    assert {"resnet8", "resnet32"} <= set(opencil.list_backbones())


@pytest.mark.parametrize("kind", ALL, ids=lambda r: r.kind)
def test_everything_says_what_it_is_and_can_be_made(kind: Registry[Any]) -> None:
    for name in kind.names():
        entry = kind.entry(name)
        assert entry.name == name
        assert len(entry.about) > 10
        if name != "timm":  # it has to be told which network, and is a package of its own
            kind.create(name)


BOUNDS = {"joint", "replay", "finetune"}  # nobody's invention


@pytest.mark.parametrize("kind", [LEARNERS, DETECTORS], ids=lambda r: r.kind)
def test_every_method_names_its_paper(kind: Registry[Any]) -> None:
    for name in set(kind.names()) - BOUNDS:
        paper = kind.entry(name).paper
        assert paper is not None
        assert paper.title
        assert 1990 < paper.year < 2100
        assert paper.link.startswith("https://"), f"{name} has no link"


@pytest.mark.parametrize("kind", [LEARNERS, DETECTORS], ids=lambda r: r.kind)
def test_every_method_has_an_equation_of_its_own(kind: Registry[Any]) -> None:
    for name in kind.names():
        equation = kind.entry(name).equation
        assert re.match(r"[LS][^=]* = ", equation), (
            f"{name} begins with neither a loss nor a score: {equation!r}"
        )
        assert equation.count("{") == equation.count("}")


@pytest.mark.parametrize("kind", [LEARNERS, DETECTORS], ids=lambda r: r.kind)
def test_every_method_is_written_as_it_is_called(kind: Registry[Any]) -> None:
    """Whoever reads ER-ACE finds er-ace."""
    titles = {name: kind.entry(name).title for name in kind.names()}
    assert {name: title.lower().replace(" ", "-") for name, title in titles.items()} == {n: n for n in titles}


def test_what_a_page_can_tell_of_a_method(things: Registry[Any]) -> None:
    class Family:
        differs = "Of all of us."

    @things.register("told")
    class Told(Family):
        title, equation, differs = "ToLD", "S(x) = 1", "Of me."

    @things.register("silent")
    class Silent(Told):
        pass

    assert things.entry("told").equation == "S(x) = 1"
    assert things.entry("told").differs == ["Of me.", "Of all of us."], "its own comes first"
    assert things.entry("silent").equation == "", "what it inherits may not be what it computes"
    assert [things.entry(name).title for name in ("told", "silent")] == ["ToLD", "Silent"]
    things.register("loud-1")(things.register("loud-2")(Silent))
    assert [things.entry(name).title for name in ("loud-1", "loud-2")] == ["loud-1", "loud-2"], (
        "not both Silent"
    )
    assert things.entry("silent").differs == ["Of me.", "Of all of us."]
    things.register("function")(lambda: None)
    assert things.entry("function").equation == ""
    assert things.entry("function").differs == []


def test_a_paper_links_to_arxiv() -> None:
    assert Paper("T", 2020, "2010.03759").link == "https://arxiv.org/abs/2010.03759"
    assert Paper("T", 2020).link == ""
    assert Paper("T", 2020, "2010.03759", url="https://example.org").link == "https://example.org"


def test_register_find_create(things: Registry[Any]) -> None:
    paper = Paper("On things", 2024)
    assert things.register("thing", paper=paper)(Thing) is Thing, "the decorator gives the class back"
    assert things.entry("thing").make is Thing
    assert things.entry("thing").paper is paper
    assert things.entry("thing").about == "A thing."
    made = things.create("thing", size=2)
    assert made == Thing(size=2.0)
    assert isinstance(made.size, float)


def test_a_thing_keeps_the_name_that_it_was_made_under(things: Registry[Any]) -> None:
    """With its label; a class keeps the one it is registered under, for those who make one themselves."""

    @things.register("thing")
    @dataclass
    class Named(Thing):
        """A thing of this test's own."""

    things.register("from-a-function")(lambda: Thing(1))
    things.register("number")(lambda: 3)
    assert Named.registered_name == "thing"
    assert things.create("thing", size=1).registered_name == "thing"
    assert things.create("thing@mine", size=1).registered_name == "thing@mine"
    assert things.create("from-a-function").registered_name == "from-a-function"
    assert things.create("number") == 3
    assert plain(things.create("thing@mine", size=1)) == plain(Thing(1))


def test_names_are_sorted_and_match_shell_patterns(things: Registry[Any]) -> None:
    for name in ("norm-b", "a-norm", "other", "norm-a"):
        things.register(name)(Thing)
    assert things.names() == ["a-norm", "norm-a", "norm-b", "other"]
    assert things.names("*norm*") == ["a-norm", "norm-a", "norm-b"]
    assert things.names("norm-[ab]") == ["norm-a", "norm-b"]
    assert things.names("nothing*") == []


@pytest.mark.parametrize(
    "name", ["", "Big", "with space", "a/b", "../a", ".hidden", "-dash", "_low", "a*", "a,b"]
)
def test_names_that_cannot_be_used(things: Registry[Any], name: str) -> None:
    with pytest.raises(BadInput, match="lower-case letters, digits") as raised:
        things.register(name)
    assert repr(name) in str(raised.value)
    assert things.names() == []


@pytest.mark.parametrize("name", ["a", "0", "a-b_c2"])
def test_names_that_can_be_used(things: Registry[Any], name: str) -> None:
    things.register(name)(Thing)
    assert things.names() == [name]


def test_a_name_is_taken_once(things: Registry[Any]) -> None:
    things.register("thing")(Thing)

    @dataclass
    class Other(Values):
        """Another thing."""

    with pytest.raises(BadInput, match=r"'thing' is already registered by .*test_registry"):
        things.register("thing")(Other)
    assert things.entry("thing").make is Thing


def test_the_same_definition_again_replaces_itself(things: Registry[Any]) -> None:
    def cell() -> type:
        @things.register("mine")
        @dataclass
        class Mine(Values):
            """Mine."""

        return Mine

    first, second = cell(), cell()
    assert first is not second
    assert things.entry("mine").make is second


def test_an_unknown_name_offers_the_nearest(things: Registry[Any]) -> None:
    for name in ("energy", "msp"):
        things.register(name)(Thing)
    with pytest.raises(BadInput) as raised:
        things.create("enrgy")
    assert str(raised.value) == "thing 'enrgy' is unknown: allowed are energy, msp; did you mean 'energy'?"
    with pytest.raises(BadInput, match=r"'qqqqq' is unknown: allowed are energy, msp$"):
        things.entry("qqqqq")


def test_a_name_may_carry_a_label(things: Registry[Any]) -> None:
    """The same thing, under values of its own; the label is not a name."""
    things.register("thing")(Thing)
    assert things.entry("thing@small") is things.entry("thing")
    assert things.create("thing@small", size=0.5) == Thing(size=0.5)
    assert things.names() == ["thing"]
    with pytest.raises(BadInput, match=r"thing@small\.sise = 3 is unknown.*did you mean 'size'"):
        things.create("thing@small", sise=3)


@dataclass
class Shipping(Thing):
    """A thing that ships values under a label."""

    inner: dict[str, float] = field(default_factory=lambda: {"a": 1.0, "b": 2.0})
    named: ClassVar[Mapping[str, Mapping[str, Any]]] = {"tiny": {"size": 0.1, "inner": {"b": 9.0}}}


def test_a_thing_may_ship_values_under_a_label(things: Registry[Any]) -> None:
    things.register("thing")(Shipping)
    assert things.create("thing@tiny") == Shipping(size=0.1, inner={"a": 1.0, "b": 9.0})
    assert things.create("thing@tiny", size=0.2) == Shipping(size=0.2, inner={"a": 1.0, "b": 9.0})
    assert things.create("thing@other") == things.create("thing") == Shipping()
    assert things.defaults("thing@tiny") == {"size": 0.1, "parts": [], "inner": {"a": 1.0, "b": 9.0}}
    assert Shipping.named["tiny"] == {"size": 0.1, "inner": {"b": 9.0}}, "nothing is written into it"


@pytest.mark.parametrize("kinds", [LEARNERS, DETECTORS], ids=lambda kinds: kinds.kind)
def test_every_label_that_ships_can_be_made_and_changes_something(kinds: Registry[Any]) -> None:
    for name in kinds.names():
        for label in kinds.entry(name).named:
            kinds.create(f"{name}@{label}")
            assert kinds.defaults(f"{name}@{label}") != kinds.defaults(name)


@pytest.mark.parametrize("label", ["", "Small", "a b", "../up", "a/b", "-a", "a@b", "a.b", "*"])
def test_labels_that_cannot_be_used(things: Registry[Any], label: str) -> None:
    """They become names of files."""
    things.register("thing")(Thing)
    with pytest.raises(BadInput, match="lower-case letters, digits, - and _") as raised:
        things.entry(f"thing@{label}")
    assert repr(f"thing@{label}") in str(raised.value)


def test_a_label_does_not_hide_an_unknown_name(things: Registry[Any]) -> None:
    things.register("thing")(Thing)
    with pytest.raises(BadInput, match=r"thing 'thng' is unknown.*did you mean 'thing'"):
        things.entry("thng@small")
    with pytest.raises(BadInput, match="'' is unknown"):
        things.entry("@small")


@pytest.mark.parametrize(
    ("kind", "base", "method"),
    [(LEARNERS, "Learner", "stages"), (DETECTORS, "Detector", "scores"), (DATASETS, "Dataset", "load")],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
def test_what_lacks_the_contract_is_refused_where_it_registers(
    kind: Registry[Any], base: str, method: str
) -> None:
    incomplete = type("Mine", (getattr(opencil, base),), {"__doc__": "Lacks its method."})
    written = rf"'mine' is no opencil\.{base}: write class"
    for make, message in [
        (Thing, rf"{written} Thing\(opencil\.{base}\)"),
        (lambda: Thing(), written),
        (incomplete, rf"'mine' has no {method}: every opencil\.{base} defines that"),
    ]:
        with pytest.raises(BadInput, match=rf"^{kind.kind} {message}"):
            kind.register("mine")(make)
    assert "mine" not in kind.names()


def test_a_label_cannot_be_registered(things: Registry[Any]) -> None:
    with pytest.raises(BadInput, match="lower-case letters, digits"):
        things.register("thing@small")


def test_unknown_among_nothing() -> None:
    assert str(unknown("thing", "a", [])) == "thing 'a' is unknown: allowed are none"


def test_nearest_looks_past_case_and_gives_the_name_as_it_is_written() -> None:
    assert nearest("ENERGY", ["Energy", "msp"]) == "; did you mean 'Energy'?"
    assert nearest("zzz", ["energy"]) == ""


@pytest.mark.parametrize(
    ("values", "fragments"),
    [
        ({"sise": 3}, ["thing.sise = 3", "parts, size", "did you mean 'size'"]),
        ({"size": -1}, ["thing.size = -1", "greater than 0"]),
        ({"size": "big"}, ['thing.size = "big"', "number"]),
        ({"size": True}, ["thing.size = true", "number"]),
        ({"size": float("nan")}, ["thing.size = NaN", "finite"]),
        ({"parts": [1]}, ["thing.parts[0] = 1", "string"]),
    ],
)
def test_create_refuses_values(things: Registry[Any], values: dict[str, Any], fragments: list[str]) -> None:
    things.register("thing")(Thing)
    with pytest.raises(BadInput) as raised:
        things.create("thing", **values)
    assert [f for f in fragments if f not in str(raised.value)] == [], str(raised.value)


@pytest.mark.parametrize("create", [opencil.create_learner, opencil.create_detector, opencil.create_dataset])
def test_the_public_makers_refuse_unknown_values(create: Any) -> None:
    for name in create.__self__.names():
        with pytest.raises(BadInput, match=rf"{name}\.not_there = 1 is unknown"):
            create(name, not_there=1)


def test_a_backbone_refuses_unknown_values_too() -> None:
    with pytest.raises(BadInput, match="blocks"):
        opencil.create_backbone("resnet8", blocks=3)


# --- plugins ---------------------------------------------------------------------------------------


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What another installed package would offer; plugins are looked for again."""
    points: list[Any] = []
    asked = []

    def entry_points(group: str) -> list[Any]:
        asked.append(group)
        return points

    monkeypatch.setattr(registry, "entry_points", entry_points)
    registry.load_plugins.cache_clear()
    yield points
    registry.load_plugins.cache_clear()
    assert set(asked) == {"opencil.plugins"}


def test_ours_are_imported_before_an_installed_plugin(
    offered: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what it imports of ours would count as registered by it, in the notes of stored runs."""
    order: list[str] = []
    monkeypatch.setattr(registry, "import_modules", order.append)
    offered.append(SimpleNamespace(name="mine", value="mine", load=lambda: order.append("mine")))
    opencil.list_learners()
    assert order.index("mine") > max(order.index(one.home) for one in registry.REGISTRIES)


def test_a_plugin_registers_from_outside(offered: list[Any]) -> None:
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
    assert type(opencil.create_detector("from-outside")).__name__ == "Outside"
    assert point.loaded == 1, "plugins are imported once"
    assert registry.DETECTORS.plugin_of("from-outside") == "my_package.my_methods"
    assert registry.DETECTORS.plugin_of("msp") == ""


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
        where = f"plugin 'mine' (installed_and_broken:Method) in {file}, line 3"
        assert str(told.value) == f"{where}: SystemExit: no licence"


def test_without_plugins(offered: list[Any]) -> None:
    assert "from-outside" not in opencil.list_detectors()
