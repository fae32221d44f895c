"""`schedcast reproduce deepa`: table 2, bytes, configurations and speed-ups of per-layer parallelism."""

import pytest

from simulator.model.job import Job
from simulator.papers import deepa, deepa_claims
from simulator.papers.deepa import BATCH, PAPER, DeepaScope
from simulator.papers.deepa import Network as Case
from simulator.papers.deepa_claims import ALL, DEEPA, DEEPA_LATE, IMAGE, TENSORFLOW_NODES, Divided
from simulator.papers.deepa_figures import Layers
from simulator.papers.predicting import Steps, speedup
from simulator.strategies.sharding.configuration import Configuration
from simulator.strategies.sharding.configurations import layer_called
from simulator.strategies.sharding.network import Network
from traces.documents.reproduction import OK
from traces.errors import Code, Refusal
from ui.present.reproductions import about_words

SMALL = DeepaScope(
    networks=(deepa.SCOPE.networks[0], Case("nothing", "no_such_net", "no_such_net")),
    batches=(BATCH,),
    clusters=False,
    large=False,
    slower=True,
    convolutions=deepa.SCOPE.convolutions,
    layers=deepa.SCOPE.layers,
)


#: Models by their number of classes.
CLASSES = {1_000: "alexnet", 21_841: "alexnet_22k", 21_840: ""}


@pytest.fixture(scope="module")
def alexnet():
    return Divided.search(Job("alexnet", BATCH), PAPER.machine, deepa.SERVER)


@pytest.fixture(scope="module")
def paper():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deepa, "SCOPE", SMALL)
        seen = []
        yield deepa.reproduce(Steps(PAPER.machine, seen.append))
        assert len(seen) == PAPER.predictions()


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
    stretches = [(row.labels["costs"], row.labels["layers"], row.labels["configuration"]) for row in paper.table("configurations").rows]
    repaired = [stretch[1:] for stretch in stretches if stretch[0] == "paper, repaired"]
    assert repaired[:2] == [("features.0 to classifier.0", "n=16"), ("classifier.1 to classifier.6", "c=2")], "figure 9"
    assert ("paper, printed", "features.0 to classifier.4", "c=16") in stretches
    moved = paper.table("bytes").rows[0]
    assert moved.predicted("DeePa") < moved.predicted("OWT") < moved.predicted("image")
    gains = paper.table("speedups").rows[0]
    assert gains.predicted("DeePa / PyTorch") > gains.predicted("DeePa / TensorFlow") > gains.predicted("OWT / image") > 1
    verdicts = {check.name: check.holds for check in paper.checks}
    assert verdicts["fc6"]
    assert verdicts["AlexNet's convolutions"]
    assert verdicts["bytes of OWT"]
    assert verdicts["speed-ups"]
    assert verdicts["OWT over image parallelism"] is False
    assert verdicts["VGG-16's last convolutions"] is None, "VGG-16 is not in the scope"


def test_synchronous_training_is_as_fast_as_asynchronous_training_if_backward_hides_the_sums():
    node = {"AlexNet": Steps(deepa.NODE).predict(Job("alexnet", 128), [DEEPA, DEEPA_LATE])}
    check = deepa_claims.as_fast_as_asynchronous(node)
    assert check.holds
    assert 1 <= check.figures["AlexNet"] < 1.01


def test_a_network_that_cannot_be_captured_keeps_its_rows(paper):
    for name in ("bytes", "speedups", "steps", "batches", "configurations", "search", "rates"):
        assert "unknown model 'no_such_net'" in paper.table(name).rows[-1].status
        assert paper.table(name).rows[0].status == OK


def test_the_picture_has_every_layer_with_its_inputs(paper, alexnet):
    (network,) = paper.networks
    assert [layer.name for layer in network.layers] == [layer.name for layer in alexnet.network.layers]
    assert [layer.inputs for layer in network.layers] == [(), *((number,) for number in range(len(network.layers) - 1))]
    assert {layer.degrees for layer in network.layers} == {(16, 1, 1, 1), (1, 2, 1, 1)}


def test_the_page_says_what_is_fitted(paper):
    (_, words) = about_words(paper)
    assert "Predicted for k80x16; the bandwidth of the one pipe of the paper's own costs, by one number of table 2, is fitted" in words


def test_slower_links_are_an_experiment_of_its_own(paper):
    """At a third of the rates the frameworks' gradients take longer, which OWT's activations do not."""
    row = next(row for row in paper.table("rates").rows if row.labels["links"] == "0.33")
    whole = paper.table("speedups").rows[0]
    assert row.labels == {"network": "AlexNet", "machine": "16 K80", "links": "0.33"}
    for gain in ("DeePa / TensorFlow", "DeePa / PyTorch", "OWT / image"):
        assert row.predicted(gain) > whole.predicted(gain)
    (check,) = (check for check in paper.checks if check.name == "OWT over image parallelism")
    assert f"at a third of it, OWT gains AlexNet {row.predicted('OWT / image'):.2f}x" in check.reason
    assert [row.labels["links"] for row in paper.table("rates").rows[:3]] == ["4.00", "2.00", "0.04"]


#: AlexNet for one class less than ImageNet-22K, as a user's model.
EVEN = """
import torch
from simulator.model.workloads.networks.chains import AlexNet

def make(batch):
    return AlexNet(224, 21840), (torch.zeros(batch, 3, 224, 224),), torch.zeros(batch, dtype=torch.long)
"""


def test_21841_classes_have_no_equal_parts(tmp_path):
    """They are a prime, so that the last layer cannot be divided by channel, as 21,840 can. That is most of what DeePa loses."""
    (tmp_path / "even.py").write_text(EVEN)
    models = {classes: f"{tmp_path / 'even.py'}:make" if classes == 21_840 else name for classes, name in CLASSES.items()}
    channels = {}
    for classes, model in models.items():
        network = Network(Job(model, 16).graph())
        channels[classes] = {own.c for own in network.legal(layer_called(network, "fc8"), 16)}
    assert channels[21_841] == {1}
    assert 16 in channels[21_840]
    assert channels[1_000] == {1, 2, 4, 5, 8, 10}
    steps = {classes: Steps(PAPER.machine).predict(Job(model, BATCH), [DEEPA])[DEEPA].step_s for classes, model in models.items()}
    assert steps[21_840] - steps[1_000] < 0.15 * (steps[21_841] - steps[1_000])


def test_figures_1_to_3_are_those_of_single_layers(alexnet):
    layers = Layers({"AlexNet": alexnet}, SMALL.convolutions, SMALL.layers, ())
    assert set(layers.throughputs) == {"C5", "C6"}, "the convolutions of AlexNet"
    assert all(min(own.values()) == 1 and Configuration(n=16) in own for own in layers.throughputs.values())
    conv2 = next(layer for layer, own in enumerate(alexnet.network.layers) if own.name == "features.3")
    by_image = alexnet.tables.compute_s[conv2][alexnet.tables.place(conv2, Configuration(n=16))]
    assert alexnet.throughputs(conv2)[Configuration(n=16)] == pytest.approx(BATCH / by_image)
    assert alexnet.by_image_s(conv2, 16) > by_image, "with the sum of its gradients"


def test_by_channel_the_first_linear_layer_of_vgg_moves_less_the_fewer_images_there_are():
    vgg = Divided.search(Job("vgg16", 16, 32), "p100x4", deepa.SERVER)
    saved = Layers({"VGG-16": vgg}, {}, (), (256, 512)).saved
    assert saved == {256: 16.0, 512: 8.0}, "2 x 2 weights over 2 x 2 inputs: 4,096 outputs over the images"


def test_claims_without_predictions_are_not_judged():
    missing = {"AlexNet": Refusal(Code.MODEL, "it is late")}
    steps = {"AlexNet": dict.fromkeys((*ALL, DEEPA_LATE, TENSORFLOW_NODES), Refusal(Code.MODEL, "it is late"))}
    checks = [
        *deepa_claims.of_configurations(missing), *deepa_claims.of_steps(steps, {}, {("AlexNet", BATCH): steps["AlexNet"]}, {}),
        *deepa_claims.of_clusters(steps, steps, [{}, {}]), *deepa_claims.of_large_networks(missing, missing, steps, steps),
        *Layers(missing, SMALL.convolutions, SMALL.layers, SMALL.batches).checks(), deepa_claims.on_four(None),
    ]  # fmt: skip
    assert {check.holds for check in checks} == {None}
    assert {check.name for check in checks} | {"fc6", "table 2"} == {own.name for own in PAPER.claims}
    assert speedup(steps["AlexNet"], DEEPA, IMAGE) is None
