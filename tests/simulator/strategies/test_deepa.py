"""The search of `deepa`: which of the divisions that it finds becomes the plan."""

from simulator.engine.costs.model import CostModel
from simulator.engine.simulation import simulate
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.predict.forecast import plan_of
from simulator.predict.target import Target
from simulator.strategies.sharding.configuration import Configuration, StepOptions
from simulator.strategies.sharding.configurations import place
from simulator.strategies.sharding.network import Network
from simulator.strategies.sharding.plan import ShardedStep
from simulator.strategies.sharding.search import candidates, cost_tables
from tests.support.jobs import job_of
from tests.support.refusals import refuses
from traces.errors import Code

JOB, MACHINE = Job("vgg11", 128, 64), load_machine("p100x4")
COSTS = CostModel(MACHINE)


def step_s(plan):
    return simulate(plan, MACHINE, COSTS.resolve(plan), pair_multipliers=COSTS.pair_multipliers).step_s


def steps_of_divisions(count):
    """The simulated seconds of the divisions with the smallest sums of costs."""
    network = Network(JOB.graph())
    for division in candidates(cost_tables(network, MACHINE, COSTS), count):
        placed = [place(configuration, MACHINE) for configuration in division]
        yield step_s(ShardedStep("deepa", JOB, MACHINE, network, placed, StepOptions()).plan())


def test_of_the_best_divisions_the_fastest_in_the_simulation_is_kept():
    steps = list(steps_of_divisions(4))
    assert step_s(plan_of(JOB, "deepa:simulated=4", Target(MACHINE, COSTS))) == min(steps)
    assert step_s(plan_of(JOB, "deepa:simulated=1", Target(MACHINE, COSTS))) == steps[0]
    assert min(steps) < steps[0], "a sum of costs hides no transfer, and is not the whole truth"


def test_a_worker_that_needs_nothing_of_a_parameter_updates_nothing_of_it():
    network = Network(job_of("learned_channels", 4).graph())
    tables = cost_tables(network, load_machine("2xh100"), COSTS)
    (layer,) = (number for number in range(len(network.layers)) if [o.value for *_, o in network.parameters(number)] == ["channels"])
    update_s = dict(zip(tables.configurations[layer], tables.update_s[layer], strict=True))
    assert update_s[Configuration(c=2)] == 0 < update_s[Configuration()]


def test_no_division_to_choose_from_is_refused():
    with refuses(Code.REQUEST, r"^strategy deepa: simulated is 0; expected at least 1$"):
        plan_of(JOB, "deepa:simulated=0", Target(MACHINE, COSTS))
