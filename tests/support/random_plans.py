"""Random plans and machines for property tests, and one plan with contention for every resource."""

import random

from hypothesis import strategies as st

from simulator.engine.simulation import simulate
from tests.support.tiny import build, cpu, gpu, host, rows, task


@st.composite
def plans(draw, shared=True):
    """A plan of random tasks on up to four streams, with its costs. `shared=False`: each stream is a device with its own memory."""
    tasks = []
    for i in range(draw(st.integers(1, 10))):
        lane = draw(st.integers(0, 3))
        reads = ["x", *draw(st.lists(st.sampled_from([f"y{j}" for j in range(i)]), max_size=2, unique=True))] if i else ["x"]
        tasks.append(
            task(
                f"t{i}",
                draw(st.sampled_from((0.0, 0.5, 1.0, 1.75, 3.0))),
                reads=" ".join(reads),
                writes=f"y{i}",
                mutates=draw(st.sampled_from(("", "w1", "w2"))),
                on="d" if shared else f"d{lane}",
                stream=lane if shared else 0,
                priority=draw(st.integers(-2, 0)),
                lag=draw(st.integers(0, 2)),
                grid=draw(st.integers(1, 40)),
                compute_share=draw(st.sampled_from((0.2, 1.0))),
                memory_share=draw(st.sampled_from((0.0, 0.5, 1.0))),
            )
        )
    return build(*tasks)


MACHINES = st.sampled_from((gpu(), gpu(host=host(dispatch_s=0.3, queue_depth=2)), cpu(cores=2), cpu(cores=1, overhead_s=0.25)))


def busy_timeline():
    """Rows of the timeline of a plan with contention for every resource."""
    rng = random.Random(5)
    timed = []
    for i in range(1, 30):
        settings = {"stream": i % 4, "priority": -(i % 3), "grid": i, "memory_share": 0.6}
        reads = f"x y{i - 1}" if i % 3 else "x"
        timed.append(task(f"t{i}", rng.uniform(0.1, 1.0), reads=reads, writes=f"y{i}", mutates=f"w{i % 2}", **settings))
    plan, costs = build(*timed)
    return rows(simulate(plan, gpu(host=host(dispatch_s=0.1, record_s=0.05, queue_depth=3)), costs))
