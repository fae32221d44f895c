"""Whether settled steps are those of long runs: python -m tests.benchmarks.settle [PLANS] [ITERATIONS] [FIRST]

Random plans with shared SMs, memory bandwidth, links and hosts are simulated to the steady state, and by the second engine of the tests
(`tests/support/reference_engine`), which runs three times as many iterations. Prints every plan whose step differs by more than 2 %, how
many are settled, and how long the engine takes. Fails if a settled step is off.
"""

import sys
import time
from itertools import count, islice

from simulator.engine.simulation import simulate
from tests.support.reference_engine import long_run_step_s, random_small_run

#: A step that differs by more is off.
OFF = 0.02


def main(arguments: list[str]) -> int:
    """Print the plans that are off. Returns 1 if one of them is settled."""
    plans, iterations, first = (int(text) for text in (*arguments, *("300", "60", "0")[len(arguments) :]))
    runs = ((seed, run) for seed in count(first) if (run := random_small_run(seed, tasks=10)) is not None)
    settled = wrong = wrong_settled = 0
    longest_s = total_s = 0.0
    for seed, run in islice(runs, plans):
        begin = time.process_time()
        timeline = simulate(*run, use_cache=False)
        engine_s = time.process_time() - begin
        total_s, longest_s = total_s + engine_s, max(longest_s, engine_s)
        true_s = long_run_step_s(*run, iterations)
        settled += timeline.settled
        if abs(timeline.step_s - true_s) > OFF * true_s:
            wrong += 1
            wrong_settled += timeline.settled
            print(f"seed {seed}: {timeline.step_s / true_s - 1:+.1%}, {'settled' if timeline.settled else 'not settled'}", flush=True)
    print(f"{plans} plans: {settled} settled, {wrong} off by more than {OFF:.0%}, {wrong_settled} of them settled", end="; ")
    print(f"the engine takes {total_s / plans * 1e3:.0f} ms each, {longest_s * 1e3:.0f} ms at most")
    return 1 if wrong_settled else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
