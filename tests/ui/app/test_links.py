"""A request as a command line and as a link."""

import shlex
from dataclasses import fields
from urllib.parse import parse_qs, urlencode

import pytest

from simulator.model.job import NAMED
from simulator.strategies import registry as strategies
from tests.support.page_samples import result, validation
from ui.app.links import command, query_of, request_fields, request_of
from ui.app.request_form import option_fields, option_values, strategy_text
from ui.request import DECLARED, FILES, JobRequest
from ui.service import jobs

REQUESTS = [
    JobRequest("lenet5", 8, strategies=("baseline",)),
    JobRequest(
        "my models/net.py:make", 24, optimizer="adam", form="fused", precision="amp", machine="dgx-h100",
        strategies=("gpipe:microbatches=4", "turbodl"), devices=2, link="copy:0.5", accumulate=2, clip_norm=1.5, layout="nhwc",
        mode="graph", memory_limit=16.0, host="caffe", scale="memory=2,sms=0.5", settings=("overlap=off",),
    ),
]  # fmt: skip


def test_the_app_offers_the_names_that_a_job_accepts():
    offered = jobs.choices()
    assert {name: set(offered[name]) for name in NAMED} == {name: set(names) for name, names in NAMED.items()}
    assert set(offered) <= {option.name for option in DECLARED}, "a control is looked up by the field of the request"


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_link_holds_the_whole_request(request_):
    query = parse_qs(urlencode(query_of(request_), doseq=True))
    assert JobRequest(**request_fields(query)) == request_


def test_the_command_line_takes_what_the_link_has(schedcast):
    asked = JobRequest("lenet5", 8, precision="bf16", machine="h100", strategies=("baseline", "turbodl:alpha=2"), scale="memory=2")
    words = shlex.split(command(asked, "--json"))
    assert words[0] == "schedcast"
    answer = schedcast.call(*words[1:])
    assert answer.status == 0, answer.err
    rows = answer.document["predictions"]
    assert [(row["strategy"], row["precision"]) for row in rows] == [
        (name, "bf16") for name in ("pytorch", "pytorch-graph", "baseline", "turbodl")
    ]


def test_the_command_that_repeats_a_validation():
    here = validation(result(), result("baseline", options={}))
    line = "schedcast validate --model small-cnn --batch 64"
    assert command(request_of(here), name="validate") == (
        f"{line} --optimizer sgd:foreach --precision fp32 --strategy turbodl:alpha=2 --strategy baseline"
    )
    changes = {"device": {"kind": "gpu", "devices": 2}, "image_size": 32, "mode": "graph", "optimizer": "adam:fused"}
    assert command(request_of(here.model_copy(update=changes)), name="validate") == (
        f"{line} --image-size 32 --optimizer adam:fused --precision fp32 --mode graph --device cuda --devices 2"
        " --strategy turbodl:alpha=2 --strategy baseline"
    )


def test_what_a_link_cannot_mean_is_left_out():
    assert request_fields({"batch": ["many"], "memory-limit": ["nan"], "clip-norm": ["inf"], "nosuch": ["1"], "model": [""]}) == {}
    assert request_fields({"optimizer": ["adam"]}) == {"optimizer": "adam", "form": "foreach"}


# The form of a strategy's options: every strategy has one, and what it holds is what the command line takes.


#: Another value of a field than its default, by kind.
OTHER = {
    "switch": lambda field: not field.default,
    "choice": lambda field: field.choices[-1] if field.choices[-1] != field.default else field.choices[0],
    "open": lambda field: "3",
    "number": lambda field: field.default + 1 if isinstance(field.default, int) else field.default / 2,
    "text": lambda field: "3",
}


#: Options that are refused without others.
TOGETHER: dict[str, dict[str, object]] = {
    "shard": {"replicas": 2}, "gradients": {"shard": "1", "replicas": 2}, "layers": {"async": False},
}  # fmt: skip


@pytest.mark.parametrize("name", strategies.names())
def test_every_option_of_every_strategy_has_a_field(name):
    known = strategies.get(name)
    offered = option_fields(name)
    assert {field.name for field in offered} == set(known.option_names) - FILES.keys()
    assert len(fields(known.options_type)) == len(known.option_names)
    assert all(field.about for field in offered), "each option is explained"
    assert strategy_text(name, {field.name: field.default for field in offered}) == name
    for field in offered:
        chosen = {field.name: OTHER[field.kind](field)} | TOGETHER.get(field.name, {})
        chosen = {option: value for option, value in chosen.items() if option in known.option_names}
        text = strategy_text(name, chosen)
        strategies.parse(text)
        assert option_values(text) == chosen


def test_values_that_no_field_holds_are_left_out():
    assert option_values("turbodl:async=maybe,fuse=sideways,nosuch=1") == {}
    assert option_values("1f1b:stages=two") == {}
    assert option_values("nosuch:a=1") == {}
