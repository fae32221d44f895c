"""The search: evaluates candidates in rounds, and leaves out the simulation of those whose lower bound shows that they cannot win.

A round is a fixed number of candidates in a fixed order, and the best plans of the rounds before decide what a round leaves out. So the
answer does not depend on who evaluates, nor on how fast.

Evaluations are cached on disk, keyed by a hash of everything that decides them. A damaged entry counts as missing.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from math import inf
from pathlib import Path
from uuid import uuid4

from pydantic import ValidationError

from simulator.machine.machine import Machine
from simulator.model.job import GraphArguments, Job
from simulator.predict.search.evaluation import Evaluation, evaluate_packed
from simulator.predict.search.setup import Setup
from simulator.predict.search.variants import Tries, split, usual_tries, variants
from simulator.predict.search.workers import Workers
from simulator.strategies import registry as strategies
from traces.cache import cache_folder, cached, store
from traces.errors import SchedcastError


class Cache:
    """The evaluations of one setup, a file each, so that what was evaluated before Ctrl-C is kept."""

    def __init__(self, setup_digest: str):
        """`setup_digest`: `Setup.digest`."""
        self._digest = setup_digest
        self._warned = False

    def _path(self, text: str) -> Path:
        return cache_folder("searches") / f"{hashlib.blake2b(f'{self._digest} {text}'.encode(), digest_size=16).hexdigest()}.json.gz"

    def load(self, text: str) -> Evaluation | None:
        """The evaluation of a candidate, or None."""
        document = cached(self._path(text), "evaluation")
        try:
            return Evaluation.model_validate(document) if document is not None else None
        except ValidationError:
            return None

    def store(self, evaluation: Evaluation) -> None:
        """Store an evaluation. If the cache cannot be written, log one warning: it is evaluated again next time."""
        complaint = "" if self._warned else "the search is not cached"
        self._warned |= not store(self._path(evaluation.text), evaluation.model_dump(mode="json"), complaint)


#: Candidates of a round. More of them keep more processes busy, fewer of them prune earlier.
ROUND = 16
#: A candidate is simulated unless its bound exceeds the shortest step so far of its strategy by this factor, of its strategy's family by
#: the second one, or of all strategies by the third one. Predictions of one family err alike, and those of one strategy most of all; one of
#: another family may win although it is predicted slower.
NEAR, MARGIN, FAR = 1.05, 1.1, 2.0
#: Candidates that cannot win and are simulated all the same, because they may need less memory than every other one: at most so many.
SMALLEST = 3

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Search:
    """The evaluations of all candidates, in the order of `candidates`."""

    setup: Setup
    evaluations: tuple[Evaluation, ...]

    @property
    def simulated(self) -> list[Evaluation]:
        """Those that were simulated, whether or not they fit in memory."""
        return [evaluation for evaluation in self.evaluations if evaluation.simulated is not None]


def candidates(job: Job, machine: Machine, requested: Sequence[str] = (), tries: Tries | None = None) -> list[str]:
    """What a search tries: by default, everything that the machine's strategies offer (`Strategy.texts`) for each variant of the job; for a
    language model on several devices, of those for such (`Strategy.for_language_models`).

    `tries`: the variants; by default the usual ones (see `variants`), for strategies that use several devices.

    A strategy that is requested by its name alone stands for everything that it offers; with options, for that one plan. The default plan
    of each strategy comes first, then the second candidate of each, and so on: so the first round has the best of most kinds.
    """
    usual = usual_tries(job, machine)
    known = strategies.names(len(machine.devices))
    names = requested or [name for name in known if not usual or strategies.get(name).for_language_models]
    offers = [[text] if ":" in text else strategies.get(text).texts(job, machine) for text in names]
    texts = dict.fromkeys(text for text in chain.from_iterable(zip_longest(*offers)) if text is not None)
    usual = usual if tries is None else {}
    several = {text: tries or (usual if strategies.get(text.partition(":")[0]).least_devices > 1 else {}) for text in texts}
    every = ((number, candidate) for text, own in several.items() for number, candidate in variants(text, own))
    return [candidate for _, candidate in sorted(every, key=lambda numbered: numbered[0])]


def search(
    setup: Setup,
    texts: Sequence[str],
    run: Workers,
    progress: Progress = lambda done, total, text: None,
    prune: bool = True,
    cache: Cache | None = None,
) -> Search:
    """Evaluate the candidates `texts` by `run`. Without `prune`, all are simulated.

    `progress(done, total, text)` is called after each. Raises SchedcastError if the job itself is unusable.
    """
    evaluated = _Evaluated(setup, run, lambda done, text: progress(done, len(texts), text), cache)
    known = evaluated.known
    for first in range(0, len(texts), ROUND):
        waiting = texts[first : first + ROUND]
        evaluated.add({text: _most_s(text, known.values()) if prune else None for text in waiting})
    for _ in range(SMALLEST):
        smaller = _smaller(known.values())
        if smaller is None:
            break
        evaluated.add({smaller: inf})
    return Search(setup, tuple(known[text] for text in texts))


class _Evaluated:
    """The evaluations so far, by candidate."""

    def __init__(self, setup: Setup, run: Workers, progress: Callable[[int, str], None], cache: Cache | None):
        """Arguments as in `search`."""
        self._setup, self._run, self._progress, self._cache = replace(setup, search=uuid4().hex), run, progress, cache
        self._graphs: dict[GraphArguments, None] = {setup.first: None}
        self._packed = self._setup.captured(self._graphs).packed()
        self.known: dict[str, Evaluation] = {}

    def add(self, limits: Mapping[str, float | None]) -> None:
        """Evaluate candidates, each with the bound in seconds above which it is not simulated."""
        waiting = list(limits)
        for text in list(waiting):
            stored = self._cache.load(text) if self._cache is not None else None
            cached = stored.pruned_at(limits[text]) if stored is not None else None
            if cached is not None:
                self._put(cached, waiting)
        while waiting:
            results = self._run([(evaluate_packed, (self._packed, text, limits[text])) for text in waiting])
            missing: dict[GraphArguments, list[str]] = {}
            for text, result in zip(list(waiting), results, strict=True):
                if isinstance(result, tuple):
                    missing.setdefault(result, []).append(text)
                    continue
                if self._cache is not None:
                    self._cache.store(result)
                self._put(result, waiting)
            if missing:
                self._packed = _with_graphs(self._setup, self._graphs, missing, self.known, waiting)

    def _put(self, evaluation: Evaluation, waiting: list[str]) -> None:
        self.known[evaluation.text] = evaluation
        waiting.remove(evaluation.text)
        self._progress(len(self.known), evaluation.text)


def _smaller(known: Iterable[Evaluation]) -> str | None:
    """The candidate that was not simulated and may need the least memory, less than all that fit; None if there is none."""
    known = list(known)
    held = min((max(need.needed_bytes for need in each.simulated.memories) for each in known if each.fits), default=0)
    others = (each for each in known if each.simulated is None and each.least_bytes is not None and each.least_bytes < held)
    smallest = min(others, key=lambda each: (each.least_bytes, each.bound_s), default=None)
    return smallest.text if smallest is not None else None


def _most_s(text: str, known: Iterable[Evaluation]) -> float:
    """The bound in seconds above which a candidate is not simulated."""
    fitting = [each for each in known if each.fits]
    return min((margin(each.strategy, split(text)[0]) * each.simulated.step_s for each in fitting), default=inf)


def margin(strategy: str, other: str) -> float:
    """By what factor a plan of one strategy must be shorter so that one of the other (each with or without options) cannot win."""
    if strategies.get(strategy.partition(":")[0]) is strategies.get(other.partition(":")[0]):
        return NEAR
    return MARGIN if strategies.family(strategy) == strategies.family(other) else FAR


def _with_graphs(
    setup: Setup,
    graphs: dict[GraphArguments, None],
    missing: dict[GraphArguments, list[str]],
    known: dict[str, Evaluation],
    waiting: list[str],
) -> bytes:
    """Capture the graphs that candidates miss, and add them to `graphs`. A candidate whose graph cannot be captured is refused."""
    for wanted, texts in missing.items():
        try:
            setup.captured([wanted])
            graphs[wanted] = None
        except SchedcastError as error:
            for text in texts:
                strategy, options = strategies.parse(split(text)[0], setup.shared)
                known[text] = Evaluation.refused(text, strategy.name, options, error)
                waiting.remove(text)
    return setup.captured(graphs).packed()
