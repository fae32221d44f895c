"""What a task costs when it runs alone, and the interface of a cost model, which strategies and the engine use."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from simulator.engine.costs.efficiencies import Extents
from simulator.plan.plan import Plan
from simulator.plan.task import Task

MEASURED, FITTED, DATASHEET = "measured", "fitted", "guessed"
#: Half the width of the central 90 % of a normal distribution, in standard deviations: scipy.special.ndtri(0.95).
Z_90 = 1.6448536269514722


@dataclass(frozen=True, slots=True)
class Cost:
    """Solo time and kernel geometry of one task on its device.

    `key`: the task's cost key; tasks with one key share their error.
    `warm_s`, `cold_s`: time with all reads in the cache, and with none.
    `source`: `measured`, `fitted` or `guessed`.
    `grid`, `blocks_per_sm`: kernel geometry; (1, 1) on a CPU, where a task is one wave on one core.
    `compute_share`, `memory_share`: fractions of the device's peak FLOP/s (c) and of its memory's bandwidth (m) that it draws alone.
    `spread`: relative quartile half-width (p75 − p25) / (2 · median) of the key's samples.
    `error`: relative error of the model if the key was not measured (one standard deviation of the log).
    `common`: what its error is common to; the errors of costs with the same text are correlated. Empty: only costs of the same key share an
    error.
    `launches`: kernel launches. `calls`: op calls by a worker of a CPU.
    `issue_s`: host time to issue the task's op in eager mode, launches included; None if the profile has no issue times.
    `issue_error`: relative error of `issue_s` if it was estimated from other keys (one standard deviation of the log).
    `fed_s`: the part of `cold_s` that runs while the host still issues the op, one kernel after another (eager mode).
    `overhead_s`: time on the device that PyTorch's own loop adds to the task (a CPU; see `costs.autograd`).
    `fresh_s`: the part of `overhead_s` in which the system hands out memory (`costs.fresh_memory`), and `fresh_error`, its relative error.
    `group`: the contention group (`contention.group_of`); empty for tasks that use no SM.
    """

    key: str
    warm_s: float
    cold_s: float
    source: str = MEASURED
    grid: int = 1
    blocks_per_sm: int = 1
    compute_share: float = 0.0
    memory_share: float = 0.0
    spread: float = 0.0
    error: float = 0.0
    common: str = ""
    launches: int = 1
    calls: int = 1
    op_class: str = ""
    issue_s: float | None = None
    issue_error: float = 0.0
    group: str = ""
    fed_s: float = 0.0
    overhead_s: float = 0.0
    fresh_s: float = 0.0
    fresh_error: float = 0.0


class PlanCosts(Protocol):
    """Costs of a plan's tasks on one machine. `simulator.engine.costs.model.CostModel` implements it."""

    @property
    def pair_multipliers(self) -> Mapping[tuple[str, str], float]:
        """How many times longer a task of one contention group takes while a task of another runs."""

    def resolve(self, plan: Plan) -> list[Cost]:
        """Return one cost per task of `plan.tasks`, in the same order."""

    @property
    def by_work(self) -> bool:
        """Whether the cost of an op depends on its class, FLOPs and bytes alone, so that `work_cold_s` gives it."""

    def work_cold_s(
        self,
        task: Task,
        op_class: str,
        fast: bool,
        flops: np.ndarray,
        moved_bytes: np.ndarray,
        outputs: np.ndarray | None,
        extents: Extents | None,
    ) -> np.ndarray:
        """`Cost.cold_s` of tasks like `task` in an op class, by FLOPs and bytes; `fast`, `outputs` and `extents`: as in `efficiencies`."""
