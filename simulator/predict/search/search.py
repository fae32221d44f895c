"""The search: evaluates candidates in rounds, and leaves out the simulation of those whose lower bound shows that they cannot win.

A round is a fixed number of candidates in a fixed order, and the best plans of the rounds before decide what a round leaves out. So the
answer does not depend on who evaluates, nor on how fast.

Evaluations are cached on disk, keyed by a hash of everything that decides them. A damaged entry counts as missing.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from math import inf
from pathlib import Path

from pydantic import ValidationError

from simulator.machine.machine import Machine
from simulator.model.job import GraphArguments, Job
from simulator.predict.search.evaluation import Evaluation, evaluate_packed
from simulator.predict.search.setup import Setup
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
#: A candidate is simulated unless its bound exceeds the shortest step so far of its strategy's family by this factor, or that of all
#: strategies by the second one. Predictions of one family err alike; one of another family may win although it is predicted slower.
MARGIN, FAR = 1.1, 2.0

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


def candidates(job: Job, machine: Machine, requested: Sequence[str] = ()) -> list[str]:
    """`NAME[:option=value,...]` of what a search tries: by default, everything that the machine's strategies offer (`Strategy.texts`).

    A strategy that is requested by its name alone stands for everything that it offers; with options, for that one plan. The default plan
    of each strategy comes first, then the second candidate of each, and so on: so the first round has the best of most kinds.
    """
    names = requested or strategies.names(len(machine.devices))
    offers = [[text] if ":" in text else strategies.get(text).texts(job, machine) for text in names]
    return list(dict.fromkeys(text for text in chain.from_iterable(zip_longest(*offers)) if text is not None))


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
    graphs = {setup.first: None}
    packed = setup.captured(graphs).packed()
    known: dict[str, Evaluation] = {}
    for first in range(0, len(texts), ROUND):
        waiting = list(texts[first : first + ROUND])
        limits = {text: _most_s(text, known.values()) if prune else inf for text in waiting}
        for text in list(waiting):
            stored = cache.load(text) if cache is not None else None
            cached = stored.pruned_at(limits[text]) if stored is not None else None
            if cached is not None:
                known[text] = cached
                waiting.remove(text)
                progress(len(known), len(texts), text)
        while waiting:
            results = run([(evaluate_packed, (packed, text, limits[text])) for text in waiting])
            missing: dict[GraphArguments, list[str]] = {}
            for text, result in zip(list(waiting), results, strict=True):
                if isinstance(result, tuple):
                    missing.setdefault(result, []).append(text)
                    continue
                known[text] = result
                waiting.remove(text)
                if cache is not None:
                    cache.store(result)
                progress(len(known), len(texts), text)
            if missing:
                packed = _with_graphs(setup, graphs, missing, known, waiting)
    return Search(setup, tuple(known[text] for text in texts))


def _most_s(text: str, known: Iterable[Evaluation]) -> float:
    """The bound in seconds above which a candidate is not simulated."""
    fitting = [each for each in known if each.fits]
    own = (each.simulated.step_s for each in fitting if strategies.family(each.strategy) == strategies.family(text))
    every = (each.simulated.step_s for each in fitting)
    return min(MARGIN * min(own, default=inf), FAR * min(every, default=inf))


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
                strategy, options = strategies.parse(text, setup.shared)
                known[text] = Evaluation.refused(text, strategy.name, options, error)
                waiting.remove(text)
    return setup.captured(graphs).packed()
