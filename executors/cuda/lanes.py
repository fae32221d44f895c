"""Creates one stream per lane of a plan, in the partition of its device and with the priority of its tasks."""

from collections.abc import Mapping

from executors.cuda.driver import Driver, Partition, Stream
from simulator.plan.plan import Plan
from traces.errors import SchedcastError

Lane = tuple[str, int]


def lane_priorities(plan: Plan) -> dict[Lane, int]:
    """The priority of each lane's tasks. Raises SchedcastError if a lane's tasks differ, because a CUDA stream has one priority."""
    priorities: dict[Lane, int] = {}
    for task in (task for segment in plan.segments for task in segment.tasks):
        priority = priorities.setdefault(task.lane, task.priority)
        if priority != task.priority:
            raise SchedcastError(
                f"stream {task.stream} of {task.device} has tasks of priorities {priority} and {task.priority} ({task.name}); "
                "a CUDA stream has one priority: plan them on two streams"
            )
    return priorities


def make_streams(plan: Plan, driver: Driver, partitions: Mapping[str, Partition | None]) -> dict[Lane, Stream]:
    """A stream for every lane."""
    return {lane: driver.stream(priority, partitions[lane[0]]) for lane, priority in lane_priorities(plan).items()}
