"""Workers on a Ray cluster: each is a process beside an actor, which holds its GPU and passes bytes on.

Never one Ray task a run: a worker packs runs as one machine does. A worker's end, be it the process's, the
actor's or the node's, is one to the crew; who comes in its place waits until there is room, on this node or
another, or on one that joins.
"""

import logging
import os
import pickle
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import Any

from opencil.config import Config, PlaceConfig
from opencil.runs import pipes
from opencil.runs.crew import Hire, Inbox
from opencil.runs.local_workers import ProcessWorker
from opencil.runs.ray_cluster import connected, workers_of_a_node
from opencil.runs.starting import PROGRAM

_log = logging.getLogger("opencil.runs")
#: Seconds after which it is said that a worker waits for room.
_LONG = 20.0
#: What Ray sets for its processes, and ours have from the one that starts them: sums depend on it.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def hire(config: Config, plugins: list[str]) -> Hire:
    """A function that starts a worker for a config's runs at a place."""
    ray = connected(config.place)
    # By value: by its name the actor's process would import this package, and torch, to pass bytes on.
    ray.cloudpickle.register_pickle_by_value(pipes)
    threads = dict.fromkeys(("in", "out", "err"), 1)  # what is sent arrives while somebody reads
    actor = ray.remote(concurrency_groups=threads, scheduling_strategy="SPREAD")(pipes.PipedProcess)

    def start(place: PlaceConfig, inbox: Inbox) -> ProcessWorker:
        process, sharing = RayProcess(ray, actor, place), workers_of_a_node(ray, place)
        return ProcessWorker(replace(config, place=place), plugins, inbox, process, sharing)

    return start


class RayProcess:
    """A ``PipedProcess`` on some node of the cluster, by way of its actor; what is sent too early waits."""

    def __init__(self, ray: Any, actor: Any, place: PlaceConfig) -> None:
        self._ray, self._device = ray, place.device
        self.name, self.machine, self.number = f"{place.device} of Ray", "", 0
        on_cpu = place.device == "cpu"
        self._needs = {"num_cpus": place.threads or 1} if on_cpu else {"num_cpus": 0, "num_gpus": 1}
        ours = {name: os.environ.get(name) for name in _THREADS}
        ours |= {name: value for name, value in os.environ.items() if name.startswith("OPENCIL_")}
        self._actor = actor.options(**self._needs).remote(PROGRAM, self.name, str(Path.cwd()), ours, True)
        self._placed = threading.Event()
        threading.Thread(target=self._pass_errors_on, daemon=True).start()
        self.write(pickle.dumps(sys.path))

    def write(self, data: bytes) -> None:
        """Send it something."""
        self._call("in", "write", data)

    def read(self, most: int) -> bytes:
        """Wait for what it says next."""
        if not self._placed.is_set():
            self._find_room()
        said: bytes = self._ray.get(self._call("out", "read", most))
        return said

    def close(self) -> None:
        """Close what it listens to; one that is nowhere yet need not come."""
        if self._placed.is_set():
            self._call("in", "close")
        else:
            self.kill()

    def ended(self) -> str:
        """Wait for its end, and free what the actor holds."""
        try:
            return str(self._ray.get(self._call("out", "ended")))
        except Exception as error:  # of Ray: with the actor, or with its node
            return f"is gone: {shorten(str(error).strip().splitlines()[-1], 160, placeholder=' …')}"
        finally:
            self.kill()

    def kill(self) -> None:
        """End the actor, and with it the process."""
        with suppress(Exception):  # it may be gone
            self._ray.kill(self._actor)

    def _call(self, way: str, method: str, *values: Any) -> Any:
        """Have the actor do something; what goes one way keeps its order."""
        return getattr(self._actor, method).options(concurrency_group=way).remote(*values)

    def _pass_errors_on(self) -> None:
        """Print what the process prints to standard error, as one of this machine does by itself."""
        with suppress(Exception):  # its end, and the actor's
            while text := self._ray.get(self._call("err", "read_errors", 2**16)):
                print(text.decode(errors="replace"), end="", file=sys.stderr, flush=True)

    def _find_room(self) -> None:
        where = self._call("out", "where")
        if not self._ray.wait([where], timeout=_LONG)[0]:
            what = "a GPU" if "num_gpus" in self._needs else f"CPU cores: {self._needs['num_cpus']}"
            _log.warning("a worker waits for room on the Ray cluster; it needs %s", what)
        self.machine, self.number = self._ray.get(where)
        self.name = f"{self._device} of {self.machine}"
        self._placed.set()
