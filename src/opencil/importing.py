"""How much is imported at once."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """A block that imports what stays to the end: garbage is not looked for in it, now or ever.

    To go through it again and again took a sixth of the time to import torch, and a tenth of a report's. In a
    process that has torch already, which is somebody else's, nothing of this is done.
    """
    if "torch" in sys.modules:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
