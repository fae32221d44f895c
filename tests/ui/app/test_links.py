"""A request as a command line and as a link."""

import shlex
from urllib.parse import parse_qs, urlencode

import pytest

from ui.app.links import command, query_of, request_fields
from ui.app.model import Request

REQUESTS = [
    Request("lenet5", 8, strategies=("baseline",)),
    Request(
        "my models/net.py:make", 24, None, "adam", "fused", "amp", "dgx-h100", ("gpipe:microbatches=4", "turbodl"), 2, "copy:0.5", None, 2,
        1.5, "nhwc", "graph", 16.0, "memory=2,sms=0.5", (("overlap", "off"),),
    ),
]  # fmt: skip


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_link_holds_the_whole_request(request_):
    query = parse_qs(urlencode(query_of(request_), doseq=True))
    assert Request(**request_fields(query)) == request_


def test_the_command_line_takes_what_the_link_has(stepcast):
    asked = Request("lenet5", 8, precision="bf16", machine="h100", strategies=("baseline", "turbodl:alpha=2"), scale="memory=2")
    words = shlex.split(command(asked, "--json"))
    assert words[0] == "stepcast"
    answer = stepcast.call(*words[1:])
    assert answer.status == 0, answer.err
    rows = answer.document["predictions"]
    assert [(row["strategy"], row["precision"]) for row in rows] == [
        (name, "bf16") for name in ("pytorch", "pytorch-graph", "baseline", "turbodl")
    ]


def test_what_a_link_cannot_mean_is_left_out():
    assert request_fields({"batch": ["many"], "memory-limit": ["nan"], "clip-norm": ["inf"], "nosuch": ["1"], "model": [""]}) == {}
    assert request_fields({"optimizer": ["adam"]}) == {"optimizer": "adam", "form": "foreach"}
