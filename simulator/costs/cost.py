"""What a task costs when it runs alone: the one thing the engine asks of a cost model."""

from dataclasses import dataclass

MEASURED, FITTED, GUESSED = "measured", "fitted", "guessed"


@dataclass(frozen=True, slots=True)
class Cost:
    """Solo time and kernel geometry of one task on its device.

    `warm_s`/`cold_s`: all or none of its reads in the cache. `grid`, `blocks_per_sm`: kernel geometry (CPU: 1 and 1: one wave on one core).
    `compute_share`, `memory_share`: c of the device's peak FLOP/s and m of its memory's bandwidth that it draws alone.
    `spread`: relative quartile half-width (p75 − p25) / (2 · median) of the key's samples; `error`: relative error of the model where the
    key was not measured (one standard deviation of the log). `key`: tasks of one key share their error. `issue_s`: what the host takes for
    its op in eager mode, launches included; None where no key's was measured. `group`: of tasks that slow others down alike
    (`contention`); none for what runs on no SM. `calls`: of ops by a CPU's worker.
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
    launches: int = 1
    calls: int = 1
    op_class: str = ""
    issue_s: float | None = None
    group: str = ""
