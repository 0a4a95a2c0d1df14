"""Write the README of a folder of results, or of a model, with the header that the Hugging Face Hub reads."""

from pathlib import Path
from typing import Any

from opencil._version import __version__
from opencil.config import dump_yaml
from opencil.evaluation.metric import KEPT, metric_of
from opencil.files import checksum, size_in_words
from opencil.report.results import count
from opencil.report.tables import tables
from opencil.study.study import Study

_TAGS = ["out-of-distribution-detection", "continual-learning", "class-incremental-learning", "opencil"]


def dataset_header(title: str, rows: str = "**/rows.parquet") -> dict[str, Any]:
    """Return the header of a card for published rows; ``rows`` is where their files are."""
    return {
        "pretty_name": title,
        "license": "mit",
        "tags": _TAGS,
        "configs": [{"config_name": "rows", "data_files": [{"split": "test", "path": rows}]}],
    }


def dataset_card(study: Study, title: str) -> str:
    """Return the README of a folder of published rows: what they are, their tables, how to read them."""
    shown = "\n".join(table.markdown() for table in tables("main", study))
    names = sorted({*study.rows["metric"]} - {*KEPT})
    metrics = [f"- `{name}`: {metric_of(name).sentence}" for name in names]
    return f"""---
{dump_yaml(dataset_header(title))}---

# {title}

Out-of-distribution detection in class-incremental learning: {count(len(study.runs), "run")} of OpenCIL,
{len(study.rows):,} rows. A row is a metric of a detector, or of the model, at a step on a set of images.

```python
import opencil

rows = opencil.load_published("FOLDER")  # this folder, or the name of its repository on the Hub
```

{shown}
## Metrics

{chr(10).join(metrics)}
"""


def model_card(
    file: Path, title: str, *, about: str = "", dataset: str = "", base_model: str = "", license: str = "mit"
) -> str:
    """Return the README of a repository with one exported model.

    ``dataset`` and ``base_model`` are names on the Hub; ``about`` is Markdown on what the model learned.
    """
    header: dict[str, Any] = {"library_name": "opencil", "license": license, "tags": _TAGS}
    header |= {"pipeline_tag": "image-classification"}
    header |= {"datasets": [dataset]} if dataset else {}
    header |= {"base_model": base_model} if base_model else {}
    size, sha256 = size_in_words(file.stat().st_size), checksum(file.read_bytes())
    return f"""---
{dump_yaml(header)}---

# {title}

An image classifier that learned its classes in steps. Its score says whether an image is of one of them.
{about}

| file | size | SHA-256 |
|---|---|---|
| `{file.name}` | {size} | `{sha256}` |

Written by OpenCIL {__version__}. Results that were measured with it are in `.eval_results/`.
"""
