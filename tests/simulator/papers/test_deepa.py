"""`schedcast reproduce deepa`: table 2, bytes, configurations and speed-ups of per-layer parallelism."""

import pytest

from simulator.model.job import Job
from simulator.papers import deepa, deepa_claims
from simulator.papers.deepa import BATCH, PAPER, DeepaScope, Network
from simulator.papers.deepa_claims import ALL, DEEPA, DEEPA_LATE, IMAGE, Divided
from simulator.papers.predicting import Steps, speedup
from simulator.strategies.sharding.configuration import Configuration
from traces.documents.reproduction import OK
from traces.errors import Code, Refusal
from ui.present.reproductions import about_words

SMALL = DeepaScope(
    networks=(deepa.SCOPE.networks[0], Network("nothing", "no_such_net", "no_such_net")), batches=(BATCH,), clusters=False, large=False
)


@pytest.fixture(scope="module")
def alexnet():
    return Divided.search(Job("alexnet", BATCH), PAPER.machine, deepa.SERVER)


@pytest.fixture(scope="module")
def paper():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deepa, "SCOPE", SMALL)
        seen = []
        yield deepa.reproduce(Steps(PAPER.machine, seen.append))
        assert len(seen) == deepa.predictions()


def test_owt_moves_8_times_less_than_image_parallelism(alexnet):
    ratio = alexnet.paper_bytes(alexnet.image) / alexnet.paper_bytes(alexnet.uneven_owt)
    assert ratio == pytest.approx(PAPER.values("owt_bytes")["AlexNet"], rel=0.05)
    weights = 4 * (61_100_840 - 64 - 192 - 384 - 256 - 256 - 4096 - 4096 - 1000)
    assert alexnet.paper_bytes(alexnet.image) == 2 * 16 * weights
    assert alexnet.uneven_owt[-2] == Configuration(c=16), "1,000 channels among 16, as the paper must have divided them"
    assert alexnet.owt[-2] == Configuration(n=16)


def test_inception_v3_gains_little_by_owt():
    own = Divided.search(Job("inception_v3_no_aux", 16, 75), "p100x4", deepa.SERVER)
    image, owt = own.paper_bytes(own.image), own.paper_bytes(own.owt)
    linear = 2 * 4 * 4 * 2048 * 1000
    assert image - owt == pytest.approx(linear - 2 * 4 * (4 * 16 * 2048) - 2 * 4 * 16 * 1000)


def test_exact_bytes_of_image_parallelism_are_gradients_alone(alexnet):
    assert alexnet.exact_bytes(alexnet.image) == 2 * 15 * 4 * 61_100_840


def test_table_2_is_reproduced(paper):
    rows = {row.labels["configuration"]: row for row in paper.table("fc6").rows}
    figures = {(config, figure.name): figure for config, row in rows.items() for figure in row.figures}
    for config, name in (("n=16", "update"), ("n=16", "total"), ("c=16", "transfer"), ("c=16", "total")):
        assert figures[config, name].ratio == pytest.approx(1, abs=0.02)
    assert min(rows, key=lambda config: figures[config, "total"].predicted) == "c=2"


def test_configurations_bytes_and_steps_of_alexnet(paper):
    stretches = [(row.labels["layers"], row.labels["configuration"]) for row in paper.table("configurations").rows]
    assert stretches[0] == ("features.0 to classifier.0", "n=16")
    assert stretches[1][1] == "c=2"
    moved = paper.table("bytes").rows[0]
    assert moved.predicted("DeePa") < moved.predicted("OWT") < moved.predicted("image")
    gains = paper.table("speedups").rows[0]
    assert gains.predicted("DeePa / frameworks") > gains.predicted("OWT / image") > 1
    verdicts = {check.name: check.holds for check in paper.checks}
    assert verdicts["fc6"]
    assert verdicts["AlexNet's convolutions"]
    assert verdicts["bytes of OWT"]
    assert verdicts["OWT over image parallelism"] is False
    assert verdicts["VGG-16's last convolutions"] is None, "VGG-16 is not in the scope"


def test_synchronous_training_is_as_fast_as_asynchronous_training_if_backward_hides_the_sums():
    node = {"AlexNet": Steps(deepa.NODE).predict(Job("alexnet", 128), [DEEPA, DEEPA_LATE])}
    check = deepa_claims.as_fast_as_asynchronous(node)
    assert check.holds
    assert 1 <= check.figures["AlexNet"] < 1.01


def test_a_network_that_cannot_be_captured_keeps_its_rows(paper):
    for name in ("bytes", "speedups", "steps", "batches", "configurations"):
        assert "unknown model 'no_such_net'" in paper.table(name).rows[-1].status
        assert paper.table(name).rows[0].status == OK


def test_the_picture_has_every_layer_with_its_inputs(paper, alexnet):
    (network,) = paper.networks
    assert [layer.name for layer in network.layers] == [layer.name for layer in alexnet.network.layers]
    assert [layer.inputs for layer in network.layers] == [(), *((number,) for number in range(len(network.layers) - 1))]
    assert {layer.degrees for layer in network.layers} == {(16, 1, 1, 1), (1, 2, 1, 1), (2, 1, 1, 1)}


def test_the_page_says_what_is_fitted(paper):
    (_, words) = about_words(paper)
    assert "Predicted for k80x16; the bandwidth of the pipe of all K80, by one number of table 2, is fitted to the paper." in words


def test_claims_without_predictions_are_not_judged():
    missing = {"AlexNet": Refusal(Code.MODEL, "it is late")}
    steps = {"AlexNet": dict.fromkeys((*ALL, DEEPA_LATE), Refusal(Code.MODEL, "it is late"))}
    checks = [
        *deepa_claims.of_configurations(missing), *deepa_claims.of_steps(steps, {("AlexNet", BATCH): steps["AlexNet"]}),
        *deepa_claims.of_clusters(steps, steps), *deepa_claims.of_large_networks(missing, missing, steps, steps),
    ]  # fmt: skip
    assert [check.holds for check in checks] == [None] * 16
    assert speedup(steps["AlexNet"], DEEPA, IMAGE) is None
