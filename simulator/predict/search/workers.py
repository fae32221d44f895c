"""Who evaluates candidates: this process, several processes, or an existing Dask cluster. Their answers are the same to the bit."""

import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from simulator.predict.search.setup import code_digest
from traces.errors import SchedcastError
from traces.process import IMPORT_ROOT, end_with

#: Seconds to wait for a cluster, and for its first worker.
_PATIENCE_S = 10
#: Candidates for which starting another process is worth while.
_EACH = 8
#: Keeps quiet about semaphores that the process which cleans up after the others removes when Ctrl-C has ended them.
_AFTER_CTRL_C = "ignore:resource_tracker:UserWarning"
#: What a cluster needs that is not installed by default.
EXTRA = "pip install 'schedcast[cluster]'"

Call = tuple[Callable[..., Any], tuple[Any, ...]]


class Workers(Protocol):
    """Runs calls, and yields their results in order."""

    def __call__(self, calls: Sequence[Call]) -> Iterator[Any]: ...


def usual_processes(candidates: int) -> int:
    """Return the number of processes for this many candidates: one per core, or 1 if there are few, because starting one takes a second.

    1 without joblib, which starts processes.
    """
    try:
        import joblib
    except ModuleNotFoundError:
        return 1

    return min(joblib.cpu_count(), max(1, candidates // _EACH))


@contextmanager
def workers(processes: int, cluster: str | None = None) -> Iterator[Workers]:
    """Yield who runs calls: `processes` processes of this machine (1: this one), or the Dask cluster with its scheduler at `cluster`.

    Processes end with the block, also after Ctrl-C, and with this process, even if it is killed. Raises SchedcastError if the cluster
    cannot be used.
    """
    if cluster is not None:
        with _cluster(cluster) as run:
            yield run
    elif processes > 1:
        with _processes(processes) as run:
            yield run
    else:
        yield lambda calls: (function(*arguments) for function, arguments in calls)


@contextmanager
def _processes(count: int) -> Iterator[Workers]:
    from joblib import Parallel, delayed

    sys.path.insert(0, str(IMPORT_ROOT))  # new processes start with this path, so that no user's module is taken for one of ours
    executor, before = None, os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, [before, _AFTER_CTRL_C]))  # of the processes that are started
    try:
        options = {"batch_size": 1, "return_as": "generator", "initializer": end_with, "initargs": (os.getpid(),)}
        with _quiet(), Parallel(n_jobs=count, backend="loky", **options) as parallel:
            executor = getattr(parallel._backend, "_workers", None)  # joblib keeps it for later, and has no public name for it
            yield lambda calls: parallel(delayed(function)(*arguments) for function, arguments in calls)
    finally:
        sys.path.remove(str(IMPORT_ROOT))
        del os.environ["PYTHONWARNINGS"]
        if before is not None:
            os.environ["PYTHONWARNINGS"] = before
        if executor is not None:
            executor.terminate(kill_workers=True)


@contextmanager
def _cluster(address: str) -> Iterator[Workers]:
    try:
        from distributed import Client
    except ModuleNotFoundError as error:
        raise SchedcastError(f"--cluster {address} needs Dask, which is not installed; {EXTRA}") from error
    from joblib import Parallel, delayed, parallel_config

    with _quiet():
        try:
            client = Client(address, timeout=_PATIENCE_S, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:
            raise SchedcastError(
                f"--cluster {address}: no Dask scheduler answers there ({_short(error)}); give its address, as in tcp://127.0.0.1:8786"
            ) from error
        try:
            _check_workers(client, address)
            with parallel_config(backend="dask", client=client, wait_for_workers_timeout=_PATIENCE_S), Parallel(batch_size=1) as parallel:
                yield lambda calls: iter(parallel(delayed(function)(*arguments) for function, arguments in calls))
        finally:
            client.close()


def _check_workers(client: Any, address: str) -> None:
    """Raise SchedcastError if the cluster has no worker, or one that has another version of Schedcast or none."""
    if not client.ncores():
        raise SchedcastError(f"--cluster {address}: the scheduler has no workers; start some with: dask worker {address}")
    try:
        digests = client.run(code_digest)
    except Exception as error:  # whatever a worker raises that cannot load our packages
        raise SchedcastError(
            f"--cluster {address}: a worker cannot load Schedcast ({_short(error)}); install this version there"
        ) from error
    for worker, digest in digests.items():
        if digest != code_digest():
            raise SchedcastError(f"--cluster {address}: worker {worker} has another version of Schedcast; install this one there")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the libraries' warnings about versions, retries and cancelled calls: what matters to a user is said in one line."""
    loggers = [logging.getLogger(name) for name in ("distributed", "tornado")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
