"""The order of methods: the paper's, then others."""

from opencil.cil.replay import Replay
from opencil.detectors.posthoc.energy import Energy
from opencil.published import published_results
from opencil.registry import LEARNERS, register_detector, register_learner
from opencil.report import order
from opencil.report.order import sort_cil, sort_datasets, sort_detectors, upper_bound


def test_cil_methods() -> None:
    shuffled = ["wa", "aaa", "foster", "icarl", "wa@slow", "bic", "joint"]
    assert sort_cil(shuffled) == ["icarl", "bic", "wa", "wa@slow", "foster", "aaa", "joint"]


def test_an_upper_bound_keeps_all_images() -> None:
    @register_learner("hoarder")
    class Hoarder(Replay):
        remembers = False

    known = [name for name in LEARNERS.names() if upper_bound(name)]
    assert known == ["hoarder", "joint"]
    assert [name for name in ("joint@short", "icarl@short", "zzz") if upper_bound(name)] == ["joint@short"]


def test_the_papers_detectors_stand_as_in_the_paper() -> None:
    paper = [name for name in published_results()["detector"].unique() if name]
    assert sort_detectors(sorted(paper)) == paper
    assert len(paper) == 16


def test_families_in_blocks() -> None:
    @register_detector("aaa")
    class Tuned(Energy):
        family = "fine-tuning"

    found = order.families(["aaa", "ber", "zzz", "msp", "ber@nter", "vos", "odin", "msp@warm"])
    assert found == [
        ("post-hoc", ["msp", "msp@warm", "odin"]),
        ("fine-tuning", ["vos", "ber", "ber@nter", "aaa"]),
        ("others", ["zzz"]),
    ]


def test_datasets() -> None:
    mixed = {"zoo": "near", "places365": "far", "tin": "near", "ant": "far", "mnist": "far"}
    assert list(sort_datasets("cifar100", mixed).items()) == [
        ("tin", "near"),
        ("zoo", "near"),
        ("mnist", "far"),
        ("places365", "far"),
        ("ant", "far"),
    ]
    assert list(sort_datasets("mine", mixed)) == ["tin", "zoo", "ant", "mnist", "places365"]
