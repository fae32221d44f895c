"""One stream per lane of a plan, in the partition of its device, with the priority of its tasks."""

from collections.abc import Mapping

from executors.cuda.driver import Driver, Partition, Stream
from simulator.plan.plan import Plan
from traces.errors import StepcastError

Lane = tuple[str, int]


def lane_priorities(plan: Plan) -> dict[Lane, int]:
    """Lane -> its tasks' priority. Raises StepcastError where they differ: a CUDA stream has one."""
    found: dict[Lane, int] = {}
    for task in (task for segment in plan.segments for task in segment.tasks):
        given = found.setdefault(task.lane, task.priority)
        if given != task.priority:
            raise StepcastError(
                f"stream {task.stream} of {task.device} has tasks of priorities {given} and {task.priority} ({task.name}); "
                "a CUDA stream has one: plan them on two streams"
            )
    return found


def make_streams(plan: Plan, driver: Driver, partitions: Mapping[str, Partition | None]) -> dict[Lane, Stream]:
    """A stream of its own for every lane."""
    return {lane: driver.stream(priority, partitions[lane[0]]) for lane, priority in lane_priorities(plan).items()}
