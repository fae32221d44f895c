"""What tests read from HTML pages that carry charts and timelines."""

import base64
import gzip
import json
import re
from typing import Any

from ui.present.page import ELEMENT, library
from ui.present.timeline_canvas import page as timelines_page

_DATA = re.compile(r'<script type="application/octet-stream">([A-Za-z0-9+/=]*)</script>')


def written_words(page: str) -> str:
    """A page without the scripts and the data of charts and timelines."""
    return _DATA.sub("", page.replace(timelines_page.head(), "").replace(library(), ""))


def data_of_page(page: str, element: str) -> list[bytes]:
    """What the elements of a page that begin with `element` carry."""
    return [gzip.decompress(base64.b64decode(data)) for data in re.findall(f"{re.escape(element)}[^>]*>{_DATA.pattern}", page)]


def figures_of_page(page: str) -> list[dict[str, Any]]:
    """The figures of a page's charts, as plotly takes them."""
    return [json.loads(data) for data in data_of_page(page, ELEMENT)]
