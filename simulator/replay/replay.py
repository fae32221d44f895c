"""Replay: a recorded run as a plan whose costs are its recorded durations.

The plan has one segment of one period. Host threads are tasks with body `Host` on device "host" (stream = thread number in order of first
appearance), device work is `Recorded` on device "cuda:N" (stream = CUDA stream id). Everything that orders them (launches, stream waits,
event, stream and device synchronisations, joins between ranks) is an `after` edge. `simulator.replay.build` makes one from traces.
"""

from dataclasses import dataclass, replace

from simulator.costs.cost import Cost
from simulator.engine.simulation import simulate
from simulator.machine.machine import Machine
from simulator.plan.plan import Plan
from traces.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Step:
    """One recorded iteration: its first and last device task in issue order, and its recorded length."""

    name: str
    first_task: str
    last_task: str
    measured_s: float


@dataclass(frozen=True)
class Replay:
    """A recording, ready to be simulated.

    `notes` say what was assumed where the recording is silent. `recorded`: when the device work really ran, by the plan's task names, for
    comparison only.
    """

    plan: Plan
    machine: Machine
    steps: tuple[Step, ...]
    notes: tuple[str, ...]
    recorded: Timeline | None = None


def simulate_replay(replay: Replay) -> Timeline:
    """The timeline that durations and dependencies alone give.

    Work holds one SM: its duration already carries its contention. The usual gap between two works of a stream (`Device.task_overhead_s`)
    follows each; the spans end before it.
    """
    plan, machine = replay.plan, replay.machine
    costs = [Cost(f"replay|{index}", task.body.duration_s, task.body.duration_s) for index, task in enumerate(plan.tasks)]
    timeline = simulate(plan, machine, costs, iterations=1, use_cache=False)
    gaps = {device.name: device.task_overhead_s for device in machine.devices}
    spans = (replace(s, end_s=max(s.start_s, s.end_s - gap)) if (gap := gaps[s.device]) else s for s in timeline.spans)
    return replace(timeline, spans=tuple(spans))
