"""The page, the picture, the sentences and the app's chart of a training."""

import io
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from rich.console import Console

from tests.support.golden import check_words
from tests.support.sample_trainings import evaluated, training
from traces.documents.training import TrainingRun, first_difference
from ui.present import trainings
from ui.present.page import page
from ui.present.terminal import show
from ui.present.trainings import training_figure


def test_the_folder(tmp_path):
    document = training(12, "baseline", "autograd")
    place = trainings.write(tmp_path / "out", document)
    assert sorted(path.name for path in place.parent.iterdir()) == ["index.html", "loss.svg", "run.json"]
    assert TrainingRun.load(place.parent / "run.json") == document
    words = [element.text for element in ElementTree.parse(place.parent / "loss.svg").iter()]
    assert "lenet5, batch 64, momentum 0.01, fp32, eager" in words
    assert [word for word in words if word in ("Loss over iterations", "Loss over measured seconds")] == [
        "Loss over iterations", "Loss over measured seconds",
    ]  # fmt: skip
    assert words.count("plain PyTorch") == words.count("baseline") == 2
    text = place.read_text()
    assert "digits &lt;8x8&gt;" in text
    assert "losses identical, bit for bit" in text
    assert "staleness" not in text
    assert "baseline differs from plain training: staleness: 2" in printed(training(3, "baseline", semantics={"staleness": 2}))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("document", [training(3, "a", worst=None), training(2), training(2, "a", worst=None, complete=False)])
def test_odd_trainings_are_drawn_too(tmp_path, document):
    assert trainings.write(tmp_path, document).exists()
    assert training_figure(document).layout.title.text


def test_long_curves_are_means_over_neighbors_with_few_points():
    noise = np.tile([1.0, 3.0], 5000)
    means = trainings.smoothed(noise)
    assert abs(means[200:-200] - 2.0).max() < 0.01
    (line,) = trainings.lines(training(10_000, "a"))
    assert line.smooth
    assert len(line.iterations) <= trainings.POINTS
    assert (line.iterations[0], line.seconds[0]) == (1, pytest.approx(0.01))
    (short,) = trainings.lines(training(20, "a"))
    assert not short.smooth
    assert list(short.means) == list(short.values)


def test_words():
    same = training(10, "turbodl", "autograd")
    first, other = same.curves
    apart = other.model_copy(update={"losses": (*other.losses[:-1], 1.0)})
    assert first_difference(first, apart, 1e-3) == 10
    check_words("words of a training", {
        trainings.title(same): printed(same),
        "losses that differ": printed(same.model_copy(update={"curves": (first, apart)})),
        "beside another strategy": printed(training(10, "turbodl", "baseline")),
        "to an accuracy": printed(evaluated("stale", "autograd", seeds=3)),
        "to an accuracy, alone": printed(evaluated("stale", seeds=1)),
        "to an accuracy that is not reached": printed(evaluated("stale", seeds=1, target=0.99)),
    })  # fmt: skip


def printed(document):
    """The lines that `schedcast run` prints."""
    console = Console(file=io.StringIO(), width=250)
    show(console, *trainings.blocks(document), details=False)
    return console.file.getvalue().splitlines()


def test_plain_pytorch_is_the_first_row_with_its_threads():
    first, other = training(10, "turbodl", "autograd").curves
    plain = other.model_copy(update={"about": "plain PyTorch, 2 threads"})
    rows = trainings.cells(training(10, "turbodl", "autograd", curves=(first, plain)))
    assert [row["trained by"] for row in rows] == ["plain PyTorch (2 threads)", "turbodl"]
    assert [row["against PyTorch"] for row in rows] == ["1.00x", "1.20x (1.20 to 1.20), faster"]
    assert [row["losses against PyTorch"] for row in rows] == ["-", "losses identical, bit for bit"]


def test_the_apps_chart_has_all_curves_over_the_chosen_measure():
    document = training(300, "baseline", "autograd")
    figure = training_figure(document)
    named = [trace.name for trace in figure.data if trace.name]
    assert named == ["plain PyTorch", "baseline"]
    assert len(figure.data) == 4  # and the faint losses of each
    assert list(trainings.measures(document)) == ["iterations", "measured seconds"]
    over_seconds = training_figure(document, "measured seconds")
    assert over_seconds.layout.title.text == "Loss over measured seconds"
    assert over_seconds.data[-1].x[-1] == pytest.approx(3.0)
    assert figure.data[-1].x[-1] == 300


def test_accuracies_and_predicted_seconds_are_drawn():
    document = evaluated("stale", "autograd", seeds=3)
    figure = training_figure(document, "predicted seconds")
    assert figure.layout.title.text == "Loss and test accuracy over predicted seconds"
    assert figure.layout.xaxis.title.text == "seconds predicted for 2xgtx1060"
    shares = [trace for trace in figure.data if trace.yaxis == "y2" and trace.name]
    assert [trace.name for trace in shares] == ["plain PyTorch", "stale"]
    assert [list(trace.x) for trace in shares] == [pytest.approx([0.0, 0.2, 0.4]), pytest.approx([0.0, 0.1, 0.2])]
    assert "successive evaluations" in page("Training", [trainings.section(document)])


def test_a_line_of_several_seeds_is_their_median_in_a_band():
    (plain, stale) = trainings.accuracies(evaluated("stale", "autograd", seeds=3))
    assert (plain.name, plain.seeds) == ("plain PyTorch", 3)
    assert [list(values) for values in (plain.low, plain.means, plain.high)] == [[10, 86, 96], [10, 87, 97], [10, 88, 98]]
    assert stale.seconds[-1] == pytest.approx(0.2)
    (losses, _) = trainings.lines(evaluated("stale", "autograd", seeds=3))
    assert list(losses.low) == list(losses.high) == list(losses.means)  # of equal curves


def test_words_of_accuracy_and_target():
    document = evaluated("stale", "autograd", seeds=3)
    (wins,) = document.wins
    assert (wins.seeds, wins.iterations, wins.measured_s, wins.predicted_s) == (3, 0, 3, 3)
    plain, stale = trainings.cells(document)
    assert stale["test accuracy"] == "94.0 % (93.0 to 95.0)"
    assert (stale["iterations to 90 %"], plain["predicted s to 90 %"]) == ("20 (20 to 20)", "0.400 (0.400 to 0.400)")
    (alone,), (never,) = evaluated("stale", seeds=1).reached, evaluated("stale", seeds=1, target=0.99).reached
    assert (alone.iterations, alone.measured_s, never.iterations) == (20, pytest.approx(0.2), None)
    assert len(trainings.training_table(document).rows) == 2


def test_losses_that_differ_by_design_are_no_rounding():
    first, other = training(10, "stale", "autograd").curves
    apart = other.model_copy(update={"losses": (*other.losses[:-1], 1.0)})
    stale = training(10, "stale", curves=(first, apart), semantics={"staleness": 2})
    assert not any("rounding" in line for line in trainings.sentences(stale))
