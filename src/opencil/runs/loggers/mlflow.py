"""Log to MLflow: to $MLFLOW_TRACKING_URI, by default into the folder ``mlruns``."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opencil.config import PlaceConfig
from opencil.runs.loggers import Log, identify, missing_package
from opencil.runs.spec import RunSpec
from opencil.validation import flat

_TAG = "opencil.run"


@dataclass
class MLflowLog:
    """A run of MLflow."""

    client: Any
    id: str

    def write(self, values: dict[str, float], axis: str, at: int) -> None:
        """Write values under names that MLflow allows."""
        for name, value in values.items():
            self.client.log_metric(self.id, re.sub(r"[^\w./ -]", "-", name), value, step=at)

    def close(self, failed: bool) -> None:
        """End the run."""
        self.client.set_terminated(self.id, "FAILED" if failed else "FINISHED")


def connect(place: PlaceConfig) -> Callable[[RunSpec], Log]:
    """Return a function that opens the log of a run."""
    try:
        import mlflow
    except ImportError:
        raise missing_package("mlflow") from None
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # without a server or a database
    uri = None if mlflow.is_tracking_uri_set() else Path("mlruns").absolute().as_uri()
    client, name = mlflow.MlflowClient(uri), os.environ.get("MLFLOW_EXPERIMENT_NAME", "opencil")

    def open_log(spec: RunSpec) -> Log:
        found = client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else client.create_experiment(name)
        own = identify(place, spec)
        for run in client.search_runs([experiment], f"tags.`{_TAG}` = '{own}'", max_results=1):
            client.update_run(run.info.run_id, status="RUNNING")
            return MLflowLog(client, run.info.run_id)
        made = client.create_run(experiment, run_name=str(spec), tags={_TAG: own}).info.run_id
        for key, value in flat(spec.record()).items():
            client.log_param(made, re.sub(r"[^\w./ -]", "-", key), str(value)[:500])
        return MLflowLog(client, made)

    return open_log
