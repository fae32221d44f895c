"""The order of a validation's rounds: every program's keys are sampled just before and just after its steps."""

from types import SimpleNamespace

from calibrate.rounds import Candidate, run_rounds
from calibrate.testbed import no_progress
from executors.measured import ChunkTimes


class RecordingTestbed:
    """A testbed on which nothing takes time. `events`: steps of programs ("run owt") and samples of keys ("sample owt+baseline")."""

    units_per_round, plain_steps_per_round = 1, 1

    def __init__(self):
        self.events: list[str] = []
        self.numbers: list[int] = []

    def sample_keys(self, plans, number):
        self.events.append("sample " + "+".join(plan.strategy for plan in plans))
        self.numbers.append(number)
        return []

    def sample_interference(self, plans, profile, number):
        self.events.append("interference " + "+".join(plan.strategy for plan in plans))

    def sample_loop_keys(self, loop, number):
        self.events.append(f"sample {loop.strategy}")

    def train(self, steps):
        """As plain PyTorch."""
        self.events.append("run pytorch")
        return [1.0] * (steps + 1)

    def restart(self, warm_up):
        self.events.append("restart pytorch")
        self.train(warm_up)

    def reference_kernel_s(self):
        return []

    def monitor(self):
        return SimpleNamespace(stop=lambda: SimpleNamespace(rejected=False, busy_share=0.0))

    def program(self, name: str) -> SimpleNamespace:
        def run(steps: int) -> ChunkTimes:
            self.events.append(f"run {name}")
            return ChunkTimes((1.0,) * steps, ())

        return SimpleNamespace(unit=1, run=run)


def rounds_of(testbed: RecordingTestbed, rounds: int = 2, **options):
    plans = [SimpleNamespace(strategy=name) for name in ("baseline", "owt")]
    candidates = [Candidate(plan, testbed.program(plan.strategy)) for plan in (*plans, plans[0])]
    return run_rounds(candidates, testbed, testbed, no_progress, rounds, **options)


def test_keys_of_a_program_are_sampled_before_and_after_its_steps():
    testbed = RecordingTestbed()
    rounds_of(testbed, sampled_for=SimpleNamespace(), loop=SimpleNamespace(strategy="pytorch"))
    begin = testbed.events.index("sample pytorch") + 1  # after the warm-up
    end = testbed.events.index("run pytorch", begin)
    assert testbed.events[begin : end + 1] == [
        "sample baseline+baseline",
        "run baseline",
        "sample baseline+owt",
        "run owt",
        "sample owt+baseline",
        "run baseline",
        "interference baseline+owt",
        "sample pytorch",
        "run pytorch",
    ]
    assert testbed.events[end + 1 : end + 3] == ["sample baseline+owt", "run owt"], "the next round begins with the next program"


def test_only_samples_of_the_rounds_count():
    testbed = RecordingTestbed()
    times = rounds_of(testbed, sampled_for=SimpleNamespace())
    assert testbed.numbers == [0, 1, 2, 3, 4, 5, 6]
    assert times.key_samples == [1, 2, 3, 4, 5, 6]


def test_without_sampling_only_programs_run():
    testbed = RecordingTestbed()
    rounds_of(testbed, loop=SimpleNamespace(strategy="pytorch"))
    assert {event.partition(" ")[0] for event in testbed.events} == {"run"}


def test_plain_pytorch_has_a_new_process_in_every_other_round():
    """The memory that one process happens to get decides the length of its steps."""
    testbed = RecordingTestbed()
    rounds_of(testbed, rounds=5)
    plain = [event for event in testbed.events if event.endswith("pytorch")]
    warm_up_and_two_rounds = ["run pytorch"] * 3
    last = ["run pytorch"] * 2
    assert plain == [*warm_up_and_two_rounds, "restart pytorch", *warm_up_and_two_rounds, "restart pytorch", *last]


def test_if_all_rounds_were_disturbed_all_count():
    testbed = RecordingTestbed()
    testbed.monitor = lambda: SimpleNamespace(stop=lambda: SimpleNamespace(rejected=True, busy_share=0.5))
    assert rounds_of(testbed, rounds=1).counted == [0]
    assert rounds_of(testbed, rounds=2).counted == [0, 1, 2]
