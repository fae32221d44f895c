"""`schedcast deepa-cost`: the paper's table 2, exact bytes, and what it refuses."""

import pytest

from tests.support.refusals import refused

FC6 = ("deepa-cost", "--model", "alexnet", "--batch", 512, "--layer", "fc6", "--machine", "k80x16")


def rows_of(schedcast, *options):
    done = schedcast.call(*FC6, *options, "--json")
    assert (done.status, done.err) == (0, "")
    assert done.document["schema"] == "schedcast.deepa-cost/1"
    return done.document["rows"]


def test_table_2(schedcast):
    images, channels, two, four = rows_of(schedcast, "--config", "n=16", "--config", "c=16", "--config", "c=2", "--config", "c=4")
    assert images["config"] == {"n": 16, "c": 1, "h": 1, "w": 1}
    assert (images["workers"], images["transfer_s"]) == (16, 0)
    assert images["update_s"] == pytest.approx(1.075, rel=0.02)
    assert channels["transfer_s"] == pytest.approx(0.1344, rel=0.02)
    assert channels["update_s"] == 0
    assert min((images, channels, two, four), key=lambda row: row["total_s"]) == two, "the paper chose two workers"
    assert all(row["total_s"] == pytest.approx(row["transfer_s"] + row["compute_s"] + row["update_s"]) for row in (images, channels, two))


def test_exact_bytes_are_those_that_leave_a_device(schedcast):
    channels, one = rows_of(schedcast, "--config", "c=2", "--config", "n=1", "--input-config", "n=2")
    inputs = 4 * 512 * 9216
    assert channels["exact_bytes"] == 2 * inputs, "each worker has half of the images and needs the other half; gradients go back"
    assert one["exact_bytes"] == inputs, "half of the images and their gradients"
    assert channels["transfer_s"] == pytest.approx(2 * 2 * inputs / 4.494e9), "the paper counts whole inputs"


def test_the_table_for_people(schedcast):
    done = schedcast.call(*FC6, "--config", "n=16", "--config", "c=2")
    assert done.status == 0
    assert "classifier.1 (512 x 4096) on k80x16" in done.out
    assert "1075" in done.out


@pytest.mark.parametrize(
    ("options", "fragments"),
    [
        (
            ("--config", "n=3"),
            ("layer classifier.1 (512 x 4096) cannot be divided into n=3: its degrees are n: 1, 2, 4, 8, 16; c: 1, 2, 4, 8, 16",),
        ),
        (("--config", "h=2"), ("cannot be divided into h=2",)),
        (("--config", "n=32"), ("cannot be divided into n=32", "for at most 16 workers")),
        (("--config", "images=2"), ("'images=2' in 'images=2' is no degree of parallelism; give them as in n=4,h=2",)),
        (("--config", "n=2", "--input-config", "n=5"), ("layer classifier.0 (512 x 9216) cannot be divided into n=5",)),
        (("--config", "n=2", "--set", "overlap=on"), ("--set overlap=on", "leave it out")),
        (("--config", "n=2", "--layer", "fc9"), ("--layer is given 2 times",)),
    ],
)
def test_refusals(schedcast, options, fragments):
    refused(schedcast.call(*FC6, *options), *fragments)


def test_an_unknown_layer_is_refused_with_all_names(schedcast):
    wrong = [*FC6[:6], "fc66", *FC6[7:]]
    refused(
        schedcast.call(*wrong, "--config", "n=2"),
        "unknown layer 'fc66' (did you mean 'fc6'?)",
        "features.0, ",
        "conv1 to conv5, fc6 to fc8",
    )
