"""TurboDL's paper: the work of AlexNet's layers by hand, and what claims say of steps that are given."""

from simulator.papers import turbodl
from simulator.papers.predicting import Conditions, PredictedStep, Steps
from simulator.papers.turbodl import ASYNC, BASELINE, CUDNN, SCOPE, TURBODL


def step(seconds: float, overlapped_s: float = 0.0) -> PredictedStep:
    return PredictedStep(seconds, (seconds, seconds), 1, 2, {}, 3, overlapped_s, least_s=seconds / 2)


class Given(Steps):
    """Steps in which TurboDL gains `gain(machine, host, model, batch)`, half of it by asynchronous layers."""

    def __init__(self, gain, machine="p100", host="pytorch", places=1.0):
        super().__init__(machine, conditions=Conditions(host=host, places=places))
        self._gain = gain

    def on(self, machine):
        return Given(self._gain, machine, self._conditions.host)

    def issued_by(self, host):
        return Given(self._gain, self.machine_name, host)

    def with_places(self, share):
        return Given(self._gain, self.machine_name, self._conditions.host, share)

    def predict(self, job, strategies, over=BASELINE):
        gain = self._gain(self.machine_name, self._conditions.host, job.model, job.batch)
        return {BASELINE: step(1.1), CUDNN: step(1.0, 0.1), ASYNC: step(2 / (1 + gain), 0.2), TURBODL: step(1 / gain, 0.9 / gain)}


def as_published(machine: str, host: str, model: str, batch: int) -> float:
    """Gains that rise with the depth, fall with the batch, and are smaller on the K20."""
    depth = [name for name, _ in SCOPE.depths].index(model) if model in dict(SCOPE.depths) else 0
    return 1.3 + 0.02 * depth - batch / 5000 - (0.05 if machine == "k20" else 0.0)


def test_the_work_of_alexnets_layers():
    counts = list(turbodl._multiplications().values())
    assert counts[:2] == [55 * 55 * 96 * 11 * 11 * 3, 27 * 27 * 256 * 5 * 5 * 48], "in two groups, an output reads 48 of 96 channels"
    assert (counts[4], counts[-1]) == (13 * 13 * 256 * 3 * 3 * 192, 4096 * 1000)


def test_claims_hold_if_gains_are_as_published():
    checks = {check.name: check for check in turbodl.reproduce(Given(as_published)).checks}
    assert {name: check.holds for name, check in checks.items()} == dict.fromkeys(checks, True)
    assert checks["batch"].said.startswith("7 of 7 networks as claimed: lenet5 1.287x, then 1.249x")
    assert all(not check.reason for check in checks.values())


def test_a_claim_that_does_not_hold_says_what_an_experiment_found():
    checks = {check.name: check for check in turbodl.reproduce(Given(lambda *case: 1.2)).checks}
    assert [name for name, check in checks.items() if not check.holds] == ["batch", "depth", "card"]
    assert checks["depth"].reason.endswith("with 18 images for all depths the gains are 1.200x, 1.200x, 1.200x, 1.200x, 1.200x")
    assert checks["card"].reason.endswith("kernels of lenet5 overlap in 90 % of the step on the smaller card, in 90 % on the larger one")


def test_both_sides_are_issued_by_caffe():
    hosts = set()
    turbodl.reproduce(Given(lambda machine, host, model, batch: hosts.add(host) or 1.2))
    assert hosts == {"caffe", "pytorch"}, "the other one is a column of its own"
    assert turbodl.predictions() == 4 * 7 + 6 * 3 + 2 + 2 * 5
