"""Measures a paper's jobs on this machine: each is validated like any other job."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import MappingProxyType

from calibrate.gpu_profiles import gpu_here
from calibrate.jacobian_generation import generation_table
from calibrate.placement import Placement
from calibrate.profiles import open_profile, warn_if_foreign
from calibrate.testbed import Progress, Testbed
from calibrate.testbeds import testbed_for
from calibrate.validation import Outcome, validate
from simulator.papers.registry import Measurement, Source
from traces.documents.profile import Profile
from traces.documents.reproduction import Paper, Table
from traces.errors import SchedcastError
from traces.files import check_writable

#: Tables that are measured in addition to jobs, by paper.
_TABLES: MappingProxyType[str, Callable[[], Table]] = MappingProxyType({"bppsa": generation_table})
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
    outcomes = [_validate(measurement, "cuda" if gpu else "cpu", bar, look) for measurement in chosen]
    tables = (*paper.tables, *([_TABLES[source.name]()] if source.name in _TABLES else []))
    documents = tuple(outcome.validation.document() for outcome in outcomes)
    notes = [f"Measured on this machine: {measurement.job.label}, {measurement.about}." for measurement in chosen]
    shown = paper.model_copy(update={"tables": tables, "measured": documents, "notes": (*paper.notes, *notes)})
    return shown, all(outcome.same_numbers for outcome in outcomes)


def _validate(measurement: Measurement, device: str, bar: Bar, look: Look) -> Outcome:
    job = measurement.job
    testbed = testbed_for(Placement(device), job.precision)
    profile, path = open_profile(None, True, testbed.identity)
    if warn_if_foreign(profile, path, testbed.identity):
        profile, path = Profile(identity=testbed.identity), None  # figures of two machines never mix in one profile
    if path is not None:
        check_writable(path)
    look(testbed)
    testbed.measure_machine(profile)
    with bar(f"measuring {job.label}") as progress:
        return validate(job, measurement.strategies, {}, profile, testbed, save_to=path, progress=progress, timelines=False)
