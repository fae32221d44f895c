"""A timeline of many short spans, for what must stay fluid with them."""

import random

from traces.documents.timeline import Span, Timeline


def many_spans(count: int = 50_000, devices: int = 4) -> Timeline:
    """One step with `count` spans on two lanes of every device: compute and transfers, some with gaps between them."""
    random_number = random.Random(1)
    lanes = 2 * devices
    spans: list[Span] = []
    for lane in range(lanes):
        reached_s = 0.0
        for number in range(count // lanes):
            length_s = random_number.uniform(2e-6, 3e-5)
            half = "forward" if number < 0.4 * count / lanes else "backward"
            layer = f"layer{number // 900}.{number % 900 // 100}.conv{number % 100 // 30}"
            phase = "transfer" if lane % 2 else half
            place = (f"gpu{lane // 2}", f"stream {lane % 2}")
            spans.append(Span(f"{half} {layer} {number}", *place, reached_s, reached_s + length_s, phase, layer))
            reached_s += length_s + random_number.choice((0.0, 0.0, 1e-6, 1e-5))
    end_s = max(span.end_s for span in spans)
    return Timeline("predicted", tuple(spans), end_s, (0.0, end_s))
