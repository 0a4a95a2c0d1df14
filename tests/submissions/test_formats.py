"""Formats of other boards keep to what these publish: headers, parsers and schemas."""

import csv
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import opencil
from opencil import BadInput
from opencil.report.averages import average_rows
from opencil.submissions import formats
from opencil.submissions.checking import check_submission

DETECTORS = ("energy", "msp", "relation")
_STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
_NUMBER = {"type": "number"}


def _object(required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required.split(), "properties": properties}


def _one_of(*values: str) -> dict[str, Any]:
    return {"enum": [*values]}


#: The part of version 0.3.0 of https://github.com/evaleval/every_eval_ever that we write, from its schema.
EVERY_EVAL_EVER = {
    **_object(
        "schema_version evaluation_id retrieved_timestamp source_metadata model_info eval_library "
        "evaluation_results",
        schema_version={"const": "0.3.0"},
        evaluation_id={"type": "string"},
        retrieved_timestamp={"type": "string", "pattern": r"^\d+$"},
        source_metadata=_object(
            "source_type source_organization_name evaluator_relationship",
            source_name={"type": "string"},
            source_organization_name={"type": "string"},
            source_type=_one_of("documentation", "evaluation_run"),
            evaluator_relationship=_one_of("first_party", "third_party", "collaborative", "other"),
        ),
        eval_library=_object("name version", name={"type": "string"}, version={"type": "string"}),
        model_info=_object(
            "name id additional_details",
            name={"type": "string"},
            id={"type": "string"},
            developer={"type": "string"},
            additional_details={
                **_object(
                    "deployment_type model_availability",
                    deployment_type=_one_of("self_deployed", "externally_managed", "unknown"),
                    model_availability=_one_of("open_weights", "closed_weights", "unknown"),
                ),
                "additionalProperties": {"type": "string"},
            },
        ),
        evaluation_results={
            "type": "array",
            "items": _object(
                "evaluation_name source_data metric_config score_details",
                evaluation_name={"type": "string"},
                evaluation_result_id={"type": "string"},
                source_data=_object(
                    "dataset_name source_type",
                    dataset_name={"type": "string"},
                    source_type={"const": "other"},
                ),
                # A continuous score needs its bounds.
                metric_config=_object(
                    "lower_is_better min_score max_score",
                    lower_is_better={"type": "boolean"},
                    score_type={"const": "continuous"},
                    min_score=_NUMBER,
                    max_score=_NUMBER,
                    metric_unit={"type": "string"},
                ),
                score_details=_object(
                    "score",
                    score=_NUMBER,
                    details=_STRINGS,
                    uncertainty=_object("", standard_deviation=_NUMBER, num_samples={"type": "integer"}),
                ),
            ),
        },
    ),
    "additionalProperties": False,
}


@pytest.fixture
def exported(submitted: Path) -> Path:
    checked = check_submission(submitted)
    assert checked.description is not None
    formats.export(checked.study, checked.description, submitted / "formats", "ada/results")
    return submitted / "formats"


def means(folder: Path) -> dict[tuple[str, str, str], float]:
    """Return means over steps, in percent, by detector, metric and place."""
    table = average_rows(opencil.load_published(folder))
    return {
        (row.detector, row.metric, row.place): 100 * row.mean
        for row in table[["detector", "metric", "place", "mean"]].itertuples(index=False)
    }


def test_openood_lines_are_as_those_of_its_leaderboard(submitted: Path, exported: Path) -> None:
    text = (exported / "openood/results/digits.csv").read_text()
    published = (
        "Training,Postprocessor,Near-OOD_AUROC,Far-OOD_AUROC,ID_Accuracy,Outlier_Data,Arch,"
        "Additional_Description"
    )
    assert text.splitlines()[0] == published
    lines = list(csv.DictReader(text.splitlines()))
    assert [(line["Training"], line["Postprocessor"]) for line in lines] == [
        ("iCaRL", name) for name in ("MSP", "Energy", "Relation")
    ]
    wanted = means(submitted)
    for line, detector in zip(lines, ("msp", "energy", "relation"), strict=True):
        assert float(line["Near-OOD_AUROC"]) == round(wanted[detector, "auc", "near"], 2)
        assert float(line["Far-OOD_AUROC"]) == round(wanted[detector, "auc", "far"], 2)
        assert float(line["ID_Accuracy"]) == round(wanted["", "accuracy", ""], 2)
        assert (line["Outlier_Data"], line["Arch"]) == ("No", "resnet8")
    papers = list(csv.DictReader((exported / "openood/utils/papers.csv").read_text().splitlines()))
    assert {"iCaRL", "MSP", "Energy", "Relation"} == {line["Alias"] for line in papers}
    assert all(line["Link"].startswith("https://") for line in papers)


@pytest.mark.parametrize("backbone", [{}, {"name": "mine"}, ["mine"]])
def test_a_backbone_may_be_any_value_of_anyone(submitted: Path, backbone: Any) -> None:
    study = check_submission(submitted).study
    study.runs[0]["config"]["benchmark"]["backbone"] = backbone
    assert dict(formats.openood_files(study)).keys() >= {"openood/results/digits.csv"}


def test_results_for_the_hub_are_read_by_its_own_library(submitted: Path, exported: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    benchmark = yaml.safe_load((exported / "huggingface/eval.yaml").read_text())
    assert benchmark.keys() == {"name", "description", "evaluation_framework", "tasks"}
    tasks = {task["id"] for task in benchmark["tasks"]}
    wanted = means(submitted)
    for detector in DETECTORS:
        path = exported / f"huggingface/digits-k2/icarl-{detector}/.eval_results/opencil.yaml"
        values = {}
        for entry in hub.parse_eval_result_entries(yaml.safe_load(path.read_text())):
            assert entry.dataset_id == "ada/results"
            assert entry.task_id in tasks
            assert entry.source_url == "https://huggingface.co/datasets/ada/results"
            values[entry.task_id] = entry.value
        assert values["digits_k2_auc_far"] == round(wanted[detector, "auc", "far"], 2)
        assert values["digits_k2_fpr"] == round(wanted[detector, "fpr", "all"], 2)
        assert values.keys() == tasks


def test_logs_for_every_eval_ever_keep_to_its_schema(submitted: Path, exported: Path) -> None:
    paths = sorted((exported / "every-eval-ever").rglob("*.json"))
    assert len(paths) == len(DETECTORS)
    wanted = means(submitted)
    for path in paths:
        data, collection, developer, model, file = path.relative_to(exported / "every-eval-ever").parts
        assert (data, collection, developer) == ("data", "opencil-digits-k2", "Ada")
        assert file[14] == "4", "a UUID of version 4"
        log = json.loads(path.read_text())
        jsonschema.validate(log, EVERY_EVAL_EVER)
        scores = {
            one["evaluation_result_id"]: one["score_details"]["score"] for one in log["evaluation_results"]
        }
        assert scores["auc"] == pytest.approx(wanted[model.removeprefix("icarl-"), "auc", "all"], abs=1e-9)
    jsonschema.Draft7Validator.check_schema(EVERY_EVAL_EVER)
    for key in ("eval_library", "model_info"):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({k: v for k, v in log.items() if k != key}, EVERY_EVAL_EVER)


def test_commas_and_labels_do_not_break_lines(submitted: Path) -> None:
    checked = check_submission(submitted)
    rows = checked.study.rows.assign(detector=checked.study.rows["detector"].replace("msp", "msp@a,b"))
    run = checked.study.runs[0] | {"detectors": {"msp@a,b": 4}}
    study = opencil.Study(rows[rows["detector"].isin(["", "msp@a,b"])], [run])
    files = dict(formats.openood_files(study))
    _, line = files["openood/results/digits.csv"].splitlines()
    assert line.split(",")[1] == "MSP@a;b"


def test_a_study_without_a_finished_pair_is_refused(submitted: Path) -> None:
    checked = check_submission(submitted)
    assert checked.description is not None
    rows = checked.study.rows
    with pytest.raises(BadInput):
        formats.export(
            opencil.Study(rows[rows["distance"] != "near"], checked.study.runs),
            checked.description,
            submitted / "formats",
            "ada/results",
        )
