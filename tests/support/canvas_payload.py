"""Reads what the timeline's script receives: the payload of `ui.present.timeline_canvas.payload`."""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.support.html_pages import data_of_page
from ui.present.timeline_canvas.page import ELEMENT


@dataclass(frozen=True)
class Payload:
    """A decoded payload."""

    header: dict[str, Any]
    arrays: dict[str, np.ndarray]

    def bars(self, panel: int = 0, row: int | None = None) -> list[dict[str, Any]]:
        """The bars of a panel's row (None: of all rows), as a page shows them: times in ms."""
        rows = self.header["panels"][panel]["rows"]
        return [
            self._bar(bar, each) for each in (rows if row is None else [rows[row]]) for bar in range(each["tracks"][0], each["tracks"][-1])
        ]

    def memory(self, panel: int = 0, strip: int = 0) -> tuple[list[float], dict[str, list[float]]]:
        """The instants of a strip in ms, and the bytes that each kind holds from each instant on."""
        entry = self.header["panels"][panel]["memory"][strip]
        begin, end = entry["times"]
        held = {}
        for number, kind in enumerate(entry["kinds"]):
            first = entry["held"] + number * (end - begin)
            held[self.header["memory_kinds"][kind]["name"]] = self.arrays["memory_held"][first : first + end - begin].tolist()
        return [float(tick * self.header["tick_ms"]) for tick in self.arrays["memory_time"][begin:end]], held

    def _bar(self, bar: int, row: dict[str, Any]) -> dict[str, Any]:
        names, tick_ms = self.header["names"], self.header["tick_ms"]
        cause = int(self.arrays["cause"][bar])
        return {
            "task": names[self.arrays["task"][bar]], "layer": names[self.arrays["layer"][bar]], "row": row["label"],
            "phase": self.header["phases"][self.arrays["phase"][bar]]["name"], "labels": self.header["labels"][self.arrays["label"][bar]],
            "group": self.header["groups"][self.arrays["group"][bar]]["name"], "cause": self.header["causes"][cause - 1] if cause else None,
            "start_ms": float(self.arrays["start"][bar] * tick_ms), "end_ms": float(self.arrays["end"][bar] * tick_ms),
            "microbatch": int(self.arrays["microbatch"][bar]), "iteration": int(self.arrays["iteration"][bar]),
            "shade": int(self.arrays["shade"][bar]), "clipped": self.header["clipped"].get(str(bar)),
        }  # fmt: skip


def decode(payload: bytes) -> Payload:
    """The header and the arrays of a payload."""
    assert payload[:4] == b"STL1"
    first = 8 + int.from_bytes(payload[4:8], "little")
    assert first % 8 == 0
    header = json.loads(payload[8:first])
    arrays = {
        name: np.frombuffer(payload, np.dtype(kind).newbyteorder("<"), length, first + place)
        for name, (kind, place, length) in header["arrays"].items()
    }
    return Payload(header, arrays)


def payloads_of_page(html: str) -> list[Payload]:
    """The timelines of an HTML page."""
    return [decode(data) for data in data_of_page(html, ELEMENT)]


def payloads_of_app(app: Any) -> list[Payload]:
    """The timelines on a page of the app that `AppTest` opened."""
    return [decode(element.proto.bytes) for element in app.main if is_timeline(element)]


def is_timeline(element: Any) -> bool:
    """Whether an element of such a page is a timeline."""
    return element.type == "bidi_component" and element.proto.component_name == "schedcast_timeline"
