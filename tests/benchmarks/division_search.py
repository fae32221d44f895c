"""Compares DeePa's search on 16 devices with an integer program that HiGHS solves.

Prints the CPU seconds of the cost tables, of the search and of the program.
"""

import time

from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.strategies.sharding.network import Network
from simulator.strategies.sharding.search import cost_tables, reduced
from tests.support.integer_programs import by_integer_program

MODELS, MACHINES, COSTS = ("alexnet", "vgg16", "inception_v3_no_aux"), ("k80x16", "4xp100x4"), ("exact", "paper")
BATCH = 512
#: The program is solved to this relative gap.
TOLERANCE = 1e-6


def main() -> None:
    """Print a line for each network, machine and cost. Fails if the two differ."""
    print(f"{'network':20} {'machine':9} {'cost':6} {'tables s':>9} {'search s':>9} {'program s':>10}")
    for model in MODELS:
        network = Network(Job(model, BATCH).graph())
        for machine in MACHINES:
            for cost in COSTS:
                start = time.process_time()
                tables = cost_tables(network, load_machine(machine), None, cost=cost)
                priced = time.process_time()
                result = reduced(tables)
                searched = time.process_time()
                _, least = by_integer_program(tables.nodes(), tables.edges())
                solved = time.process_time()
                print(
                    f"{model:20} {machine:9} {cost:6} {priced - start:9.2f} {searched - priced:9.3f} {solved - searched:10.1f}", flush=True
                )
                assert len(result.enumerated) == 2
                assert abs(result.cost - least) <= TOLERANCE * least, f"{model} on {machine}: {result.cost} s, the program has {least} s"


if __name__ == "__main__":
    main()
