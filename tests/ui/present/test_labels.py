"""Labels of timelines, lanes, options and rows."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from math import dist

import pytest

from simulator.machine.presets import load_machine
from simulator.plan.editor.editor import Fault, Move
from tests.support.golden import check_words
from tests.support.page_samples import prediction, result, skipped, validation
from tests.support.sample_trainings import training
from tests.support.search_samples import search_result
from traces.documents.comparison import Shares
from traces.documents.profile import Contention, Dispatch, Identity, Interference, KeyCost, LoopCosts, Profile, Stats
from traces.documents.verdict import Gain
from ui.present import labels, machines, predictions, searches, trainings, validations
from ui.present.edits import MOST_FAULTS, best_words, cost_words, fault_lines, move_words
from ui.present.formulas import FORMULAS, PREDICTED, column_formulas, formulas_markdown, formulas_of
from ui.present.labels import (
    differing,
    division,
    headline,
    lane_label,
    markdown_escaped,
    model_name,
    options_text,
    plotly_escaped,
    row_labels,
    source_words,
)


def test_headline():
    assert headline(0.0412, 0.0420) == "predicted 41.2 ms, measured 42.0 ms: -1.9 %"
    assert headline(0.0412, None) == "predicted 41.2 ms"


def test_lanes_and_options():
    assert lane_label("gpu0", "0") == "gpu0 stream 0"
    assert lane_label("gpu0", "copy in") == "gpu0 copy in"
    assert options_text({"async": False, "alpha": 2, "level": "channel"}) == "async=off,alpha=2,level=channel"


def test_semantics_say_only_what_differs():
    assert differing({"staleness": 0, "notes": [], "batch_norm": "", "scan_level": 3}) == ""
    assert differing({"staleness": {"0": 0, "1": 0}}) == ""
    told = {"staleness": {"0": 1, "1": 0}, "batch_norm": "statistics per device", "notes": ["one", "two"]}
    assert [each.partition(":")[0] for each in differing(told).split("; ")] == ["staleness", "batch norm", "notes"]
    check_words("what differs from plain training", {"stale weights, batch norm and notes": differing(told)})


def test_where_costs_come_from():
    shares = Shares(measured=0.9, fitted=0.06, guessed=0.04)
    check_words("sources of costs", {
        "here": source_words(shares),
        "elsewhere": source_words(shares, here=False),
        "specifications alone": source_words(Shares(measured=0.0, fitted=0.0, guessed=1.0)),
    })  # fmt: skip


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("plain words: 3.1 ms", "plain words\\: 3.1 ms"),
        ("![i](http://h/x)", "!\\[i\\](http\\:\u2060//h/x)"),
        ("www.h.example", "www\u2060.h.example"),
        (":red[x] $$y$$ `z`", "\\:\u2060red\\[x\\] \\$\\$y\\$\\$ \\`z\\`"),
        ("- a\n\n1. b", "\\- a 1. b"),
        ("1. a", "1\\. a"),
        ("&lt;b> me@h.example", "\\&lt;b\\> me@\u2060h.example"),
    ],
)
def test_markdown_shows_names_as_they_are(text, escaped):
    assert markdown_escaped(text) == escaped


def test_plotly_shows_names_as_they_are():
    assert plotly_escaped('<a href="x">$y$</a> &lt;') == '&lt;a href="x"&gt;&#36;y&#36;&lt;/a&gt; &amp;lt;'


def test_rows_of_one_strategy_differ_by_their_options():
    rows = [
        result("turbodl", options={"alpha": 1, "beta": 3}),
        result("turbodl", options={"alpha": 2, "beta": 3}),
        result("gpipe", options={"stages": 2}),
    ]
    assert row_labels(rows) == ["turbodl:alpha=1", "turbodl:alpha=2", "gpipe"]


def test_layers_that_are_divided_alike_are_named_once():
    divided = {"features.0": "n=2", "features.2": "n=2", "classifier.1": "c=2", "loss": "n=1"}
    check_words("how layers are divided", {"two alike, one by channels, one not": division({"divided": divided})})
    assert division({"staleness": 0}) == ""
    assert not differing({"divided": divided}), "layers that are divided compute what whole ones do"


def test_titles_name_a_users_model_without_its_folders():
    assert model_name("/home/me/work/my_model.py:make") == "my_model.py:make"
    assert [model_name(name) for name in ("resnet18", "package.module:make", "torchvision:vgg16")] == [
        "resnet18", "package.module:make", "torchvision:vgg16",
    ]  # fmt: skip


# Every quantity has its formula, and a column means what its table says.


#: Columns of the tables below that are names, notes, or counts.
NO_QUANTITIES = {
    "", "strategy", "plan", "status", "fits", "trained by", "iterations", "seconds", "first loss", "loss, mean of the last 5 %",
}  # fmt: skip


@pytest.mark.parametrize(
    "row",
    [
        validations.validation_cells(validation(result()))[0],
        predictions.prediction_rows([prediction()])[0],
        searches.cells(search_result())[0],
        trainings.cells(training(5, "turbodl", "autograd"))[0],
    ],
    ids=["validation", "prediction", "search", "training"],
)
def test_every_column_that_is_a_quantity_has_its_formula(row):
    assert set(row) - set(column_formulas(row)) <= NO_QUANTITIES
    assert set(column_formulas(row).values()) <= set(FORMULAS)


def test_a_measured_speedup_has_another_formula_than_a_predicted_one():
    (measured, *_), (predicted,) = validations.validation_cells(validation(result())), predictions.prediction_rows([prediction()])
    assert column_formulas(measured)["against PyTorch"] == "Against PyTorch, measured"
    assert column_formulas(predicted)["against PyTorch"] == "Against PyTorch"


def test_the_times_of_a_task_are_not_those_of_a_step():
    heads = ["task", "predicted ms", "measured ms", "longer by ms", "likely cause"]
    assert "Step time" not in formulas_of(heads)
    assert list(formulas_of(heads)) == ["Task time", "Longer by", "Likely cause"]


def test_the_quantities_of_a_prediction_are_explained_as_markdown():
    assert all(f"**{name}.**" in formulas_markdown(PREDICTED) for name in PREDICTED)


def test_a_column_that_no_table_has_is_no_quantity():
    assert formulas_of(["notes"]) == {}


# Words of the schedule editor.


def test_moves_and_what_an_order_costs():
    check_words("words of an edit", {
        "before a task": move_words(["a"], Move("a", "cuda:0", 1, "b")),
        "several tasks to the end, with a priority": move_words(["a", "b"], Move("a", "cuda:0", 1, priority=-1)),
        "25.8 ms, and 22.7 ms in its own order": cost_words(0.0258, 0.0227, "turbodl", edited=True),
        "22.7 ms, and 25.8 ms in its own order": cost_words(0.0227, 0.0258, "turbodl", edited=True),
        "22.7 ms in both orders": cost_words(0.0227, 0.0227, "turbodl", edited=True),
        "its own order": cost_words(0.0227, 0.0227, "turbodl", edited=False),
        "20 ms are the best and its own": best_words(0.02, 0.02, 3),
        "20 of 30 ms after one edit": best_words(0.03, 0.02, 1),
        "20 of 30 ms without an edit": best_words(0.03, 0.02, 0),
    })  # fmt: skip


def test_many_faults_are_cut_short():
    faults = [Fault(number, f"fault {number}") for number in range(MOST_FAULTS + 2)]
    assert fault_lines(faults[:2]) == ["fault 0", "fault 1"]
    assert fault_lines(faults)[-1] == "... and 2 more"


def against(strategy: str, measured: float, interval: tuple[float, float] | None, **more):
    """A row with its speed-up over plain PyTorch, which takes 0.04 s."""
    return result(strategy, 0.05, measured, against_pytorch=0.04 / measured, against_pytorch_interval=interval, **more)


def test_the_headline_is_the_fastest_strategy_against_plain_pytorch():
    base = against("baseline", 0.05, (0.78, 0.82), measured_speedup_interval=None)
    best = against("turbodl", 0.03, (1.29, 1.37), measured_speedup_interval=(1.6, 1.7))
    document = validation(base, best, skipped())
    assert document.fastest == best
    assert document.headline_gain == Gain(0.04 / 0.03, (1.29, 1.37), "faster")


def test_a_noisy_machine_has_no_clear_headline():
    noisy = validation(against("turbodl", 0.03, (0.8, 2.2)), aa_spread=0.6)
    assert noisy.headline_gain.verdict == "cannot tell"
    assert validation(skipped()).headline_gain is None


def test_a_busy_machine_is_the_headline():
    busy = validation(against("turbodl", 0.03, (1.29, 1.37)), busy_share=0.46)
    words = labels.busy_line(0.46)
    assert "46 % of the cores" in words
    assert validations.headline(busy).startswith(words)
    quiet = validation(against("turbodl", 0.03, (1.29, 1.37)))
    first, second = validations.headlines([quiet, busy])
    assert first.startswith(words), "the first line, whatever job it is about"
    assert second.startswith("small-cnn: turbodl is 1.33x")
    assert labels.busy_line(0.1) == labels.busy_line(None) == ""
    assert "of the GPU" in labels.busy_line(0.2, "gpu")


def test_a_machine_that_changed_its_speed_is_named_beside_the_headline():
    """A neighbor on the same host takes memory bandwidth, but none of the CPU time of this machine: only the steps themselves show it."""
    swung, steady = (
        validation(*(against(name, 0.03, (1.29, 1.37), measured_runs_s=steps_s * 4) for name in ("turbodl", "baseline")))
        for steps_s in ((0.03, 0.06), (0.03, 0.033))
    )
    assert (swung.unsteady, steady.unsteady, validation(skipped()).unsteady) == (True, False, False)
    assert "2.0 times as long" in validations.headline(swung)
    assert "times as long" not in validations.headline(steady)


# The colors of pictures and charts.


#: How far colors of one legend are apart at least, in CIELAB: 2 can just be told apart side by side, 5 cannot in a legend.
FAR = 15


def lab(color):
    """A color such as #12A37B in CIELAB."""
    shares = (int(color[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares)
    rows = ((0.4339, 0.3762, 0.1899), (0.2126, 0.7152, 0.0722), (0.0178, 0.1095, 0.8729))
    x, y, z = (number ** (1 / 3) if number > 0.008856 else 7.787 * number + 16 / 116
               for number in (r * red + g * green + b * blue for r, g, b in rows))  # fmt: skip
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def test_a_color_has_one_meaning():
    groups = (labels.PHASE, labels.CHANGE, labels.KIND, {**labels.VERDICT, "faster": labels.SHORTER, "slower": labels.LONGER})
    single = (labels.OTHER, labels.CRITICAL, labels.LIMIT, labels.PREDICTED, labels.MEASURED, labels.GREY, labels.IDLE)
    used = Counter([*single, *labels.LINES, *(color for group in groups for color in group.values())])
    assert [color for color, times in used.items() if times > 1] == []


def test_kinds_of_memory_do_not_look_like_phases_or_each_other():
    """They stand in one legend."""
    colors = {name: lab(color) for name, color in {**labels.PHASE, **labels.KIND}.items()}
    near = [(kind, other) for kind in labels.KIND for other in colors if other != kind and dist(colors[kind], colors[other]) < FAR]
    assert near == []


# A machine and its profile in tables and warnings.


NOW = datetime(2026, 6, 1, tzinfo=UTC)


def profile(**changes):
    identity = Identity(kind="cpu", cpu="EPYC", cores=2, torch="2.13.0", extras={"system": "Linux"})
    return Profile(**({"identity": identity, "updated": "2026-05-30T10:00:00+00:00"} | changes))


def test_the_figures_of_a_preset_have_sources():
    rows = {row["figure"]: row for row in machines.specification_cells(load_machine("p100x4"))}
    assert rows["devices"]["value"] == "4"
    assert rows["memory bandwidth"]["value"].endswith("GB/s")
    assert all(rows[name]["source"] for name in ("SMs", "peak, fp32", "memory", "memory bandwidth"))
    assert machines.link_cells(load_machine("p100x4"))
    assert {row["from"] for row in machines.host_cells(load_machine("h100"), None)} >= {load_machine("h100").sources["dispatch_s"]}


def test_measured_host_times_come_before_assumed_ones():
    own = profile(dispatch=Dispatch(task_overhead_s=2e-5), loop=LoopCosts(forward_s=3e-5))
    rows = {row["time"]: (row["us"], row["from"]) for row in machines.host_cells(load_machine("this-cpu"), own)}
    assert rows["executor's own time per task"] == ("20.0", "measured")
    assert rows["PyTorch's own loop: per op of the forward pass"] == ("30.0", "measured")
    slow = profile(loop=LoopCosts(forward_s=3.6e-3))
    assert {"time": "PyTorch's own loop: per op of the forward pass", "us": "3600", "from": "measured"} in machines.host_cells(
        load_machine("this-cpu"), slow
    )
    assert rows["until a sleeping worker starts a task"][1] != "measured"


def test_updates_warm_and_cold():
    cost = KeyCost(Stats.from_samples([0.001]), Stats.from_samples([0.0025]), "update.adam:foreach", 1.0, 2**20)
    rows = machines.update_cells(profile(costs={"update.adam:foreach|x@2": cost, "mm@2": cost._replace(op_class="matmul")}))
    assert rows == [
        {"update": "adam:foreach", "SMs (cores)": "2", "moves": "1 MiB", "warm ms": "1.00", "cold ms": "2.50", "cold / warm": "2.50",
         "spread": "0.0 %"}
    ]  # fmt: skip


def test_an_update_by_several_threads_says_how_many():
    cost = KeyCost(Stats.from_samples([0.001]), None, "update.adam:foreach", 1.0, 2**20)
    (row,) = machines.update_cells(profile(costs={"update.adam:foreach|x@2-threads": cost}))
    assert row["SMs (cores)"] == "2 threads on one op"


def test_a_machine_without_sources_has_no_column_for_them():
    (cells, *_) = machines.specification_cells(replace(load_machine("this-cpu"), sources={}))
    assert list(cells) == ["figure", "value"]


def test_co_runs_by_pair():
    runs = [Interference("compute", "memory", slow, 1.1) for slow in (1.2, 1.4)]
    own = profile(contention=Contention(multipliers={"compute|memory": 1.3}, co_runs=runs, held_out_error=0.1, held_out_error_without=0.2))
    (row,) = machines.co_run_cells(own)
    assert (row["takes longer, measured"], row["multiplier"]) == ("1.20x to 1.40x", "1.30")
    used = machines.co_run_words(own)
    assert machines.co_run_words(profile()) == ""
    own.other_contention = {"bf16": own.contention.model_copy(update={"multipliers": {}})}
    assert [(row["task"], row["multiplier"]) for row in machines.co_run_cells(own)] == [("compute", "1.30"), ("compute, bf16", "none")]
    check_words("words of interference runs", {"fp32": used, "also bf16, whose multipliers are not used": machines.co_run_words(own)})


def test_a_fresh_profile_of_this_machine_has_no_warnings():
    assert machines.warnings(profile(), profile().identity, NOW) == []
    assert (machines.age_days(profile(), NOW), machines.age_days(profile(updated=NOW.isoformat()), NOW)) == (1, 0)


def test_a_profile_says_how_old_it_is_and_how_much_longer_sustained_work_takes():
    one, longer = (Stats.from_samples([seconds]) for seconds in (0.01, 0.012))
    costs = {"mm@2": KeyCost(longer, longer, burst_s=0.01), "relu@2": KeyCost(one, one)}
    check_words("age of a profile", {
        "of yesterday": machines.age_words(profile(), NOW),
        "of today": machines.age_words(profile(updated=NOW.isoformat()), NOW),
        "a product takes 12 ms, and 10 ms in a burst": machines.age_words(profile(costs=costs), NOW),
    })  # fmt: skip


def test_warnings_about_age_throttling_software_and_failures():
    identity = profile().identity.model_copy(update={"throttle": {"reasons": ["power"]}})
    own = profile(
        identity=identity, updated="2025-01-01T00:00:00+00:00", notes=["clocks drifted by 8 %"], failures={"mm@2": "out of memory"},
        contention=Contention(disturbed=True),
    )  # fmt: skip
    here = profile().identity.model_copy(update={"torch": "2.11.0"})
    assert machines.age_days(own, NOW) == 516
    check_words("warnings of a profile", {"of another software, old, throttled, disturbed, incomplete": machines.warnings(own, here, NOW)})
    assert machines.age_days(profile(updated="some day"), NOW) is None
    assert {"what": "system", "value": "Linux"} in machines.version_cells(identity)
