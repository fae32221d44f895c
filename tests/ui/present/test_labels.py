"""Labels of timelines, lanes, options and rows."""

import pytest

from tests.support.page_samples import result
from traces.documents.comparison import Shares
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
    assert differing(told) == "staleness: 0 1, 1 0; batch norm: statistics per device; notes: one, two"


def test_where_costs_come_from():
    shares = Shares(measured=0.9, fitted=0.06, guessed=0.04)
    assert source_words(shares) == "90.0 % measured here, 6.0 % estimated from other ops, 4.0 % from specifications"
    assert source_words(shares, here=False).startswith("90.0 % measured elsewhere")
    assert source_words(Shares(measured=0.0, fitted=0.0, guessed=1.0)) == "100.0 % from specifications"


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
    assert division({"divided": divided}) == "n=2 from features.0 to features.2, c=2 in classifier.1, n=1 in loss"
    assert division({"staleness": 0}) == ""
    assert not differing({"divided": divided}), "layers that are divided compute what whole ones do"


def test_titles_name_a_users_model_without_its_folders():
    assert model_name("/home/me/work/my_model.py:make") == "my_model.py:make"
    assert [model_name(name) for name in ("resnet18", "package.module:make", "torchvision:vgg16")] == [
        "resnet18", "package.module:make", "torchvision:vgg16",
    ]  # fmt: skip
