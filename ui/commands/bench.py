"""What a command measures on: a testbed with its profile, once other processes leave the machine alone."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from calibrate.profiles import open_profile, warn_if_foreign
from calibrate.testbed import Progress, Testbed
from calibrate.testbeds import monitor_of, wait_until_quiet
from simulator.model.job import Job
from simulator.plan.plan import Plan
from traces.documents.profile import Profile
from traces.documents.verdict import is_busy
from traces.files import check_writable
from ui.present import labels
from ui.request import JobRequest
from ui.service.progress import progress_bar


def wait_for_quiet(testbed: Testbed, wait_s: float, quiet: bool) -> None:
    """Wait up to `wait_s` seconds until other processes leave the machine alone, and say so if they do not. `quiet`: no progress bar."""
    with progress_bar("waiting for other processes", quiet) as progress:
        share = wait_until_quiet(monitor_of(testbed), wait_s, progress)
    if line := labels.busy_line(share, testbed.identity.kind):
        print(f"schedcast: {line}", file=sys.stderr)


@dataclass(frozen=True)
class Bench:
    """What plans are measured on: a testbed, its profile, and where that is stored (None: nowhere).

    `calibration`: whether their costs are measured too.
    """

    testbed: Testbed
    profile: Profile
    place: Path | None
    calibration: bool

    @classmethod
    def of(cls, request: JobRequest, testbed: Testbed, calibration: bool) -> "Bench":
        """With the request's profile. Costs of two machines are never mixed: with those of another one, nothing is stored.

        Raises SchedcastError for a profile that cannot be read, or not be written although costs are measured.
        """
        profile, place = open_profile(request.profile, calibration and request.profile is None, testbed.identity)
        if warn_if_foreign(profile, place, testbed.identity) and calibration:
            return cls(testbed, Profile(identity=testbed.identity), None, calibration)
        if calibration:
            check_writable(place)
        return cls(testbed, profile, place, calibration)

    def measure(self, plans: Mapping[Job, Sequence[Plan]], progress: Progress) -> tuple[int, float | None]:
        """Measure the machine and the missing costs of the plans of each job, and store them as they come.

        Returns how many costs were tried, and the share of the machine that other processes took meanwhile, which a note in the profile
        says if it is too much.
        """
        others, tried = monitor_of(self.testbed)(), 0
        self.testbed.measure_machine(self.profile)
        try:
            for job, own in plans.items():
                machine = self.testbed.machine(self.profile)
                tried += self.testbed.calibrate(own, machine, self.profile.measuring(job.model), self.place, progress)
        finally:
            share = others.stop().busy_share
            if is_busy(share):
                self.profile.notes = list(dict.fromkeys([*self.profile.notes, labels.busy_note(share)]))
        self.save()
        return tried, share

    def save(self) -> None:
        """Store the profile, if it has a place."""
        if self.place is not None:
            self.profile.save(self.place)
