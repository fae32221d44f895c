"""What a step is predicted for: a machine, the costs of tasks there, and how its host issues them."""

from dataclasses import dataclass, replace

from simulator.engine.costs.efficiencies import precision_of_key
from simulator.engine.costs.model import CostModel
from simulator.engine.scenario import EAGER, GRAPH, Scenario
from simulator.machine.machine import Machine
from simulator.machine.presets import PYTORCH as PYTORCH_HOST
from simulator.machine.presets import device_count, load_machine, product_of
from simulator.machine.this_cpu import ALIAS_LINK
from simulator.model.job import DEFAULT, Job
from simulator.plan.plan import Plan
from simulator.strategies.registry import Strategy
from traces.documents.comparison import LOOPS, PARALLEL_LOOPS, PYTORCH, PYTORCH_GRAPH
from traces.documents.profile import Dispatch, Profile
from traces.documents.shipped import shipped_profile


@dataclass(frozen=True)
class Target:
    """A machine with its costs. `mode`: "eager", or "graph" for CUDA graphs."""

    machine: Machine
    costs: CostModel
    mode: str = EAGER

    @classmethod
    def of(cls, costs: CostModel, mode: str = EAGER) -> "Target":
        """The machine of these costs."""
        return cls(costs.machine, costs, mode)

    def planning(self, strategy: Strategy) -> "Target":
        """For which a strategy makes its plan: of a GPU that is split, strategies of one device use the unsplit one."""
        if strategy.name in LOOPS:
            return replace(self, machine=self.machine.for_pytorch, costs=self.costs.for_pytorch)
        if strategy.name in PARALLEL_LOOPS:
            return replace(self, machine=self.machine.for_parallel_loops, costs=self.costs.for_parallel_loops)
        if self.machine.whole is not None and strategy.least_devices == 1:
            return replace(self, machine=self.machine.whole, costs=self.costs.whole)
        return self

    def running(self, plan: Plan) -> "Target":
        """On which `plan` runs: the unsplit machine if it uses that; PyTorch's own loops are eager, and have separate costs.

        A graph of plain PyTorch holds one step.
        """
        if plan.strategy in LOOPS:
            return Target(self.machine.for_pytorch, self.costs.for_pytorch)
        if plan.strategy in PARALLEL_LOOPS:
            return Target(self.machine.for_parallel_loops, self.costs.for_parallel_loops)
        if plan.strategy == PYTORCH_GRAPH:
            unsplit = self.machine.whole or self.machine
            return Target(
                replace(unsplit, hosts=tuple(replace(host, graph_iterations=1) for host in unsplit.hosts)), self.costs.whole, GRAPH
            )
        variant = self.machine.for_devices(plan.devices)
        if variant is self.machine:
            return self
        return replace(self, machine=variant, costs=self.costs.whole if variant is self.machine.whole else self.costs.for_pytorch)

    def scenario(self, plan: Plan) -> Scenario:
        """What is simulated of a plan that runs here, as it is (see `running`)."""
        return Scenario(plan, self.machine, self.costs.resolve(plan), self.mode, self.costs.pair_multipliers)


def references(machine: Machine) -> tuple[str, ...]:
    """What a user runs without a schedule: plain PyTorch and, on a GPU, the same with each step captured in a CUDA graph.

    On several devices with a process on each, also PyTorch's own parallel loops.
    """
    alone = (PYTORCH, PYTORCH_GRAPH) if machine.devices[0].kind == "gpu" else (PYTORCH,)
    return (*alone, *PARALLEL_LOOPS) if machine.library and len(machine.devices) > 1 else alone


def plain_loops(machine: Machine) -> tuple[str, ...]:
    """What is predicted if no strategy is requested: plain PyTorch and, on several devices, what trains on all of them.

    Those are PyTorch's own parallel loops, which have a process on each; for devices of one process, data parallelism.
    """
    if len(machine.devices) == 1:
        return (PYTORCH,)
    return (PYTORCH, *(PARALLEL_LOOPS if machine.library else ("data-parallel",)))


def dense_precision(job: Job, profile: Profile | None) -> str | None:
    """Return the precision of dense kernels on float32 operands (`CostModel`); None for that of the profile, or if it does not matter.

    A GPU's profile says what its kernels were measured in, which PyTorch's default does not change.
    """
    if job.precision == DEFAULT:
        return DEFAULT if profile is None else None
    return job.precision if job.precision in ("fp32", "tf32") else None


def preset_target(
    job: Job,
    name: str,
    devices: int | None = None,
    link: str = ALIAS_LINK,
    limit_bytes: float | None = None,
    partitions: int = 1,
    host: str = PYTORCH_HOST,
    mode: str = EAGER,
    network_bytes_per_s: float | None = None,
) -> Target:
    """Return the machine called `name`, as `load_machine` makes it, with its costs for `job`.

    What the shipped profiles of its GPU measured counts, whatever model it was measured for (`profile_of_preset`); the table, corrected by
    it, prices the rest (`engine.costs.ratios`). With several GPUs, the table prices all. `network_bytes_per_s`: as in
    `Machine.with_network`. Raises SchedcastError for an unknown name.
    """
    precision = dense_precision(job, None) or "fp32"
    profile = profile_of_preset(name, devices, precision)
    if profile is not None and host != PYTORCH_HOST:
        profile = without_host(profile)
    machine = load_machine(name, profile, devices, link, partitions, host).with_memory_limit(limit_bytes)
    machine = machine.with_network(network_bytes_per_s)
    return Target(machine, CostModel(machine, profile, precision), mode)


def profile_of_preset(name: str, devices: int | None = None, precision: str = "fp32") -> Profile | None:
    """What was measured on the GPU of the preset called `name`, with so many `devices` (None: all); None if nothing was, and for several.

    It is the shipped profile in TF32 or that in the other precisions, with the keys of both that are the same op in `precision`, the one
    of dense kernels on float32 operands: TF32 changes no other kernel. Raises UnusableFileError if a profile cannot be read.
    """
    if (devices or device_count(name)) > 1:
        return None
    own, other = (shipped_profile(product_of(name), tf32) for tf32 in (precision == "tf32", precision != "tf32"))
    chosen = own or other
    if chosen is None:
        return None
    costs = {
        key: cost
        for profile in (other, own)
        if profile is not None
        for key, cost in profile.costs.items()
        if precision_of_key(key, cost.op_class, profile.identity.precision) == precision_of_key(key, cost.op_class, precision)
    }
    return chosen.model_copy(update={"costs": costs})


def without_host(profile: Profile) -> Profile:
    """What a profile says of the GPU alone, for another program than PyTorch that issues its kernels."""
    costs = {key: cost._replace(issue_s=None) for key, cost in profile.costs.items()}
    return profile.model_copy(update={"costs": costs, "dispatch": Dispatch(), "loop": None})
