"""How pipelines are drawn: a bar for each action, the numbers of stage and micro-batch, and the time in which a device is idle."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from simulator.strategies.pipeline.schedule import AGAIN, BACKWARD, BY_INPUT, BY_WEIGHT, FORWARD, Action
from traces.documents.actions import LEAST_GAP, TRANSFER, is_pipeline, stretches
from traces.documents.timeline import Span

#: The groups of bars of gradients by the weights, where a backward is split, and of forwards that are repeated before it.
BY_WEIGHTS, REPEATED = "backward by weights", "forward again"
#: A lane whose transfers take less than this share of the step is left out, as where data stay in the memory that two devices share.
_LEAST_TRANSFERS = 0.01


class PipelineBars:
    """The bars of a pipeline's spans in the window [`begin_s`, `end_s`]. Lanes of other spans keep a bar for each span."""

    def __init__(self, spans: Sequence[Span], begin_s: float, end_s: float):
        """`spans`: all those that overlap the window, of which some are part of actions."""
        self._length_s = end_s - begin_s
        self.groups = list(stretches(self._visible(spans), LEAST_GAP * self._length_s))
        self._actions: dict[tuple[str, str], set[Action]] = {}  # by lane
        for group in self.groups:
            action = _computed(group[0])
            if action is not None:
                self._actions.setdefault((group[0].device, group[0].lane), set()).add(action)
        actions = {action for own in self._actions.values() for action in own}
        self._by_iteration = len({action.micro_batch for action in actions}) < 2

    def _visible(self, spans: Sequence[Span]) -> list[Span]:
        """The spans without those of lanes in which nothing takes time."""
        seconds: dict[tuple[str, str], float] = {}
        for span in spans:
            takes_s = span.end_s - span.start_s if span.phase == TRANSFER else self._length_s
            seconds[span.device, span.lane] = seconds.get((span.device, span.lane), 0.0) + takes_s
        return [span for span in spans if seconds[span.device, span.lane] >= _LEAST_TRANSFERS * self._length_s]

    def computes(self, device: str, lane: str) -> bool:
        """Whether a lane runs a pipeline's stages."""
        return (device, lane) in self._actions

    def lane_label(self, device: str, lane: str) -> str:
        """The label of a lane that runs stages: cpu:0 stages 0, 2. If forwards and backwards have own lanes, it says which."""
        actions = self._actions[device, lane]
        stages = sorted({action.stage for action in actions})
        halves = {action.kind == FORWARD for action in actions}
        which = "" if len(halves) > 1 else " forward" if True in halves else " backward"
        return f"{device} stage{'s' if len(stages) > 1 else ''} {', '.join(map(str, stages))}{which}"

    def group_of(self, span: Span) -> str:
        """The name that a span's bar has in the legend: its phase, the second half of a backward, or a repeated forward."""
        action = _computed(span)
        return span.phase if action is None else {BY_WEIGHT: BY_WEIGHTS, AGAIN: REPEATED}.get(action.kind, span.phase)

    def merged(self, group: Sequence[Span]) -> Span:
        """A span in the place of all of a group; its name says what they are."""
        first = group[0]
        if len(group) == 1:
            return first
        action = Action.read(first.action)
        name = f"{len(group)} {first.phase} tasks" if action is None else f"{first.action}: {_words(action)}, {len(group)} tasks"
        layers = list(dict.fromkeys(span.layer for span in group if span.layer))
        layer = f"{layers[0]} to {layers[-1]}" if len(layers) > 1 else "".join(layers)
        return replace(first, task=name, layer=layer, end_s=max(span.end_s for span in group))

    def labels(self, span: Span) -> tuple[str, ...]:
        """Texts for a span's bar, longest first: 1F3 for stage 1 and micro-batch 3, if the lane runs several stages; F3; 3.

        If there is one micro-batch in a step, the number is that of the iteration.
        """
        action = _computed(span)
        if action is None:
            return ()
        number = str(self._number(span, action))
        several = len({other.stage for other in self._actions[span.device, span.lane]}) > 1
        return (*([f"{action.stage}{action.kind}{number}"] if several else []), f"{action.kind}{number}", number)

    def shade(self, span: Span) -> int:
        """0 or 1: neighbors differ, which are the stages of a lane if it runs several, and else micro-batches."""
        action = _computed(span)
        if action is None:
            return 0
        stages = sorted({other.stage for other in self._actions[span.device, span.lane]})
        return (stages.index(action.stage) if len(stages) > 1 else self._number(span, action)) % 2

    def idle(self, begin_s: float, end_s: float) -> Iterator[tuple[str, str, float, float]]:
        """Yield (device, lane, start, end) of the time within a window in which a lane that runs stages is idle, in seconds."""
        reached = dict.fromkeys(self._actions, begin_s)
        for group in self.groups:
            place = group[0].device, group[0].lane
            if place in reached:
                yield from self._gap(place, reached[place], group[0].start_s)
                reached[place] = max(reached[place], *(span.end_s for span in group))
        for place, since_s in reached.items():
            yield from self._gap(place, since_s, end_s)

    def _gap(self, place: tuple[str, str], start_s: float, end_s: float) -> Iterator[tuple[str, str, float, float]]:
        if end_s - start_s > LEAST_GAP * self._length_s:
            yield *place, start_s, end_s

    def _number(self, span: Span, action: Action) -> int:
        return span.iteration if self._by_iteration else action.micro_batch


def pipeline_bars(spans: Sequence[Span], begin_s: float, end_s: float) -> PipelineBars | None:
    """How the spans of a window are drawn; None if they are no pipeline's."""
    return PipelineBars(spans, begin_s, end_s) if is_pipeline(spans) else None


def _computed(span: Span) -> Action | None:
    """The action that a span computes; None for a transfer and for a span that is part of no action."""
    return None if span.phase == TRANSFER else Action.read(span.action)


def _words(action: Action) -> str:
    kinds = {FORWARD: "forward", BACKWARD: "backward", BY_INPUT: "backward by input", BY_WEIGHT: BY_WEIGHTS, AGAIN: REPEATED}
    return f"stage {action.stage}, {kinds[action.kind]}"
