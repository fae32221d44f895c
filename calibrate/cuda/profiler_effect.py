"""What profiler sessions do to the host: the time of a launch before the first session of the process, and after the latest.

CUPTI, which the profiler uses, slows every launch down for as long as it is attached to the process.
"""

import logging
import statistics
from weakref import WeakKeyDictionary

from calibrate.cuda.bench import Bench
from calibrate.cuda.cadence import tiny_kernel
from executors.cuda.driver import Driver
from traces.documents.profile import Profile

#: Names of the two times among the extras of a profile's identity.
BEFORE, AFTER = "launch_before_profiler_s", "launch_after_profiler_s"
#: The largest relative difference that is not reported.
LARGEST = 0.10
_CALLS = 200
#: By GPU, seconds of a launch before this process's first profiler session.
_before: WeakKeyDictionary[Driver, float] = WeakKeyDictionary()
log = logging.getLogger("schedcast")


def before_profiler(bench: Bench) -> float:
    """Host seconds of a launch before the first profiler session. Measured at the first call, which must come before that session."""
    if bench.driver not in _before:
        _before[bench.driver] = _launch_s(bench)
    return _before[bench.driver]


def after_profiler(bench: Bench, profile: Profile) -> None:
    """Measure a launch again, and keep both times in the profile. If they differ, a note and a warning say so."""
    before_s, after_s = before_profiler(bench), _launch_s(bench)
    profile.identity.extras |= {BEFORE: before_s, AFTER: after_s}
    if abs(after_s - before_s) > LARGEST * before_s:
        note = (
            f"a launch takes the host {after_s * 1e6:.3g} us after a profiler session and {before_s * 1e6:.3g} us before: "
            "eager step times of this process are not those of a process without a profiler"
        )
        profile.notes = list(dict.fromkeys([*profile.notes, note]))
        log.warning("%s", note)


def _launch_s(bench: Bench) -> float:
    """Median host seconds of the launch of a tiny kernel, on an idle stream."""
    issue = tiny_kernel(bench.driver)
    bench.run(issue)
    return statistics.median(bench.host_s(issue, _CALLS))
