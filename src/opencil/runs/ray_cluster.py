"""A Ray cluster: how it is connected to, and what room it has. Ray is an extra, and imported here alone."""

import importlib
import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from opencil.config import PlaceConfig
from opencil.errors import BadInput

#: Seconds that whoever listens at an address has to answer.
_PATIENCE = 10.0
#: An empty frame of HTTP/2's kind 4, by which both sides begin.
_SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def connected(place: PlaceConfig) -> Any:
    """The module ``ray``, connected: as this process already is, or to the cluster of ``place.address``.

    Without an address Ray takes the cluster of $RAY_ADDRESS, or this machine's; where there is none it makes
    this machine one, until the process ends.
    """
    with _signals_kept():
        try:
            ray = importlib.import_module("ray")
        except ImportError:
            raise BadInput(
                "place.launcher = 'ray' is not possible: the package ray is missing; pip install "
                "'opencil[ray]' brings it"
            ) from None
        if not ray.is_initialized():
            # What is started here must not tell anybody about it.
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            address = place.address or os.environ.get("RAY_ADDRESS", "")
            try:
                if named := re.fullmatch(r"(?:ray://)?([^/]+):(\d+)", address):
                    _knock(named[1].strip("[]"), int(named[2]))
                # What workers print they pass on themselves: Ray would have it among a command's results.
                ray.init(address=place.address or None, logging_level=logging.WARNING, log_to_driver=False)
            except (OSError, OverflowError, RuntimeError, ValueError) as error:
                raise BadInput(_unreachable(address, place, error)) from None
    return ray


def _knock(host: str, port: int) -> None:
    """Raise where nobody listens, or nobody who speaks gRPC as Ray does: Ray would try for minutes."""
    with socket.create_connection((host, port), timeout=_PATIENCE) as line:
        if os.environ.get("RAY_USE_TLS", "0") == "0":
            line.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _SETTINGS)
            if line.recv(len(_SETTINGS))[3:4] != _SETTINGS[3:4]:
                raise ConnectionError("what listens there is not Ray")


def _unreachable(address: str, place: PlaceConfig, error: Exception) -> str:
    reason = getattr(error, "strerror", None) or error
    if not address:
        return f"Ray cannot make a cluster of this machine: {reason}"
    names, without = ("place.address", "leave it out") if place.address else ("RAY_ADDRESS", "unset it")
    return (
        f"there is no Ray cluster to be reached at {address!r}, which {names} says ({reason}): "
        "'ray start --head' on that machine starts one, --address HOST:PORT names another; "
        f"{without} to use this machine"
    )


def ray_places(place: PlaceConfig) -> list[PlaceConfig]:
    """The place of each worker: one a GPU of the cluster or, where there is none, a CPU core; or ``jobs``."""
    has = connected(place).cluster_resources()
    gpus, cores = int(has.get("GPU", 0)), int(has.get("CPU", 0))
    on_cpu = place.device == "cpu" or (place.device == "auto" and not gpus)
    threads = (place.threads or 1) if on_cpu else place.threads
    room = cores // (threads or 1) if on_cpu else gpus
    count = place.jobs if isinstance(place.jobs, int) else room
    if not count:
        what = f"{threads} CPU cores" if on_cpu else "a GPU"
        raise BadInput(
            f"the Ray cluster has no room for a worker on {what}; where such nodes are to join, --jobs N "
            "says how many workers are to wait for them"
        )
    device = "cpu" if on_cpu else place.device.replace("auto", "gpu")
    return [replace(place, device=device, jobs=1, threads=threads)] * count


def workers_of_a_node(ray: Any, place: PlaceConfig) -> int:
    """How many workers at such a place may share a node, at most."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    share, of = (place.threads or 1, "CPU") if place.device == "cpu" else (1, "GPU")
    return max([1, *(int(node.get(of, 0)) // share for node in nodes)])


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray ends a process on SIGTERM: afterwards signals do what they did before, as checkpointing runs."""
    in_main = threading.current_thread() is threading.main_thread()
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in kept.items() if in_main else ():
            signal.signal(number, handler)
