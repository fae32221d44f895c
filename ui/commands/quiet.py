"""Waits for a quiet machine before a command measures, and notes in a profile if it was not quiet meanwhile."""

import sys

from calibrate.testbed import Monitor, Testbed
from calibrate.testbeds import monitor_of, wait_until_quiet
from traces.documents.profile import Profile
from traces.documents.verdict import is_busy
from ui.present import labels
from ui.service.progress import progress_bar


def wait_for_quiet(testbed: Testbed, wait_s: float, as_json: bool) -> None:
    """Wait up to `wait_s` seconds until other processes leave the machine alone, and say so if they do not."""
    with progress_bar("waiting for other processes", as_json) as progress:
        share = wait_until_quiet(monitor_of(testbed), wait_s, progress)
    if line := labels.busy_line(share, testbed.identity.kind):
        print(f"schedcast: {line}", file=sys.stderr)


def note_others(profile: Profile, others: Monitor) -> float | None:
    """Note in `profile` if other processes took too much of the machine while its costs were measured. Returns the share that they took."""
    share = others.stop().busy_share
    if is_busy(share):
        profile.notes = list(dict.fromkeys([*profile.notes, labels.busy_note(share)]))
    return share
