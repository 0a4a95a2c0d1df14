"""Values of CIL methods, which published results depend on."""

import hashlib
import json

from opencil.registry import LEARNERS
from opencil.validation import plain


def test_values_by_default_and_under_labels_are_those_of_published_results() -> None:
    """Defaults are written once, in the methods: who changes one changes this checksum and the results."""
    names = [name for name in LEARNERS.names() if LEARNERS.plugin_of(name) == ""]
    labels = [f"{name}@{label}" for name in names for label in LEARNERS.entry(name).named]
    values = {name: plain(LEARNERS.create(name)) for name in (*names, *labels)}
    text = json.dumps(values, sort_keys=True)
    assert (
        hashlib.sha256(text.encode()).hexdigest()
        == "1e95dd357e0a8da3c98b9ea8d766697fbe056d2e4e71f9e14f0e2221d676c959"
    )


def test_methods_that_keep_exemplars_see_old_images_and_have_linear_heads() -> None:
    made = [LEARNERS.create(name) for name in LEARNERS.names()]
    once = {"acil", "aper", "fecam", "fetril", "fsa", "fsa-film", "ranpac", "simplecil", "slca", "slda"}
    without = {
        flag: {learner.registered_name for learner in made if not getattr(learner, flag)}
        for flag in ("remembers", "revisits", "linear")
    }
    assert without["remembers"] == {*once, "ewc", "finetune", "joint", "lwf"}
    assert without["revisits"] == {*once, "ewc", "finetune", "lwf"}
    assert without["linear"] == {"acil", "aper", "fecam", "lucir", "podnet", "ranpac", "simplecil"}
