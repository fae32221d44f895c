"""A replay: a recorded run as a plan whose costs are the recorded durations. `simulator.replay.build` builds it from traces.

The plan has one segment of one period. Time on host threads is a task with body `Host` on device "host"; its stream is the thread's number
in order of first appearance. Device work is a task with body `Recorded` on device "cuda:N"; its stream is the CUDA stream id. Everything
that orders tasks (launches, stream waits, event, stream and device synchronizations, collectives that ranks join) is an `after` edge.
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
    """A recording that can be simulated.

    `notes` tell what was assumed because the recording does not contain it. `recorded` is the recorded timeline of the device work under
    the plan's task names; it is used for comparison only.
    """

    plan: Plan
    machine: Machine
    steps: tuple[Step, ...]
    notes: tuple[str, ...]
    recorded: Timeline | None = None


def simulate_replay(replay: Replay) -> Timeline:
    """Simulate a replay from its durations and dependencies.

    A work holds one SM, because its duration already includes contention. It is followed by the usual gap between two works of a stream
    (`Device.task_overhead_s`); its span ends before the gap.
    """
    plan, machine = replay.plan, replay.machine
    costs = [Cost(f"replay|{index}", task.body.duration_s, task.body.duration_s) for index, task in enumerate(plan.tasks)]
    timeline = simulate(plan, machine, costs, iterations=1, use_cache=False)
    gaps = {device.name: device.task_overhead_s for device in machine.devices}
    spans = (replace(s, end_s=max(s.start_s, s.end_s - gap)) if (gap := gaps[s.device]) else s for s in timeline.spans)
    return replace(timeline, spans=tuple(spans))
