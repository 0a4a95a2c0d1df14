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
    import pyarrow.parquet  # noqa: F401
    import sklearn.datasets  # noqa: F401
    import torch._dynamo  # noqa: F401

    import opencil.cli
    import opencil.cli.report
    import opencil.cli.run

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
        child = os.fork()
        if not child:
            for stream, given in enumerate(streams):
                os.dup2(given, stream)
            os.chdir(folder)
            sys.argv = words
            exec(sys.stdin.read(), {"__name__": "__main__"}) if words == ["python"] else opencil.cli.main()
            return
        for given in streams:
            os.close(given)
        asking.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())
        asking.close()


if __name__ == "__main__":
    sys.exit(ask(sys.argv[1], sys.argv[2:]) if sys.argv[2:] else serve(sys.argv[1]))
