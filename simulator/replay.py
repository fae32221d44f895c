"""Replay: a recorded run as a plan whose costs are its recorded durations.

The plan has one segment of one period. Host threads are tasks with body `Host` on device "host" (stream = thread number in order of first
appearance), device work is `Recorded` on device "cuda:N" (stream = CUDA stream id). Everything that orders them (launches, stream waits,
event, stream and device synchronisations, joins between ranks) is an `after` edge.
"""

from dataclasses import dataclass

from traces.timeline import Timeline

from .cost import Cost
from .engine import simulate
from .machine import Machine
from .plan import Plan


@dataclass(frozen=True, slots=True)
class Step:
    """One recorded iteration: its first and last task in issue order, and its recorded length."""

    name: str
    first_task: str
    last_task: str
    measured_s: float


@dataclass(frozen=True)
class Replay:
    """A recording, ready to be simulated. `notes` say what was assumed where the recording is silent."""

    plan: Plan
    machine: Machine
    steps: tuple[Step, ...]
    notes: tuple[str, ...]


def simulate_replay(replay: Replay) -> Timeline:
    """The timeline that durations and dependencies alone give. A kernel holds one SM: its duration already carries its contention."""
    costs = [Cost(f"replay|{index}", task.body.duration_s, task.body.duration_s) for index, task in enumerate(replay.plan.tasks)]
    return simulate(replay.plan, replay.machine, costs, iterations=1, use_cache=False)
