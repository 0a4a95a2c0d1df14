"""The content of a page."""

import base64
import gzip
import json
from typing import Any


def unpack(text: str) -> dict[str, Any]:
    """Return the data of a page."""
    data = text.split('id="data">')[1].split("</script")[0]
    content: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(data)))
    return content
