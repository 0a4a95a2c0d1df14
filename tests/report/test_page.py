"""The page as text: its averages against those of the tables, its data, and names that mean mischief."""

import base64
import hashlib
import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pandas as pd
import pytest
import yaml

from opencil.report.averages import average_rows
from opencil.report.figures.drawing import figures
from opencil.report.page import page
from opencil.study.study import Study
from tests.report.common import unpack

Rows = Callable[..., pd.DataFrame]
Record = Callable[..., dict[str, Any]]
EVIL = "</script><script>alert('$1 & \\u2028 <!--')</script>"
PLACES = {"all": ["n1", "f1", "f2", "f3"], "near": ["n1"], "far": ["f1", "f2", "f3"], "dataset f2": ["f2"]}


class Elements(HTMLParser):
    """The elements of a page, in order, as a browser sees them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def flatten(rows: pd.DataFrame) -> dict[tuple[str, ...], list[Any]]:
    """Every average of a page by (k, CIL model, detector, metric, place, seed)."""
    content, found = unpack(page(Study(rows))), {}
    for group in content["groups"]:
        for metric, places in group["averages"].items():
            for place, seeds in places.items():
                for seed, lines in seeds.items():
                    for names, line in lines.items():
                        found[(str(group["k"]), *names.split("\n"), metric, place, seed)] = line
    return found


def test_the_page_has_the_averages_of_the_tables(made_up: Rows) -> None:
    rows = pd.concat([made_up(entropy=1), made_up(cil="wa", entropy=2), made_up(k=5, entropy=3)])
    rows = rows[(rows["cil"] != "wa") | (rows["seed"] < 2) | (rows["step"] < 3)]  # one seed is behind
    found = flatten(rows)
    tables = {seed: rows if seed == "" else rows[rows["seed"] == int(seed)] for seed in ("", "0", "2")}
    for seed, part in tables.items():
        for row in average_rows(part).to_dict("records"):
            key = (str(row["k"]), row["cil"], row["detector"], row["metric"], row["place"], seed)
            mean, std, steps, seeds, means, *_ = found[key]
            assert (mean, steps, seeds) == (
                pytest.approx(100 * row["mean"], abs=0.0051),
                row["steps"],
                row["seeds"],
            )
            assert std == (None if seed else pytest.approx(100 * row["std"], abs=0.0051))
            assert mean == pytest.approx(sum(v for v in means if v is not None) / steps, abs=0.011)
    assert {key[4] for key in found} == {
        "",
        "all",
        "near",
        "far",
        *(f"dataset {ood}" for ood in PLACES["all"]),
    }


def test_a_group_says_what_it_is_planned_to_be(made_up: Rows, record: Record, keeping: Rows) -> None:
    names = ("joint", "joint@short", "finetune", "of-a-plugin")
    rows = pd.concat([made_up(cil=name, steps=3) for name in names])
    kept = keeping(*[(4e6, 1e6)] * 9, (5e6, 1e6), cil="finetune")
    runs: list[Any] = [record(cil="joint", steps=10, trained=3)]
    (group,) = unpack(page(Study(pd.concat([rows, kept]), runs)))["groups"]
    assert (group["planned"], group["steps"]) == (10, [1, 2, 3])
    assert (group["needed"]["auc"], group["needed"]["auc_old"]) == (10, 9)
    assert [cil["name"] for cil in group["cils"] if cil["bound"]] == ["joint", "joint@short"]
    assert {cil["name"]: cil["kept"] for cil in group["cils"]}["finetune"] == 6.0


def test_runs_configs_and_figures(made_up: Rows, record: Record) -> None:
    rows = made_up(seeds=(0,), steps=2)
    drawn = list(figures(Study(rows)))
    runs: list[Any] = [record(config={"a": 1}), record(seed=1, trained=0, steps=None, seconds=[])]
    content = unpack(page(Study(rows, runs), figures=drawn, refresh=7))
    assert content["runs"][0]["config"] == "a: 1\n"
    assert [(run["seed"], run["trained"], run["steps"]) for run in content["runs"]] == [
        (0, 4, 4),
        (1, 0, None),
    ]
    assert "The paper has no results on b" in content["differences"][0]
    assert content["refresh"] == 7
    assert [figure["name"] for figure in content["figures"]] == [figure.about.name for figure in drawn]
    for figure, whole in zip(content["figures"], drawn, strict=True):
        svg = figure["svg"]
        assert svg.startswith("<svg")
        assert "<metadata" not in svg
        assert svg.count("<path ") == whole.svg.count("<path ") > 0


def test_names_stay_inside_their_strings(made_up: Rows, record: Record) -> None:
    rows = made_up(benchmark=EVIL, cil=EVIL, detectors=(EVIL, "msp"))
    rows.loc[rows["ood"] == "f1", "ood"] = EVIL
    rows.loc[rows["metric"] == "ap", "metric"] = EVIL
    run: Any = record(
        benchmark=EVIL, cil=EVIL, detectors={EVIL: 4}, config={EVIL: EVIL}, environment={EVIL: EVIL}
    )
    evil = page(Study(rows, [run]), figures=figures(Study(rows)))
    plain = page(Study(made_up()))
    assert [tag for tag, _ in Elements(evil).found] == [tag for tag, _ in Elements(plain).found]
    content = unpack(evil)
    assert content["groups"][0]["benchmark"] == EVIL
    assert yaml.safe_load(content["runs"][0]["config"]) == {EVIL: EVIL}


def test_nothing_is_loaded_and_no_other_script_may_run(made_up: Rows) -> None:
    text = page(Study(made_up()))
    elements = Elements(text).found
    assert not [(tag, a) for tag, a in elements if "src" in a or tag == "link" or "onclick" in a]
    policy = next(a["content"] for tag, a in elements if tag == "meta" and "http-equiv" in a)
    (script,) = re.findall(r'<script type="module">(.*?)</script>', text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy is not None
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
