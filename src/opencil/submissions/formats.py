"""Write results in the formats of other boards: OpenOOD, the Hugging Face Hub and Every Eval Ever.

Values are means in percent over sets, steps and seeds, as tables show them.
"""

import json
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from opencil._version import __version__
from opencil.config import dump_yaml
from opencil.errors import BadInput
from opencil.evaluation.metric import metric_of
from opencil.files import file_name, write_text
from opencil.registry import DETECTORS, LEARNERS
from opencil.report.layout import Cell
from opencil.report.order import method
from opencil.report.results import Outcome, count, results
from opencil.study.study import Study
from opencil.submissions.submission import Description

#: The figures of a pair of CIL model and detector: name of the task, detector's or model's metric, and sets.
FIGURES = {
    "auc": ("auc", "all"),
    "auc_near": ("auc", "near"),
    "auc_far": ("auc", "far"),
    "fpr": ("fpr", "all"),
    "accuracy": ("accuracy", ""),
}
_OPENOOD = (
    "Training,Postprocessor,Near-OOD_AUROC,Far-OOD_AUROC,ID_Accuracy,Outlier_Data,Arch,Additional_Description"
)
#: Version of the schema of Every Eval Ever, https://github.com/evaleval/every_eval_ever
EVERY_EVAL_EVER = "0.3.0"


def export(study: Study, about: Description, folder: Path, dataset: str) -> int:
    """Write all formats into a folder, and return the number of files; ``dataset`` is a name on the Hub."""
    if not any(_pairs(study)):
        raise BadInput("no detector is finished on near and on far OOD sets: there is nothing to export")
    files = dict([*openood_files(study), *hub_files(study, about, dataset), *eval_files(study, about)])
    for name, text in files.items():
        write_text(folder / name, text)
    return len(files)


def _pairs(study: Study) -> Iterator[tuple[Outcome, str, str, dict[str, Cell]]]:
    """Yield the figures of each finished pair of CIL model and detector."""
    for outcome in results(study):
        for cil in outcome.cil:
            for detector in outcome.detectors:
                cells = {
                    name: outcome.of(cil, detector if place else "", metric, place)
                    for name, (metric, place) in FIGURES.items()
                }
                if all(cell.value is not None for cell in cells.values()):
                    yield outcome, cil, detector, cells


def openood_files(study: Study) -> Iterator[tuple[str, str]]:
    """Yield lines for the tables of OpenOOD's leaderboard, and for its list of papers."""
    lines, papers = dict[str, list[str]](), dict[str, str]()
    for outcome, cil, detector, cells in _pairs(study):
        config = next(run["config"] for run in outcome.runs if run["cil"] == cil)
        backbone = config["benchmark"]["backbone"]
        arch = str(backbone.get("name", "") if isinstance(backbone, dict) else backbone)
        shown = [cells[name].text for name in ("auc_near", "auc_far", "accuracy")]
        how = f"OpenCIL; {count(outcome.steps, 'step')} of {outcome.k} classes; mean over steps"
        line = [_title(LEARNERS, cil), _title(DETECTORS, detector), *shown, "No", arch, how]
        lines.setdefault(outcome.benchmark, [_OPENOOD]).append(",".join(map(_plain, line)))
        for registry, name in ((LEARNERS, cil), (DETECTORS, detector)):
            paper = registry.entry(method(name)).paper if method(name) in registry.names() else None
            # Their script needs a line of every post-processor, also of one without a paper.
            if paper or registry is DETECTORS:
                papers[_plain(_title(registry, name))] = paper.link if paper else ""
    for benchmark, text in lines.items():
        yield f"openood/results/{benchmark}.csv", "\n".join([*text, ""])
    if papers:
        listed = [f"{alias},{link}" for alias, link in sorted(papers.items())]
        yield "openood/utils/papers.csv", "\n".join(["Alias,Link", *listed, ""])


def _title(registry: Any, name: str) -> str:
    """Return the name of a method as its paper writes it, with its label."""
    known = method(name) in registry.names()
    return name.replace(method(name), registry.entry(method(name)).title, 1) if known else name


def _plain(text: str) -> str:
    """Return a text without the characters that separate cells: OpenOOD's script splits lines at commas."""
    return text.replace(",", ";").replace("\n", " ")


def task_name(outcome: Outcome, figure: str) -> str:
    """Return the name of a task of the Hub's benchmark."""
    return f"{outcome.benchmark}_k{outcome.k}_{figure}"


def benchmark_file(study: Study, title: str = "OpenCIL") -> str:
    """Return ``eval.yaml``, which makes a dataset on the Hub a benchmark with a task for each figure."""
    tasks = [task_name(outcome, figure) for outcome in results(study) for figure in FIGURES]
    about = (
        "Out-of-distribution detection in class-incremental learning: means over steps and seeds, in percent."
    )
    listed = [{"id": task, "config": "rows", "split": "test"} for task in tasks]
    return dump_yaml(
        {"name": title, "description": about, "evaluation_framework": "opencil", "tasks": listed}
    )


def hub_files(study: Study, about: Description, dataset: str) -> Iterator[tuple[str, str]]:
    """Yield ``eval.yaml`` of the dataset, and results for the repository of each model."""
    yield "huggingface/eval.yaml", benchmark_file(study)
    for outcome, cil, detector, cells in _pairs(study):
        entries = [
            {
                "dataset": {"id": dataset, "task_id": task_name(outcome, name)},
                "value": round(cell.value or 0.0, 2),
                "date": about["date"],
                "source": {"url": f"https://huggingface.co/datasets/{dataset}", "name": "OpenCIL"},
                "evaluation_framework": "opencil",
                "notes": f"{cil} with {detector}, {count(outcome.steps, 'step')}",
            }
            for name, cell in cells.items()
        ]
        model = f"{outcome.name}/{file_name(cil)}-{file_name(detector)}"
        yield f"huggingface/{model}/.eval_results/opencil.yaml", dump_yaml(entries)


def eval_files(study: Study, about: Description) -> Iterator[tuple[str, str]]:
    """Yield a log of Every Eval Ever for each pair of CIL model and detector."""
    who = about["submitter"]
    for outcome, cil, detector, cells in _pairs(study):
        model = f"{file_name(cil)}-{file_name(detector)}"
        collection = f"opencil-{outcome.benchmark}-k{outcome.k}"
        seeds = cells["auc"].seeds
        log = {
            "schema_version": EVERY_EVAL_EVER,
            "evaluation_id": f"{collection}/{file_name(who)}/{model}/{about['date']}",
            "retrieved_timestamp": str(int(datetime.fromisoformat(f"{about['date']}T00:00Z").timestamp())),
            "source_metadata": {
                "source_name": "OpenCIL",
                "source_type": "evaluation_run",
                "source_organization_name": who,
                "evaluator_relationship": "first_party",
            },
            "model_info": {
                "name": f"{cil} with {detector}",
                "id": f"{file_name(who)}/{model}",
                "developer": who,
                "additional_details": {"deployment_type": "self_deployed", "model_availability": "unknown"},
            },
            "eval_library": {"name": "opencil", "version": __version__},
            "evaluation_results": [_describe_figure(outcome, name, cells[name], seeds) for name in FIGURES],
        }
        name = uuid.UUID(bytes=uuid.uuid5(uuid.NAMESPACE_URL, str(log["evaluation_id"])).bytes, version=4)
        place = f"every-eval-ever/data/{collection}/{file_name(who)}/{model}/{name}.json"
        yield place, json.dumps(log, indent=2) + "\n"


def _describe_figure(outcome: Outcome, name: str, cell: Cell, seeds: int) -> dict[str, Any]:
    metric, place = FIGURES[name]
    about = metric_of(metric)
    deviation = {} if cell.std is None else {"standard_deviation": cell.std, "num_samples": seeds}
    return {
        "evaluation_result_id": name,
        "evaluation_name": task_name(outcome, name),
        "source_data": {"dataset_name": outcome.benchmark, "source_type": "other"},
        "metric_config": {
            "evaluation_description": f"{about.sentence} {place} OOD sets".strip()
            if place
            else about.sentence,
            "metric_id": {"auc": "auroc"}.get(metric, metric),
            "metric_name": about.label,
            "metric_unit": "percent",
            "lower_is_better": about.lower_is_better,
            "score_type": "continuous",
            "min_score": 0,
            "max_score": 100,
        },
        "score_details": {"score": cell.value} | ({"uncertainty": deviation} if deviation else {}),
    }
