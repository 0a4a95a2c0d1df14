"""The content of a page."""

import base64
import gzip
import json
from typing import Any


def unpack(text: str) -> dict[str, Any]:
    """Return the data of a page, with its averages, configs and drawings."""
    data, packed = (text.split(f'id="{name}">')[1].split("</script")[0] for name in ("data", "packed"))
    content: dict[str, Any] = json.loads(data)
    return content | {"packed": json.loads(gzip.decompress(base64.b64decode(packed)))}
