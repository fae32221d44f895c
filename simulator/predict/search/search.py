"""The search: evaluates candidates in rounds, and skips the simulation of those whose lower bound shows that they cannot win.

A round is a fixed number of candidates in a fixed order: by the lower bounds of their times if these are known before planning (`least`).
The best plans of earlier rounds decide what a round skips. So the answer does not depend on which processes evaluate, or how fast.

Evaluations are cached on disk, keyed by a hash of everything that decides them. A damaged entry counts as missing.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from math import inf
from pathlib import Path
from uuid import uuid4

from pydantic import ValidationError

from simulator.model.job import GraphArguments
from simulator.predict.search.evaluation import Evaluation, decided, evaluate_packed, least_packed, unplanned
from simulator.predict.search.least import Least, Microbatch, microbatch_of
from simulator.predict.search.setup import Setup
from simulator.predict.search.variants import Tries, but_microbatches, split, usual_tries, variants
from simulator.predict.search.workers import Workers
from simulator.strategies import registry as strategies
from traces.cache import cache_folder, cached, store
from traces.errors import SchedcastError


class Cache:
    """The evaluations of one setup, one file each, so that evaluations before Ctrl-C are saved."""

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


#: Candidates of the first round, and of a round at most; each has twice as many as the one before. More of them keep more processes busy,
#: fewer of them prune earlier.
FIRST_ROUND, ROUND = 4, 16
#: A candidate is simulated unless its bound exceeds the shortest step so far of its strategy by this factor, of its strategy's family by
#: the second one, or of all strategies by the third one. Errors of predictions are correlated within a family, and most within a strategy;
#: a plan of another family may win although it is predicted slower.
NEAR, MARGIN, FAR = 1.05, 1.1, 2.0
#: The most candidates that cannot win but are simulated anyway, because they may need less memory than every other one.
SMALLEST = 2

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


def candidates(setup: Setup, requested: Sequence[str] = (), tries: Tries | None = None) -> list[str]:
    """What a search tries: by default, everything that the machine's strategies offer (`Strategy.texts`) for each variant of the job; for a
    language model on several devices, of those for such (`Strategy.for_language_models`).

    `tries`: the variants; by default the usual ones (see `variants`), for strategies that use several devices. Of variants that make one
    plan, since a pipeline has as many microbatches by default, the last counts.

    A strategy that is requested by its name alone means everything that it offers; with options, that one plan. The default plan
    of each strategy comes first, then the second candidate of each, and so on. A search plans candidates without known lower bounds in this
    order.
    """
    job, machine = setup.job, setup.target.machine
    usual = usual_tries(job, machine)
    known = strategies.names(len(machine.devices))
    names = requested or [name for name in known if not usual or strategies.get(name).for_language_models]
    offers = [[text] if ":" in strategies.written(text) else strategies.get(text).texts(job, machine) for text in names]
    texts = dict.fromkeys(text for text in chain.from_iterable(zip_longest(*offers)) if text is not None)
    usual = usual if tries is None else {}
    several = {text: tries or (usual if strategies.get(text.partition(":")[0]).least_devices > 1 else {}) for text in texts}
    every = ((number, candidate) for text, own in several.items() for number, candidate in variants(text, own))
    listed = [candidate for _, candidate in sorted(every, key=lambda numbered: numbered[0])]
    different = {_plan_of(candidate, setup): candidate for candidate in listed}
    kept = frozenset(different.values())
    return [candidate for candidate in listed if candidate in kept]


def _plan_of(candidate: str, setup: Setup) -> Hashable:
    """What is the same for candidates that make one plan."""
    text, values = split(candidate)
    if "accumulate" in values:
        strategy, options = strategies.parse(text, setup.shared)
        with suppress(SchedcastError):  # its plan is refused, which says why
            portion = strategy.portion(setup.of(candidate)[1].job, setup.target.machine, options)
            return candidate if portion is None else (*but_microbatches(candidate), portion)
    return candidate


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
    evaluated.learn(texts if prune else ())
    waiting = deque(evaluated.best_first(texts))
    size = FIRST_ROUND
    while waiting:
        limits: dict[str, float | None] = {}
        while waiting and len(limits) < size:
            text = waiting.popleft()
            most_s = _most_s(text, known.values()) if prune else None
            if most_s is None or not evaluated.decides(text, most_s):
                limits[text] = most_s
        evaluated.add(limits)
        size = min(ROUND, 2 * size)
    evaluated.add(dict.fromkeys(_smaller(known.values()), inf))
    return Search(setup, tuple(known[text] for text in texts))


class _Evaluated:
    """The evaluations so far, by candidate."""

    def __init__(self, setup: Setup, run: Workers, progress: Callable[[int, str], None], cache: Cache | None):
        """Arguments as in `search`."""
        self._setup, self._run, self._progress, self._cache = replace(setup, search=uuid4().hex), run, progress, cache
        self._graphs: dict[GraphArguments, None] = {}
        self._packed = b""  # the setup with these graphs
        self.known: dict[str, Evaluation] = {}
        self._least: dict[str, Least] = {}
        self._loaded: dict[str, Evaluation | None] = {}
        #: What is known of candidates that cannot fit with any number of microbatches from two on.
        self._too_large: dict[tuple[str, str], Least] = {}
        #: Candidates of one microbatch, in which no gradients of another one are allocated.
        self._undivided: set[str] = set()

    def learn(self, texts: Sequence[str]) -> None:
        """Compute the lower bounds of candidates that are known without plans.

        Candidates with equivalent microbatches are examined together, while the graph of larger microbatches is captured. Candidates that
        need too much memory with small microbatches are not examined with larger ones, which do not need less as long as there are two. The
        graph of the baseline comes last. Raises SchedcastError if it cannot be captured.
        """
        alike: dict[GraphArguments, dict[Microbatch, list[str]]] = {}
        for text in texts:
            stored = self._stored(text)
            if stored is not None:
                if stored.least is not None:
                    self._least[text] = stored.least
                continue
            known = microbatch_of(self._setup, text)
            if known is not None:
                microbatch, portion = known
                alike.setdefault(microbatch.graph, {}).setdefault(microbatch, []).append(text)
                if portion.microbatches == 1:
                    self._undivided.add(text)
        running: Iterator[tuple[list[str], list[Least | None]]] = iter(())
        for number, graph in enumerate(sorted(alike), 1):
            self._progress(0, f"microbatches of {graph[0]}, size {number} of {len(alike)}")
            waiting = [self._undecided(own) for own in alike[graph].values()]
            packed = self._captured(graph) if any(waiting) else None
            self._keep(running)
            waiting = [left for own in waiting if (left := self._undecided(own))]
            waiting = waiting if packed is not None else []
            running = zip(waiting, self._run([(least_packed, (packed, own)) for own in waiting]), strict=True)
        self._graphs[self._setup.first] = None
        self._pack()
        self._keep(running)

    def _stored(self, text: str) -> Evaluation | None:
        """The evaluation of a candidate that the cache had before this search."""
        if text not in self._loaded:
            self._loaded[text] = self._cache.load(text) if self._cache is not None else None
        return self._loaded[text]

    def _undecided(self, texts: Sequence[str]) -> list[str]:
        """The candidates that may fit, by what is known; the others have the result of the equivalent one with smaller microbatches."""
        left = []
        for text in texts:
            smaller = self._too_large.get(but_microbatches(text)) if text not in self._undivided else None
            if smaller is None:
                left.append(text)
            else:
                self._least[text] = smaller
        return left

    def _keep(self, learned: Iterable[tuple[list[str], list[Least | None]]]) -> None:
        for texts, several in learned:
            for text, least in zip(texts, several, strict=True):
                if least is not None:
                    self._least[text] = least
                    if decided(self._setup, text, inf, least) is not None:
                        self._too_large[but_microbatches(text)] = Least(0.0, least.held_bytes)

    def best_first(self, texts: Sequence[str]) -> list[str]:
        """The candidates. Those of which it is known what they take at least have their places among the others, in this order."""
        ordered = iter(sorted((text for text in texts if text in self._least), key=lambda text: self._least[text].step_s))
        return [next(ordered) if text in self._least else text for text in texts]

    def decides(self, text: str, most_s: float) -> bool:
        """Whether a candidate needs no plan, by what it takes and holds at least. If so, its evaluation is known."""
        least = self._least.get(text)
        evaluation = decided(self._setup, text, most_s, least) if least is not None else None
        if evaluation is None:
            return False
        if self._cache is not None and self._stored(text) is None:  # another search may have simulated it
            self._cache.store(evaluation)
        self._put(evaluation, [text])
        return True

    def add(self, limits: Mapping[str, float | None]) -> None:
        """Evaluate candidates, each with the bound in seconds above which it is not simulated."""
        waiting = list(limits)
        for text in list(waiting):
            stored = self._stored(text)
            cached = stored.pruned_at(limits[text]) if stored is not None else None
            if cached is not None:
                self._put(cached, waiting)
        while waiting:
            results = self._run([(evaluate_packed, (self._packed, text, limits[text], self._least.get(text))) for text in waiting])
            missing: dict[GraphArguments, list[str]] = {}
            for text, result in zip(list(waiting), results, strict=True):
                if isinstance(result, tuple):
                    missing.setdefault(result, []).append(text)
                    continue
                if self._cache is not None:
                    self._cache.store(result)
                self._put(result, waiting)
            if missing:
                self._add_graphs(missing, waiting)

    def _captured(self, graph: GraphArguments) -> bytes | None:
        """The setup with this graph alone; None if it cannot be captured."""
        try:
            packed = self._setup.captured([graph]).packed()
        except SchedcastError:
            return None
        self._graphs[graph] = None
        return packed

    def _pack(self) -> None:
        """Let those that evaluate have all graphs so far."""
        self._packed = self._setup.captured(self._graphs).packed()

    def _add_graphs(self, missing: Mapping[GraphArguments, Sequence[str]], waiting: list[str]) -> None:
        """Capture the graphs that candidates miss. A candidate whose graph cannot be captured is refused."""
        for wanted, texts in missing.items():
            try:
                self._setup.captured([wanted])
                self._graphs[wanted] = None
            except SchedcastError as error:
                for text in texts:
                    self.known[text] = unplanned(self._setup, text).refused(error)
                    waiting.remove(text)
        self._pack()

    def _put(self, evaluation: Evaluation, waiting: list[str]) -> None:
        self.known[evaluation.text] = evaluation
        waiting.remove(evaluation.text)
        self._progress(len(self.known), evaluation.text)


def _smaller(known: Iterable[Evaluation]) -> list[str]:
    """The candidates that were not simulated and may need the least memory, less than all that fit; at most `SMALLEST`."""
    known = list(known)
    held = min((max(need.needed_bytes for need in each.result.memories) for each in known if each.fits), default=0)
    pruned = [each for each in known if each.simulated is None and not each.refusal]
    needed = {each.text: each.planned_bytes or (each.least and each.least.held_bytes) or inf for each in pruned}
    smaller = sorted((each for each in pruned if needed[each.text] < held), key=lambda each: (needed[each.text], each.known_bound.step_s))
    return [each.text for each in smaller[:SMALLEST]]


def _most_s(text: str, known: Iterable[Evaluation]) -> float:
    """The bound in seconds above which a candidate is not simulated."""
    fitting = [each for each in known if each.fits and not each.at_limit]
    return min((margin(each.strategy, split(text)[0]) * each.result.step_s for each in fitting), default=inf)


def margin(strategy: str, other: str) -> float:
    """By what factor a plan of one strategy must be shorter so that one of the other (each with or without options) cannot win."""
    if strategies.get(strategy.partition(":")[0]) is strategies.get(other.partition(":")[0]):
        return NEAR
    return MARGIN if strategies.family(strategy) == strategies.family(other) else FAR
