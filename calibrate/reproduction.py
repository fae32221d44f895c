"""What of a paper can be run on this machine: validated like any job, with its costs measured in the same rounds."""

from calibrate.cpu.testbed import Stand
from calibrate.gpu_profiles import gpu_here
from calibrate.profiles import foreign, open_profile
from calibrate.validation import Outcome, validate
from simulator.reproduce.registry import Measurement, Source
from traces.errors import StepcastError
from traces.files import check_writable
from traces.profile import Profile
from traces.reproduction import Paper
from ui import jobs
from ui.placement import Where


def measured(source: Source, paper: Paper, quiet: bool) -> tuple[Paper, bool]:
    """`paper` with a validation per measurement that it has for this machine, and whether all numbers were plain PyTorch's.

    Raises StepcastError where it has none.
    """
    gpu = gpu_here() is not None
    chosen = source.measurements(gpu)
    if not chosen:
        raise StepcastError(f"it has nothing to measure on this machine, {'a GPU' if gpu else 'which has no GPU that PyTorch can use'}")
    tables = (*paper.tables, *source.measured_tables())
    found = [_validated(each, "cuda" if gpu else "cpu", quiet) for each in chosen]
    documents = tuple(outcome.validation.document() for outcome in found)
    notes = [f"Measured on this machine: {each.job.label}, {each.about}." for each in chosen]
    shown = paper.model_copy(update={"tables": tables, "measured": documents, "notes": (*paper.notes, *notes)})
    return shown, all(outcome.same_numbers for outcome in found)


def _validated(each: Measurement, device: str, quiet: bool) -> Outcome:
    stand: Stand = jobs.stand_for(Where(device), each.job.precision)
    profile, place = open_profile(None, True, stand.identity)
    if foreign(profile, place, stand.identity):
        profile, place = Profile(identity=stand.identity), None  # never mixed with another machine's figures
    if place is not None:
        check_writable(place)
    stand.measure_machine(profile)
    with jobs.progress(f"measuring {each.job.label}", quiet) as progress:
        return validate(each.job, each.strategies, {}, profile, True, place, progress, stand, "eager", timelines=False)
