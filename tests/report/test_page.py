"""The page as a file: what is in it, how large it is, and that names cannot break out of it."""

import base64
import hashlib
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from opencil.config import dump_yaml
from opencil.evaluation.metric import metric_of, metrics
from opencil.report.figures.drawing import figures
from opencil.report.page import page
from opencil.study.rows import COLUMNS
from opencil.study.study import Study

Rows = Callable[..., pd.DataFrame]
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)><!--"
METRICS = [name for name, metric in metrics().items() if "ranking" in metric.reads or name == "ood_as_new"]


def run(**values: Any) -> dict[str, Any]:
    """A run's record, as the page takes it."""
    record = {"benchmark": "b", "k": 2, "cil": "icarl", "seed": 0, "steps": 4, "trained": 4}
    record |= {"seconds": [{"training": 1.0, "evaluation": 0.5}] * 4, "detectors": {"msp": 4}}
    record |= {"config": {"cil": {"icarl": {}}}, "environment": {}, "data": []}
    return record | values


def content(text: str) -> dict[str, Any]:
    """The data in a page, read as a browser does: up to the first end of the element."""
    match = re.search(r'<script type="application/json" id="data">(.*?)</script', text, re.DOTALL)
    assert match
    found: dict[str, Any] = json.loads(match[1])
    return found


def text(numbers: list[int], data: dict[str, Any]) -> str:
    """A figure or a config of a page, put together again."""
    return "\n".join(data["texts"][number] for number in numbers)


class Elements(HTMLParser):
    """The elements of a page, in order, as a browser sees them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def values(data: dict[str, Any]) -> dict[tuple[Any, ...], float]:
    """Every value of a page by (benchmark, k, cil, seed, step, detector, ood, metric), unpacked by loops."""
    found = {}
    for group in data["groups"]:
        head = (group["benchmark"], group["k"])
        cils, detectors, oods = ([one["name"] for one in group[key]] for key in ("cils", "detectors", "oods"))
        for metric, of in group["values"].items():
            places = product(cils, detectors, group["seeds"])
            for (cil, detector, seed), number in zip(places, of["at"], strict=True):
                values = of["blocks"][number]
                width = len(values) // len(group["steps"])
                for (t, step), (ood, at) in product(
                    enumerate(group["steps"]), zip(oods, of["sets"], strict=True)
                ):
                    value = None if at is None else values[t * width + at]
                    if value is not None:
                        found[(*head, cil, seed, step, detector, ood, metric)] = value / data["scale"] / 100
        for (cil, seed), block in zip(product(cils, group["seeds"]), group["accuracy"], strict=True):
            for step, value in zip(group["steps"], block, strict=True):
                if value is not None:
                    found[(*head, cil, seed, step, "", "", "accuracy")] = value / data["scale"] / 100
    return found


def test_the_page_holds_every_value(made_up: Rows) -> None:
    parts = [made_up(entropy=1), made_up(cil="wa", seeds=(1, 5), steps=2, entropy=2)]
    parts += [made_up(k=5, detectors=("gen",), entropy=3), made_up(benchmark="c", others=("x",), entropy=4)]
    rows = pd.concat(parts)
    whole = rows[(rows["task"] == 0) & ((rows["detector"] != "") | (rows["metric"] == "accuracy"))]
    keys = ["benchmark", "k", "cil", "seed", "step", "detector", "ood", "metric"]
    expected = dict(zip(whole[keys].itertuples(index=False, name=None), whole["value"], strict=True))
    found = values(content(page(Study(rows, [run()]))))
    assert set(found) == set(expected)
    for place, value in expected.items():
        assert found[place] == pytest.approx(value, abs=5.1e-6)


def test_shifted_sets_have_their_own_metrics_alone(
    made_up: Rows, with_shifted: Callable[[pd.DataFrame], pd.DataFrame]
) -> None:
    """They stand behind the OOD sets; what is of the model itself is the same for every detector."""
    rows = with_shifted(made_up())
    data = content(page(Study(rows, [run()])))
    (group,) = data["groups"]
    assert [(ood["name"], ood["distance"]) for ood in group["oods"]] == [
        ("n1", "near"), ("f1", "far"), ("f2", "far"), ("f3", "far"), ("s1", "shifted"), ("s2", "shifted"),
    ]  # fmt: skip
    own = {name for name, metric in data["metrics"].items() if metric["shifted"]}
    assert own == {"accuracy_shifted", "fpr_shifted"}
    found = values(data)
    of_sets = {place: value for place, value in found.items() if place[-2].startswith("s")}
    assert {place[-1] for place in of_sets} == own
    assert {place: v for place, v in found.items() if place not in of_sets} == values(
        content(page(Study(made_up(), [run()])))
    )
    shifted = rows[rows["distance"] == "shifted"].set_index(["seed", "step", "detector", "ood", "metric"])
    for (_, _, _, seed, step, detector, ood, metric), value in of_sets.items():
        of = detector if metric == "fpr_shifted" else ""
        assert value == pytest.approx(shifted.loc[(seed, step, of, ood, metric), "value"], abs=5.1e-6)
    assert len(of_sets) == 2 * 3 * 4 * 2 * 2  # metrics, seeds, steps, detectors, sets


def test_values_that_are_alike_are_written_once(
    made_up: Rows, with_shifted: Callable[[pd.DataFrame], pd.DataFrame]
) -> None:
    """So are those of the model alone; a metric has places for its own sets, what is of clean images one."""
    rows = made_up()
    clean = rows[(rows["detector"] != "") & (rows["ood"] == "n1") & (rows["metric"] == "auc")]
    clean = clean.assign(ood="", distance="", metric="accuracy_with_rejection")
    data = content(page(Study(pd.concat([with_shifted(rows), clean]), [run()])))
    (group,) = data["groups"]
    written = {
        name: (of["sets"], of["at"], [len(block) for block in of["blocks"]])
        for name, of in group["values"].items()
    }
    seeds, shifted = range(3), [None] * 4 + [0, 1]
    assert written["accuracy_shifted"] == (shifted, [*seeds, *seeds], [8] * 3)  # of msp, of energy
    assert written["fpr_shifted"] == (shifted, [*range(6)], [8] * 6)
    assert written["auc"] == ([0, 1, 2, 3, None, None], [*range(6)], [16] * 6)
    assert written["accuracy_with_rejection"] == ([0] * 6, [*range(6)], [4] * 6)
    whole = clean.set_index(["seed", "step", "detector"])["value"]
    for (_, _, _, seed, step, detector, ood, metric), value in values(data).items():
        if metric == "accuracy_with_rejection":
            assert value == pytest.approx(whole[seed, step, detector], abs=5.1e-6), ood
    shifted_alone = with_shifted(rows[rows["ood"] == ""])
    (group,) = content(page(Study(pd.concat([shifted_alone, clean]), [run()])))["groups"]
    assert set(group["values"]) == {"accuracy_shifted", "fpr_shifted"}, "clean images need an OOD set"


def test_the_page_says_how_many_steps_there_will_be(made_up: Rows) -> None:
    rows = pd.concat([made_up(steps=3), made_up(k=5, steps=2)])
    runs = [run(steps=10, trained=3), run(seed=1, steps=None, trained=0)]
    planned, known = content(page(Study(rows, runs)))["groups"]
    assert (planned["planned"], planned["steps"]) == (10, [1, 2, 3])
    assert planned["needed"] == {m: 10 for m in planned["values"] if m != "auc_old"} | {"auc_old": 9}
    assert (known["planned"], known["needed"]["auc_old"]) == (2, 1)  # no record says more


def test_what_does_not_compare_is_named(made_up: Rows) -> None:
    more = made_up(cil="wa", ood={"n1": "near", "f1": "far", "f2": "far", "f3": "far", "f4": "far"})
    configs = [{"cil": {"icarl": {"epochs": n}}, "seed": {"run": n}} for n in (1, 1, 2)]
    runs = [run(seed=seed, config=config) for seed, config in enumerate(configs)]
    rows = pd.concat([made_up(detectors=("msp", "msp@hot")), more])
    (group,) = content(page(Study(rows, runs)))["groups"]
    assert [(o["name"], o["shared"]) for o in group["oods"] if not o["shared"]] == [("f4", False)]
    assert [d["name"] for d in group["detectors"] if d["variant"]] == ["msp@hot"]
    uneven, mixed = group["notes"]
    assert "f4 (wa seed 0, wa seed 1, wa seed 2)" in uneven
    assert "icarl (cil.icarl.epochs)" in mixed
    (plain,) = content(page(Study(made_up(), [run(), run(seed=1)])))["groups"]
    assert plain["notes"] == []
    names = ("joint", "joint@short", "finetune", "of-a-plugin")
    (group,) = content(page(Study(pd.concat([made_up(cil=name) for name in names]))))["groups"]
    assert [cil["name"] for cil in group["cils"] if cil["bound"]] == ["joint", "joint@short"]
    assert group["notes"] == ["Bounds of accuracy, which keep all images, have no rank: joint, joint@short."]


def test_metrics_say_what_they_are_and_which_way_is_better(made_up: Rows) -> None:
    rows = made_up()
    own = rows[rows["metric"] == "auc"].assign(metric="of a plugin")
    found = content(page(Study(pd.concat([rows, own]))))["metrics"]
    assert list(found) == ["auc", "fpr", "ap", "fpr_ood_positive", "ap_id_positive", "auc_old", "of a plugin"]
    assert {name for name, metric in found.items() if metric["lower"]} == {"fpr", "fpr_ood_positive"}
    assert found["auc"]["label"] == "AUC"
    assert f"AUC: {found['auc']['definition']}" == metric_of("auc").sentence
    assert found["of a plugin"] == {
        "label": "of a plugin", "definition": "", "lower": False, "shifted": False,
    }  # fmt: skip


def test_bytes_are_kept_and_no_metric(made_up: Rows, keeping: Rows) -> None:
    plain = made_up(k=4, seeds=(0, 1))
    rows = pd.concat([plain, keeping((1e6, 2e6), (3e6, 2e6), k=4), keeping(*[(5e6, 1e6)] * 4, k=4, seed=1)])
    runs = [run(k=4), run(k=4, seed=1), run(k=4, seed=2)]
    without, found = content(page(Study(plain, runs))), content(page(Study(rows, runs)))
    assert found["metrics"] == without["metrics"]
    assert [of.get("kept") for of in found["runs"]] == [[3.0, 2.0], [5.0, 1.0], None]
    (group,), (before,) = found.pop("groups"), without.pop("groups")
    assert [of.pop("kept") for of in group["cils"]] == [6.0], "of the seed that has all four steps"
    assert [of.pop("kept") for of in before["cils"]] == [None]
    assert group == before


def test_the_page_opens_with_a_metric_of_detectors(made_up: Rows) -> None:
    rows = made_up()
    model = rows[(rows["detector"] == "") & (rows["task"] == 0)]
    shifted = model.assign(ood="dark", distance="shifted", metric="accuracy_shifted")
    found = content(page(Study(pd.concat([rows, shifted]))))["metrics"]
    first, *_, last = found
    assert (first, last) == ("auc", "accuracy_shifted")


def test_runs_and_their_configs(made_up: Rows) -> None:
    runs = [
        run(config={"a": 1}),
        run(seed=1, trained=0, steps=None, seconds=[], config={"b": {"c": [2, 3]}}),
    ]
    data = content(page(Study(made_up(), runs), differences=["texture is smaller"], refresh=7))
    assert [text(r["config"], data) for r in data["runs"]] == [dump_yaml(run["config"]) for run in runs]
    assert [(r["seed"], r["trained"], r["steps"]) for r in data["runs"]] == [(0, 4, 4), (1, 0, None)]
    assert data["differences"] == ["texture is smaller"]
    assert data["refresh"] == 7


def test_figures_are_in_the_page(made_up: Rows) -> None:
    rows = made_up(seeds=(0,), steps=2)
    drawn = list(figures(Study(rows)))
    data = content(page(Study(rows, [run()]), figures=drawn))
    found = data["figures"]
    assert [(f["name"], f["cil"], f["caption"]) for f in found] == [
        (f.about.name, f.about.cil, f.about.caption) for f in drawn
    ]
    for figure, whole in zip(found, drawn, strict=True):
        svg = text(figure["svg"], data)
        assert svg.startswith("<svg")
        assert svg.rstrip().endswith("</svg>")
        assert "<metadata" not in svg
        for tag in ("path", "use", "g"):
            assert svg.count(f"<{tag} ") == whole.svg.count(f"<{tag} ") > 0


def test_lines_of_figures_and_configs_are_written_once(made_up: Rows) -> None:
    rows, config = made_up(seeds=(0,), steps=2), {"a": {"b": 1}, "c": {"b": 1}}
    drawn = list(figures(Study(rows)))
    data = content(page(Study(rows, [run(config=config), run(seed=1, config=config)]), figures=drawn))
    assert len(set(data["texts"])) == len(data["texts"])
    first, second = (one["config"] for one in data["runs"])
    assert first == second
    assert len(first) == 5 > len(set(first)), "the same within a config too; its last line is empty"
    every = [number for one in data["figures"] for number in one["svg"]]
    assert len(every) > 2 * len(set(every))
    letters = [line for line in data["texts"] if line.startswith('<path id="DejaVuSans-')]
    assert len(letters) > 20, "a letter is a line"
    assert all(line.endswith("/>") for line in letters)


def test_a_page_without_rows(made_up: Rows) -> None:
    data = content(page(Study(made_up()[:0], [run(trained=0, seconds=[], detectors={"msp": 0})]), refresh=5))
    assert (data["groups"], data["metrics"], len(data["runs"])) == ([], {}, 1)


def test_names_stay_inside_their_strings(made_up: Rows) -> None:
    rows = made_up(benchmark=EVIL, cil=EVIL, detectors=(EVIL, "msp"))
    rows.loc[rows["ood"] == "f1", "ood"] = EVIL
    rows.loc[rows["metric"] == "ap", "metric"] = EVIL
    runs = [run(benchmark=EVIL, cil=EVIL, detectors={EVIL: 4}, config={EVIL: EVIL}, environment={EVIL: EVIL})]
    plain = page(Study(made_up(), [run()]))
    evil = page(Study(rows, runs), figures=figures(Study(rows)), differences=[EVIL], title=EVIL)
    assert [tag for tag, _ in Elements(evil).found] == [tag for tag, _ in Elements(plain).found]
    data = content(evil)
    assert data["groups"][0]["benchmark"] == EVIL
    assert EVIL in [d["name"] for d in data["groups"][0]["detectors"]]
    assert yaml.safe_load(text(data["runs"][0]["config"], data)) == {EVIL: EVIL}


def test_nothing_is_loaded_and_no_other_script_may_run(made_up: Rows) -> None:
    text = page(Study(made_up(), [run()]), figures=figures(Study(made_up(seeds=(0,), steps=2))))
    elements = Elements(text).found
    assert not [(tag, a) for tag, a in elements if "src" in a or (tag == "link") or "onclick" in a]
    assert {a["href"] for tag, a in elements if tag == "a"} <= {
        f"#{a['id']}" for _, a in elements if "id" in a
    }
    policy = next(a["content"] for tag, a in elements if tag == "meta" and "http-equiv" in a)
    script = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert len(script) == 1
    digest = base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode()
    assert policy is not None
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")


@pytest.fixture
def whole_study() -> pd.DataFrame:
    """4 CIL models × 16 detectors × 10 steps × 6 OOD sets × 3 seeds, every metric."""
    cils, detectors = ("icarl", "bic", "wa", "foster"), tuple(f"detector{i}" for i in range(16))
    ood = {f"ood{i}": ("near", "far")[i > 1] for i in range(6)}
    draw, parts = np.random.default_rng(0), []
    for step in range(1, 11):
        tasks = range(1, step + 1)
        head = [("cifar100", 10, cil, seed, step) for cil in cils for seed in range(3)]
        metrics = [m for m in METRICS if step > 1 or not m.endswith("_old")]
        wholes = [(o, d, 0, m) for (o, d), m in product(ood.items(), metrics)]
        wholes += [(o, d, t, "confidence") for (o, d), t in product({"": "", **ood}.items(), tasks)]
        rows = [(*h, "", "", "", 0, "accuracy") for h in head]
        rows += [(*h, d, *w) for h, d, w in product(head, detectors, wholes)]
        parts.append(pd.DataFrame(rows, columns=COLUMNS[:-1]))
    table = pd.concat(parts, ignore_index=True)
    return table.assign(value=draw.random(len(table)))


def test_a_whole_study_is_less_than_2_megabytes(whole_study: pd.DataFrame) -> None:
    config = {f"key{i}": "value" for i in range(200)}
    runs = [run(cil=cil, seed=s, config=config) for cil in whole_study["cil"].unique() for s in range(3)]
    text = page(Study(whole_study, runs), figures=figures(Study(whole_study)))
    assert len(content(text)["figures"]) == 2 + 4 * 5
    assert len(text.encode()) < 2_000_000
