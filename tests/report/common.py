"""Naive averages, and the content of a page."""

import base64
import gzip
import json
import math
from typing import Any


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def deviation(values: list[float]) -> float:
    return math.sqrt(math.fsum((v - mean(values)) ** 2 for v in values) / (len(values) - 1))


def unpack(text: str) -> dict[str, Any]:
    """Return the data of a page."""
    data = text.split('id="data">')[1].split("</script")[0]
    content: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(data)))
    return content
