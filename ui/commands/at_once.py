"""Measures the costs that a prediction for this machine lacks, before predicting."""

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from simulator.machine.presets import THIS_CPU
from simulator.machine.scaled import AS_IT_IS
from simulator.model.job import Job
from simulator.predict.answers import Answers, least_measured
from simulator.predict.forecast import Forecast
from traces.documents.comparison import BASELINE, PYTORCH
from traces.documents.verdict import is_judged
from traces.errors import SchedcastError
from traces.units import rough_time
from ui.request import JobRequest
from ui.service.cautions import measured_here
from ui.service.progress import progress_bar

if TYPE_CHECKING:
    from calibrate.testbed import Progress

#: The longest estimated measurement that a prediction begins without being asked to, and the seconds after which it is stopped, since an
#: estimate from extrapolated costs may be far too short. Costs saved until then count.
AT_ONCE_S, MOST_S = 25.0, 35.0

#: Forecasts by job and strategy.
Known = Mapping[Job, Mapping[str, Forecast]]


class TimeIsUpError(Exception):
    """Measuring has taken MOST_S."""


def measured_at_once(answers: Sequence[Answers], request: JobRequest, wanted: bool | None, quiet: bool) -> bool:
    """Measure the missing costs of answers about one target if it is this CPU, and return whether the profile has more costs now.

    `request`: of one of them. `wanted`: measure however long it takes, or never; None: only if the profile has measured too little for a
    verdict, and if measuring takes less than AT_ONCE_S. `quiet`: no progress bar. Raises SchedcastError if that is another machine.
    """
    if wanted is False:
        return False
    if why := _why_not(answers[0], request):
        if wanted:
            raise SchedcastError(f"--calibrate measures this machine's CPU, and {why}; drop --calibrate")
        return False
    known: Known = {own.job: {text: f for text, f in own.known.items() if f.fits} for own in answers}
    if wanted is None:
        share = least_measured([f for own in known.values() for f in own.values()])
        if is_judged(share):
            return False
        quick = _quick_enough(known)
        if quick is None:
            return False
        known = quick
    return _measure(known, request, MOST_S if wanted is None else None, quiet)


def _why_not(answers: Answers, request: JobRequest) -> str:
    """Why the costs behind answers cannot be measured here; empty if they can."""
    model, placement = answers.target.costs, request.placement()
    if placement.ranks is not None:
        return "this prediction is about several processes"
    if placement.scale != AS_IT_IS:
        return f"--scale {placement.scale.text} makes another of it"
    if model.machine.name != THIS_CPU:
        return f"{model.machine.name} is another"
    return "" if measured_here(model) else f"profile {request.profile} is of another"


def _quick_enough(known: Known) -> Known | None:
    """The forecasts whose costs can be measured now: all, or those of plain PyTorch and the baseline; None if even those take too long."""
    from calibrate.cpu.sampler import ROUNDS  # torch takes seconds to load, and most predictions measure nothing
    from calibrate.planned import calibration_seconds

    firsts = {job: {text: f for text, f in own.items() if text in (PYTORCH, BASELINE)} for job, own in known.items()}
    for chosen in (known, firsts):
        seconds = sum(calibration_seconds(own.values(), ROUNDS) for own in chosen.values())
        if seconds <= AT_ONCE_S:
            return chosen
    print(
        f"schedcast: most of this was never measured here; --calibrate measures it in about {rough_time(seconds)}",
        file=sys.stderr,
    )
    return None


def _measure(known: Known, request: JobRequest, most_s: float | None, quiet: bool) -> bool:
    from calibrate.cpu.sampler import ROUNDS
    from calibrate.planned import calibration_seconds, plans_of
    from calibrate.testbeds import cpu_testbed
    from ui.commands.bench import Bench, wait_for_quiet

    first = next(iter(known))
    testbed = cpu_testbed(request.placement(), first.precision)
    bench = Bench.of(request, testbed, calibration=True)
    seconds = sum(calibration_seconds(own.values(), ROUNDS) for own in known.values())
    what = "this job" if len(known) == 1 else f"{len(known)} jobs"
    print(f"schedcast: measuring {what}, about {rough_time(seconds)} (--no-calibrate forbids it)", file=sys.stderr, flush=True)
    before = len(bench.profile.costs)
    wait_for_quiet(testbed, 0.0, quiet)
    with closing(testbed), progress_bar(f"measuring {first.label}", quiet) as shown:
        progress = shown if most_s is None else _until(time.monotonic() + most_s, shown)
        try:
            plans = {job: plans_of(own.values()) for job, own in known.items()}
            bench.measure(plans, progress)
        except TimeIsUpError:
            bench.save()
            print(f"schedcast: stopped measuring after {rough_time(MOST_S)}; --calibrate measures the rest", file=sys.stderr)
    return len(bench.profile.costs) > before


def _until(end: float, shown: "Progress") -> "Progress":
    """The progress `shown`, which raises TimeIsUpError after `end` (`time.monotonic`)."""

    def progress(done: int, total: int, text: str) -> None:
        if time.monotonic() > end:
            raise TimeIsUpError
        shown(done, total, text)

    return progress
