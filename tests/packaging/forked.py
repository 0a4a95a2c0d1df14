"""The installed ``opencil``, forked from a process that has imported it: a start takes no seconds.

python forked.py SOCKET                       # comes back when the server waits for words
python -IS forked.py SOCKET opencil run …     # does what ``opencil run …`` does, here
python -IS forked.py SOCKET python            # runs the lines that it reads
python -IS forked.py SOCKET end               # the server is gone
"""

import json
import os
import socket
import sys


def ask(path: str, words: list[str]) -> int:
    """Have a fork of the server do something with this process's streams; its exit code."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        socket.send_fds(server, [json.dumps([os.getcwd(), *words]).encode()], [0, 1, 2])  # noqa: PTH109
        return int(server.recv(16))


def serve(path: str) -> None:
    """Import what commands need, and go on in the background."""
    from multiprocessing import get_context

    import pyarrow.parquet  # noqa: F401
    import sklearn.datasets  # noqa: F401
    import torch._dynamo  # noqa: F401

    import opencil.cli.report
    import opencil.cli.run  # noqa: F401
    from opencil import registry

    for kind in registry.REGISTRIES:
        kind.names()  # methods are imported when names are asked for
    context = get_context("fork")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen()
    if os.fork():
        return
    # Whoever waits for the end of the session's output does not wait for the server.
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    listening.settimeout(600)  # one that is forgotten ends
    while True:
        asking, _ = listening.accept()
        message, streams, _, _ = socket.recv_fds(asking, 1 << 16, 3)
        folder, *words = json.loads(message)
        if words == ["end"]:
            asking.send(b"0")
            return
        child = context.Process(target=_work, args=(streams, folder, words))  # ends without freeing all
        child.start()
        for given in streams:
            os.close(given)
        child.join()
        asking.send(str(child.exitcode).encode())
        asking.close()


def _work(streams: list[int], folder: str, words: list[str]) -> None:
    for stream, given in enumerate(streams):
        os.dup2(given, stream)
    os.chdir(folder)
    sys.argv = words
    if words == ["python"]:
        exec(open(0).read(), {"__name__": "__main__"})  # noqa: SIM115
    else:
        import opencil.cli

        opencil.cli.main()


if __name__ == "__main__":
    sys.exit(ask(sys.argv[1], sys.argv[2:]) if sys.argv[2:] else serve(sys.argv[1]))
