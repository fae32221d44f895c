"""The schedules that torch.distributed.pipelining makes, without processes or GPUs."""

from collections.abc import Iterable
from typing import Any
from unittest import mock

from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime, _simulate_comms_compute

from simulator.strategies.pipeline.schedule import FORWARD, Action, Schedule

#: torch's names of its schedules that can run as they are, and (ranks, microbatches) that all of them accept.
NAMES = ("GPipe", "LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")
SIZES = ((2, 4), (4, 8), (4, 16), (8, 32))


def torch_order(name: str, ranks: int, microbatches: int, per_rank: int | None = None) -> Schedule:
    """The actions of torch's schedule, without its idle steps and reductions."""
    rows = get_schedule_ops(name, ranks, microbatches, per_rank)
    return as_schedule(rows)


def as_schedule(rows: Iterable[Iterable[Any]]) -> Schedule:
    """torch's actions as ours."""
    cells = [[tuple(map(_action, a.sub_actions or (a,))) for a in row if a is not None and "REDUCE" not in str(a)] for row in rows]
    overlapped = frozenset(cell[0] for row in cells for cell in row if len(cell) > 1)
    assert all(forward.kind == FORWARD for forward in overlapped)
    return Schedule(tuple(tuple(action for cell in row for action in cell) for row in cells), overlapped)


def _action(action: Any) -> Action:
    return Action(action.stage_index, action.computation_type.value, action.microbatch_index)


def runtime(schedule: Schedule) -> _PipelineScheduleRuntime:
    """torch's runtime for a pipeline of the size of `schedule`, as rank 0 makes it."""
    stage = mock.create_autospec(PipelineStage, instance=True)
    stage.group_rank, stage.group_size, stage.num_stages, stage.submod = 0, len(schedule.ranks), schedule.stages, None
    return _PipelineScheduleRuntime([stage], schedule.microbatches)


def simulated(runtime: _PipelineScheduleRuntime) -> dict[int, list[Any]]:
    """torch's own check that each send of a loaded schedule meets its receive. It knows no sharded parameters or reductions."""
    known = {
        rank: [action for action in actions if not str(action).endswith(("UNSHARD", "RESHARD", "REDUCE_GRAD"))]
        for rank, actions in runtime.pipeline_order_with_comms.items()
    }
    return _simulate_comms_compute(known, lambda stage: runtime.stage_index_to_group_rank[stage], runtime._num_stages)
