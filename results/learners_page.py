"""What the page says of the field's learners, beside the paper's four."""

from typing import Any

from results.measured import POSTHOC, accuracy, auc, record, survey, table

#: The field's learners, beside the four: names as their papers write them.
LEARNERS = {
    "der": "DER",
    "memo": "MEMO",
    "lucir": "LUCIR",
    "er-ace": "ER-ACE",
    "ss-il": "SS-IL",
    "podnet": "PODNet",
    "acil": "ACIL",
    "ranpac": "RanPAC",
    "lwf": "LwF",
    "fetril": "FeTrIL",
    "fecam": "FeCAM",
    "simplecil": "SimpleCIL",
    "ewc": "EWC",
}
#: What they were scored by: none of these needs a memory, which six of them do not keep.
LEARNERS_DETECTORS = ("msp", "maxlogit", "energy", "gen")


def learner_accuracy(cil: str, **where: Any) -> float:
    return accuracy(cil, folder="learners", **where)


def learners_table() -> str:
    """Accuracy beside the survey's, AUC of four detectors, MB of the last model and of its exemplars."""
    lines = []
    for cil, name in LEARNERS.items():
        ours, theirs = learner_accuracy(cil), survey(cil)
        beside = ["", ""] if theirs is None else [f"{theirs:.2f}", f"{ours - theirs:+.1f}"]
        aucs = [f"{auc(d, cil=cil, folder='learners'):.2f}" for d in LEARNERS_DETECTORS]
        size = record(cil, folder="learners")["bytes"][-1]
        megabytes = [f"{size[part] / 1e6:.1f}" for part in ("model", "memory")]
        lines.append(
            [name, f"{ours:.2f}", *beside, f"{learner_accuracy(cil, step=10):.2f}", *aucs, *megabytes]
        )
    head = ["", "accuracy", "survey", "", "last step", *(POSTHOC[d] for d in LEARNERS_DETECTORS)]
    return table([*head, "model, MB", "memory, MB"], lines)
