"""Options that several strategies have are declared once, and one table says which of them go together."""

import pytest

from simulator.strategies import registry as strategies
from simulator.strategies.options import TOGETHER
from tests.support.refusals import refuses
from traces.errors import Code

#: By row of the table, two options that do not go together, and two that do.
EXAMPLES = {
    ("gradients", "update"): ("data-parallel:gradients=kept,update=asynchronous", "1f1b:gradients=kept,update=backward-fusion"),
    ("gradients", "streams"): ("data-parallel:gradients=kept,streams=turbodl", "data-parallel:gradients=freed,streams=turbodl"),
    ("gradients", "shard"): ("fsdp:gradients=fused,shard=2", "fsdp:gradients=fused,shard=1"),
    ("shard", "replicas"): ("1f1b:shard=1", "1f1b:shard=1,replicas=2"),
    ("ep", "tp"): ("fsdp:ep=2,tp=2", "fsdp:ep=2,tp=1"),
    ("ep", "cp"): ("fsdp:ep=2,cp=2", "fsdp:ep=1,cp=2"),
    ("layers", "streams"): ("turbodl:layers=caffe,async=off,streams=off", "turbodl:layers=caffe,async=off"),
    ("layers", "async"): ("turbodl:layers=caffe", "turbodl:layers=shared,async=on"),
    ("workers", "devices"): ("bppsa:workers=2,devices=2", "bppsa:workers=1,devices=2"),
    ("microbatches", "then"): ("hybrid-pipeline:microbatches=4", "hybrid-pipeline:microbatches=4,then=1f1b"),
}


@pytest.mark.parametrize("row", TOGETHER, ids=lambda row: f"{row.option} and {row.other}")
def test_every_row_refuses_what_does_not_go_together(row):
    apart, together = EXAMPLES[row.option, row.other]
    with refuses(Code.REQUEST, f"^strategy {apart.partition(':')[0]}: {row.option}=.* goes with {row.other}=.*{row.why}"):
        strategies.parse(apart)
    strategies.parse(together)


@pytest.mark.parametrize(
    "text", ["fsdp:prefetch=-1", "fsdp:tp=0", "gpipe:replicas=0", "interleaved-1f1b:per_device=0", "deepa:simulated=0"]
)
def test_a_number_that_is_too_small_is_refused(text):
    name, _, option = text.partition(":")
    with refuses(Code.REQUEST, f"^strategy {name}: {option.replace('=', ' is ')}; expected at least [01]$"):
        strategies.parse(text)


def test_a_shared_option_is_described_alike_and_a_strategy_may_add_to_it():
    docs = {name: {option: words for option, words, _ in strategies.get(name).option_docs()} for name in ("data-parallel", "fsdp", "gpipe")}
    assert docs["fsdp"]["tp"] == docs["gpipe"]["tp"]
    shared = docs["gpipe"]["gradients"]
    assert all(docs[name]["gradients"].startswith(f"{shared} ") for name in ("data-parallel", "fsdp"))


def test_every_option_is_described():
    assert not [(each.name, option) for each in strategies.every() for option, words, _ in each.option_docs() if not words]
