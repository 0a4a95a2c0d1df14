"""Ray tasks: one for each run, on this machine or on a cluster. Ray is an extra, and imported here alone."""

import importlib
import logging
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from opencil.config import Config, PlaceConfig
from opencil.errors import BadInput, OpenCILError
from opencil.runs.events import Event, Failed
from opencil.runs.launch import do_runs
from opencil.runs.spec import RunSpec

#: Environment variables of this process that tasks get too: sums depend on the number of threads.
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENCIL_DATA", "OPENCIL_CACHE")
#: How often a task is tried again when its process or its node is lost.
_RETRIES = 2
#: Seconds: between two looks at tasks, for tasks to leave, and for a cluster's address to answer.
_LOOK, _PATIENCE, _ANSWER = 0.2, 60.0, 10.0


def find_places(place: PlaceConfig) -> list[PlaceConfig]:
    """Return a place for each run that the cluster has room for at a time, or ``jobs``."""
    resources = connect(place).cluster_resources()
    gpus, cores, threads = int(resources.get("GPU", 0)), int(resources.get("CPU", 0)), place.threads or 1
    if place.device == "cpu" or (place.device == "auto" and not gpus):
        one, room = replace(place, device="cpu", jobs=1, threads=threads), cores // threads
    else:
        one = replace(place, device=place.device.replace("auto", "gpu"), jobs=1)
        room = gpus * place.pack
    if not (count := place.jobs if isinstance(place.jobs, int) else room):
        raise BadInput(f"Ray has no room for a run on {one.device}: --jobs N runs wait for nodes that join")
    return [one] * count


def launch(
    config: Config, specs: Sequence[RunSpec], places: Sequence[PlaceConfig], plugins: list[str]
) -> Generator[Event]:
    """Submit a task for each run, and yield the events of all of them.

    Ray starts a lost task again, and its run is resumed from where it is stored. Closing the generator stops
    all tasks, each with a checkpoint.
    """
    ray, place = connect(config.place), places[0]
    queue = importlib.import_module("ray.util.queue").Queue()
    on_cpu = place.device == "cpu"
    needs = {"num_cpus": place.threads} if on_cpu else {"num_cpus": 0, "num_gpus": 1 / place.pack}
    variables = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    task = ray.remote(max_retries=_RETRIES, runtime_env={"env_vars": variables}, **needs)(_do_run)
    config, folder = replace(config, place=replace(place, pack=1)), str(Path.cwd())
    waiting, under_way = list(specs), dict[Any, RunSpec]()
    try:
        while waiting or under_way:
            while waiting and len(under_way) < len(places):
                spec = waiting.pop(0)
                under_way[task.remote(config, spec, plugins, sys.argv, folder, queue)] = spec
            done, _ = ray.wait(list(under_way), timeout=_LOOK)
            while not queue.empty():
                event = queue.get()
                if isinstance(event, OpenCILError):  # the data cannot be loaded: other runs would fail too
                    raise event
                yield event
            for ref in done:
                spec = under_way.pop(ref)
                try:
                    ray.get(ref)
                except ray.exceptions.RayError as error:
                    why = str(error).strip().splitlines()[-1]
                    yield Failed(spec, OpenCILError(f"its task on the Ray cluster is lost: {why}"))
    finally:
        for ref in under_way:
            ray.cancel(ref)
        if under_way:
            ray.wait(list(under_way), num_returns=len(under_way), timeout=_PATIENCE)
        queue.shutdown()


def _do_run(
    config: Config, spec: RunSpec, plugins: list[str], argv: list[str], folder: str, queue: Any
) -> None:
    """Do one run in a task; Ray's cancelling raises KeyboardInterrupt here."""
    sys.argv = argv
    if (runs := Path(folder, config.place.runs)).is_dir():
        os.chdir(folder)
        do_runs(config, [spec], plugins, queue.put)
    else:
        where = f"{runs} on {socket.gethostname()}"
        queue.put(BadInput(f"there is no folder {where}: all nodes need the folder of runs at the same path"))


def connect(place: PlaceConfig) -> Any:
    """Return the module ``ray``, connected to a cluster.

    Without ``place.address`` Ray takes the cluster of $RAY_ADDRESS, or this machine's; where there is none it
    makes this machine a cluster until the process ends.
    """
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    address = place.address or os.environ.get("RAY_ADDRESS", "")
    try:
        ray = importlib.import_module("ray")
        if not ray.is_initialized():
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            # Ray itself would try for minutes.
            if named := re.fullmatch(r"(?:ray://)?([^/]+):(\d+)", address):
                socket.create_connection((named[1].strip("[]"), int(named[2])), timeout=_ANSWER).close()
            ray.init(address=place.address or None, logging_level=logging.WARNING)
    except ImportError:
        raise BadInput("launcher = ray needs the package ray: pip install 'opencil[ray]' brings it") from None
    except Exception as error:  # Ray raises plain exceptions too
        place_of = f"{address or 'this machine'} ({error})"
        raise BadInput(
            f"there is no Ray cluster at {place_of}: 'ray start --head' there starts one"
        ) from None
    finally:  # Ray's own handlers end a process on SIGTERM, without checkpoints
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)
    return ray
