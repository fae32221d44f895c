"""The strips under the lanes: what each device's memory holds, as entries of the header and as arrays of ticks and bytes."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simulator.engine.memory.words import KIND_NAMES
from traces.documents.timeline import Timeline
from ui.present.figures import palette
from ui.present.figures.memory_panels import Panel, Row, peak_words, rows

#: More bytes than any memory has; a damaged file may say more.
_MOST_BYTES = 2**60


@dataclass
class Strips:
    """Collects the strips of all panels. `ticks` turns times in ms into ticks. `kinds`: numbers of what is drawn, by name."""

    ticks: Callable[[Iterable[float]], np.ndarray]
    kinds: dict[str, int] = field(default_factory=dict)
    times: list[np.ndarray] = field(default_factory=list)
    held: list[np.ndarray] = field(default_factory=list)

    def of(self, timelines: Sequence[Timeline]) -> list[list[dict[str, Any]]]:
        """The entries in the header, for each timeline one per device. Strips of one device have one scale."""
        by_device = rows(timelines)
        return [
            [self._strip(timeline, row, row.panels[number]) for row in by_device if row.panels[number] is not None]
            for number, timeline in enumerate(timelines)
        ]

    def colors(self) -> list[dict[str, str]]:
        """Name and color of every kind."""
        return [{"name": KIND_NAMES.get(kind, kind), "color": palette.KIND.get(kind, palette.OTHER)} for kind in self.kinds]

    def arrays(self) -> dict[str, np.ndarray]:
        """The instants of all strips in ticks, and the bytes that hold from each, kind after kind."""
        return {
            "memory_time": np.concatenate([np.empty(0, np.uint32), *self.times]),
            "memory_held": np.concatenate([np.empty(0, np.float64), *self.held]),
        }

    def _strip(self, timeline: Timeline, row: Row, panel: Panel) -> dict[str, Any]:
        times = np.maximum.accumulate(self.ticks(panel.times_ms))
        first, begin = sum(map(len, self.times)), sum(map(len, self.held))
        counts = [np.minimum(np.array(held, np.float64), _MOST_BYTES) for held in panel.held.values()]
        self.times.append(times)
        self.held += counts
        limit = timeline.limits_bytes.get(panel.device)
        return {
            "label": f"{panel.device} memory", "words": peak_words(timeline, panel, None if row.limit_bytes else limit),
            "times": [first, first + len(times)], "held": begin,
            "kinds": [self.kinds.setdefault(kind, len(self.kinds)) for kind in panel.held],
            "top_bytes": min(_MOST_BYTES, row.top * row.unit_bytes), "peak_bytes": min(_MOST_BYTES, panel.peak_bytes),
            "limit_bytes": min(_MOST_BYTES, row.limit_bytes),
        }  # fmt: skip
