"""The rule remove: drop kernels."""

from simulator.replay.replay import Replay
from simulator.replay.whatif.edit import device_work, host_work, without
from simulator.replay.whatif.matching import matching, pattern, total_words
from traces.errors import SchedcastError

NAME = "remove"
FORM = "remove:/REGEX/"
ABOUT = "kernels whose name contains the regular expression do not run, nor do their launches"
BUILT = {"remove:/{regex}/": "kernels are left out"}


def parse(rest: str) -> str:
    """Return the regular expression."""
    return pattern(rest)


def apply(replay: Replay, request: str) -> tuple[Replay, list[str]]:
    """Remove the matching kernels, and the launches that launched nothing else."""
    chosen = matching(replay, request)
    if len(chosen) == len(device_work(replay)):
        raise SchedcastError(f"remove:/{request}/ leaves nothing: it matches everything that ran on the device")
    names = {task.name for task in chosen}
    launch_of = replay.rows.launch_of
    needed = {launch for kernel, launch in launch_of.items() if kernel not in names}
    needed |= {name for task in host_work(replay) for name in task.after}  # a host thread waits for these
    unused = {launch_of[name] for name in names if name in launch_of} - needed
    return without(replay, names | unused), [
        f"{total_words(chosen)} matching {request!r} do not run, nor do {len(unused)} launches; tasks that waited for them wait for what"
        " these waited for; Python's time around the launches stays"
    ]
