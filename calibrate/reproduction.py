"""Measures a paper's jobs on this machine: each is validated like any job, with its costs measured in the same rounds."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import MappingProxyType

from calibrate.cpu.session import Progress
from calibrate.cpu.testbed import Testbed
from calibrate.gpu_profiles import gpu_here
from calibrate.jacobian_generation import generation_table
from calibrate.placement import Placement
from calibrate.profiles import foreign, open_profile
from calibrate.testbeds import testbed_for
from calibrate.validation import Outcome, validate
from simulator.reproduce.registry import Measurement, Source
from traces.errors import StepcastError
from traces.files import check_writable
from traces.profile import Profile
from traces.reproduction import Paper, Table

#: What is measured beside jobs, by paper.
_TABLES: MappingProxyType[str, Callable[[], Table]] = MappingProxyType({"bppsa": generation_table})
#: Opens a progress bar with a title; it yields `report(done, total, text)`.
Bar = Callable[[str], AbstractContextManager[Progress]]


def measured(source: Source, paper: Paper, bar: Bar) -> tuple[Paper, bool]:
    """`paper` with a validation for each of its measurements on this machine, and whether all numbers equal plain PyTorch's.

    Raises StepcastError if the paper has no measurement for this machine.
    """
    gpu = gpu_here() is not None
    chosen = source.measurements(gpu)
    if not chosen:
        raise StepcastError(f"it has nothing to measure on this machine, {'a GPU' if gpu else 'which has no GPU that PyTorch can use'}")
    tables = (*paper.tables, *([_TABLES[source.name]()] if source.name in _TABLES else []))
    found = [_validated(each, "cuda" if gpu else "cpu", bar) for each in chosen]
    documents = tuple(outcome.validation.document() for outcome in found)
    notes = [f"Measured on this machine: {each.job.label}, {each.about}." for each in chosen]
    shown = paper.model_copy(update={"tables": tables, "measured": documents, "notes": (*paper.notes, *notes)})
    return shown, all(outcome.same_numbers for outcome in found)


def _validated(each: Measurement, device: str, bar: Bar) -> Outcome:
    testbed: Testbed = testbed_for(Placement(device), each.job.precision)
    profile, place = open_profile(None, True, testbed.identity)
    if foreign(profile, place, testbed.identity):
        profile, place = Profile(identity=testbed.identity), None  # never mixed with another machine's figures
    if place is not None:
        check_writable(place)
    testbed.measure_machine(profile)
    with bar(f"measuring {each.job.label}") as progress:
        return validate(each.job, each.strategies, {}, profile, True, place, progress, testbed, "eager", timelines=False)
