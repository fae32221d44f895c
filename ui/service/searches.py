"""A search of a request: the plans that it tries, and their ranking by cached evaluations in several processes."""

from collections.abc import Sequence
from dataclasses import replace

from simulator.predict.search.ranking import Ranking, rank
from simulator.predict.search.search import Cache, Progress, candidates, search
from simulator.predict.search.setup import Setup
from simulator.predict.search.variants import read_tries
from simulator.predict.search.workers import usual_processes, workers
from simulator.strategies import registry as strategies
from traces.documents.whole_training import WholeTraining
from ui.request import JobRequest


def tried(request: JobRequest, setup: Setup) -> list[str]:
    """The plans that a search of a request tries. Raises SchedcastError for strategies that no executor runs, and for unknown options."""
    strategies.check_shared(request.strategies or strategies.names(), setup.shared)
    for text in request.strategies:
        strategies.require_executed(strategies.parse(text, setup.shared)[0])
    return candidates(setup, request.strategies, read_tries(request.tries) if request.tries else None)


def ranking_of(
    request: JobRequest, setup: Setup, names: Sequence[str], progress: Progress, processes: int | None = None, cluster: str | None = None
) -> Ranking:
    """Search among `names` with the cache, in several processes or on a Dask cluster, and rank the plans."""
    request.check_budget(setup.job)
    with workers(processes or usual_processes(len(names)), cluster) as run:
        ranking = rank(search(setup, names, run, progress, cache=Cache(setup.digest)))
    result, best = ranking.result, ranking.result.winner
    training = WholeTraining.at(best, result.tokens, result.devices, request.budget) if best is not None and result.tokens else None
    tried_anyway = ("strategy", "checkpoint")  # a search has several of them
    usual = {name: value for name, value in request.unstated.items() if value is not None and name not in tried_anyway}
    return replace(ranking, result=result.model_copy(update={"training": training, "usual": usual}))
