"""Costs on a machine whose figures are multiplied (`machine.scaled`).

A cost of the machine as it is, measured or not, changes by the factor by which the committed table says that it does. So a measured kernel
keeps what is special about it, and a kernel that is bound by memory gains nothing of more FLOP/s.
"""

import math
from dataclasses import replace
from functools import cached_property

from simulator.engine.costs.cost import DATASHEET, FITTED, MEASURED, Cost
from simulator.engine.costs.model import CostModel
from simulator.engine.costs.relatives import scaling_error
from simulator.machine.scaled import AS_IT_IS, Scale, scaled
from simulator.plan.task import Task


class ScaledCosts(CostModel):
    """The costs of `base`, which has a profile, on its machine with other figures."""

    def __init__(self, base: CostModel, scale: Scale):
        super().__init__(scaled(base.machine, scale), base.profile, base.precision)
        self._base, self._scale = base, scale
        self._before, self._after = base.by_table, CostModel(self.machine, None, base.precision)

    @cached_property
    def whole(self) -> CostModel:
        """The costs on the machine whose GPU is unsplit."""
        return self if self.machine.whole is None else ScaledCosts(self._base.whole, self._scale)

    @cached_property
    def for_pytorch(self) -> CostModel:
        """The costs of PyTorch's own loop."""
        return ScaledCosts(self._base.for_pytorch, self._scale)

    @cached_property
    def for_parallel_loops(self) -> CostModel:
        """The costs of PyTorch's own loop with a process on each device."""
        return ScaledCosts(self._base.for_parallel_loops, self._scale)

    def _price(self, task: Task, device: str, key: str) -> Cost:
        """The cost keeps its key on the machine as it is: its error is one with that of the other machine's."""
        own, before, after = (model.cost(task) for model in (self._base, self._before, self._after))
        launch = self._scale.launch
        own = replace(own, issue_s=own.issue_s and own.issue_s * launch, overhead_s=own.overhead_s * launch)
        if not before.warm_s or not before.cold_s or own.launches == 0:
            return own
        warm, cold = after.warm_s / before.warm_s, after.cold_s / before.cold_s
        moved = scaling_error(before.error, max(abs(math.log(warm)), abs(math.log(cold))))
        if own.source == DATASHEET:
            own = replace(own, grid=after.grid, blocks_per_sm=after.blocks_per_sm)
        own = replace(own, warm_s=own.warm_s * warm, cold_s=max(own.warm_s * warm, own.cold_s * cold))
        if moved and own.source == MEASURED:
            own = replace(own, source=FITTED, error=moved)
        shared = self._with_shares(own, task, device)
        return replace(shared, issue_s=own.issue_s, issue_error=own.issue_error)


def scaled_costs(model: CostModel, scale: Scale) -> CostModel:
    """The costs of `model` on its machine with other figures; `model` itself if nothing changes. Without a profile, those of the table."""
    if scale == AS_IT_IS:
        return model
    return ScaledCosts(model, scale) if model.profile is not None else CostModel(scaled(model.machine, scale), None, model.precision)
