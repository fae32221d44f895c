"""Measures a paper's jobs on this machine, each validated like any other job, and what the paper measures in addition to jobs."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType

from calibrate import bppsa_tables, fusion_tables, pipeline_tables
from calibrate.placement import Placement
from calibrate.profiles import gpu_here, open_profile, warn_if_foreign
from calibrate.testbed import Progress, Testbed
from calibrate.testbeds import testbed_for
from calibrate.validation import validate
from simulator.papers.registry import Source
from traces.documents.profile import Profile
from traces.documents.reproduction import MEASURED, Paper, Table
from traces.documents.verdict import is_busy
from traces.errors import SchedcastError
from traces.files import check_writable

#: Tables that are measured in addition to jobs, by paper.
_TABLES: MappingProxyType[str, Callable[[Testbed, Profile, Progress], tuple[Table, ...]]] = MappingProxyType(
    {
        "bppsa": bppsa_tables.tables,
        "fusion": fusion_tables.tables,
        "pipeline": lambda testbed, profile, progress: pipeline_tables.tables(progress),
    }
)
#: Opens a progress bar with a title; yields the function that reports progress.
Bar = Callable[[str], AbstractContextManager[Progress]]
#: Is called before each measurement, with its testbed: looks whether other processes leave the machine alone.
Look = Callable[[Testbed], None]


def measure_paper(source: Source, paper: Paper, bar: Bar, look: Look) -> tuple[Paper, bool]:
    """Validate each of the paper's measurements on this machine.

    Returns the paper with the validations, and whether all strategies computed what plain PyTorch computes. Raises SchedcastError if the
    paper has no measurement for this machine.
    """
    gpu = gpu_here() is not None
    chosen = source.measurements(gpu)
    if not chosen:
        raise SchedcastError(f"it has nothing to measure on this machine, {'a GPU' if gpu else 'which has no GPU that PyTorch can use'}")
    outcomes, tables = [], paper.tables
    for measurement in chosen:
        testbed, profile, path = _opened(measurement.job.precision, "cuda" if gpu else "cpu", look)
        with bar(f"measuring {measurement.job.label}") as progress:
            outcomes.append(
                validate(measurement.job, measurement.strategies, {}, profile, testbed, save_to=path, progress=progress, timelines=False)
            )
    if source.name in _TABLES:
        with bar(f"measuring what else {source.name} compares") as progress:
            tables += _TABLES[source.name](testbed, profile, progress)
    documents = tuple(outcome.validation.document() for outcome in outcomes)
    notes = [
        f"{MEASURED}: {measurement.job.label}, {measurement.about}.{_disturbed(outcome.validation.busy_share)}"
        for measurement, outcome in zip(chosen, outcomes, strict=True)
    ]
    shown = paper.model_copy(update={"tables": tables, "measured": documents, "notes": (*paper.notes, *notes)})
    return source.judged(shown), all(outcome.same_numbers for outcome in outcomes)


def _disturbed(busy_share: float | None) -> str:
    """A sentence about other processes, if they took so much that times mean little."""
    if not is_busy(busy_share):
        return ""
    return f" Other processes took {busy_share:.0%} of the cores: numbers are compared, but times show no gain nor its absence."


def _opened(precision: str, device: str, look: Look) -> tuple[Testbed, Profile, Path | None]:
    """A testbed whose machine is measured, its profile, and where to store that (None: nowhere)."""
    testbed = testbed_for(Placement(device), precision)
    path: Path | None
    profile, path = open_profile(None, True, testbed.identity)
    if warn_if_foreign(profile, path, testbed.identity):
        profile, path = Profile(identity=testbed.identity), None  # figures of two machines are never mixed in one profile
    if path is not None:
        check_writable(path)
    look(testbed)
    testbed.measure_machine(profile)
    return testbed, profile, path
