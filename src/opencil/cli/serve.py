"""``opencil export`` and ``opencil serve``: classifiers in files, elsewhere and over HTTP."""

import socket
from contextlib import suppress
from pathlib import Path

from opencil.cli.flags import PLUGIN, Plugins, argument, option, switch
from opencil.cli.guard import importing
from opencil.cli.screen import print_line, print_note
from opencil.errors import BadInput

_FILE = argument("FILE", "File of the classifier, as birds.opencil.")


def export(
    model: Path = _FILE,
    out: Path = argument("OUT", "File to write: NAME.onnx, or NAME.pt2 for torch.export."),
    _plugin: Plugins = PLUGIN,
) -> None:
    """Write a classifier as one graph, from images to labels, with its classes in NAME.metadata.json.

    The graph is compared with torch before it is written.
    """
    with importing():
        from opencil.files import size_in_words
        from opencil.openworld.classifier import OpenWorldClassifier
        from opencil.openworld.export import export as write
    done = write(OpenWorldClassifier.load(model), out)
    print_line(f"{out}: {size_in_words(out.stat().st_size)}, {len(done.metadata['classes'])} classes", "good")
    print_line(f"scores differ by at most {done.difference:.1g} from torch's, on {done.images} images")


def serve(
    model: Path = _FILE,
    host: str = option("NAME", "Address to listen at; 0.0.0.0 lets other machines in.", "127.0.0.1"),
    port: int = option("NUMBER", "Port to listen at; 0 chooses a free one.", 8000, min=0, max=65535),
    save: bool = switch("--save", "Write to FILE what is taught."),
    device: str = option("NAME", "cpu, cuda …", "cpu"),
    _plugin: Plugins = PLUGIN,
) -> None:
    """Serve a classifier: a page for people, POST /predict and /learn, GET /metrics. Ctrl-C stops it."""
    with importing():
        from opencil.openworld.classifier import OpenWorldClassifier
        from opencil.openworld.serve import LOCAL, MOST_CONNECTIONS, Service, create_app
    classifier = OpenWorldClassifier.load(model, device=device)
    app = create_app(Service(classifier, model if save else None), LOCAL if host in LOCAL else ["*"])
    import uvicorn

    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise BadInput(
            f"cannot listen at {host}, port {port}: {error.strerror}; choose another --port"
        ) from None
    if host not in LOCAL:
        print_note(f"anyone who reaches {host} can see the classes, and teach others: there are no passwords")
    name = f"[{host}]" if ":" in host else host
    print_line(f"http://{name}:{listener.getsockname()[1]}  (Ctrl-C stops)", "good")
    with suppress(KeyboardInterrupt), listener:
        config = uvicorn.Config(app, log_level="warning", limit_concurrency=MOST_CONNECTIONS)
        uvicorn.Server(config).run(sockets=[listener])
