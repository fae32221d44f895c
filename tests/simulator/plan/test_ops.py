"""A plan or a graph may only name pure tensor ops, whatever file it comes from."""

import json

import pytest
import torch

from simulator.machine.presets import load_machine
from simulator.model.capture import cache
from simulator.model.job import Job
from simulator.model.ops.aten_json import resolve
from simulator.plan.json import dump, load
from simulator.plan.task import allowed
from simulator.strategies import registry as strategies
from tests.support.jobs import planned
from tests.support.pure_ops import overloads, pure
from tests.support.refusals import refuses
from tests.support.small_plans import forward_fused
from traces.errors import Code
from traces.files import read_json, write_json

#: Ops that write files, take files, or reach outside their results.
IMPURE = ["aten.from_file.default", "aten.set_.source_Storage", "aten.record_stream.default", "aten._cufft_set_plan_cache_max_size.default"]


def test_every_op_on_the_list_is_pure_by_its_schema():
    listed = [op for op in overloads() if str(op) in allowed()]
    assert len(listed) > 1000
    assert [str(op) for op in listed if not pure(op)] == []


@pytest.mark.parametrize("target", IMPURE)
def test_an_op_with_effects_is_not_on_the_list(target):
    assert isinstance(getattr(getattr(torch.ops.aten, target.split(".")[1]), target.split(".")[2]), torch._ops.OpOverload)
    with refuses(Code.REQUEST):
        resolve(target)


@pytest.mark.parametrize("target", [*IMPURE, "aten.mm", "os.system", "", "prims.add.default"])
def test_a_plan_that_names_another_op_is_refused(target):
    document = dump(forward_fused())
    document["segments"][0]["tasks"][1]["body"]["target"] = target
    with refuses(Code.FILE):
        load(document)


def test_a_view_step_that_names_another_op_is_refused():
    document = dump(forward_fused())
    document["gradients"]["w1"]["views"] = [{"target": "aten.from_file.default", "args": "[]"}]
    with refuses(Code.FILE):
        load(document)


def test_a_cached_graph_that_names_another_op_counts_as_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("SCHEDCAST_CACHE", str(tmp_path))
    graph = Job("lenet5", 2).graph()
    cache.store(("poisoned",), graph)
    assert cache.load(("poisoned",)) == graph
    path = cache._path(("poisoned",))
    document = read_json(path, "graph")
    document["ops"][0]["body"]["target"] = "aten.from_file.default"
    write_json(path, document)
    assert cache.load(("poisoned",)) is None


@pytest.mark.sampled(5)
@pytest.mark.parametrize("model", ["lenet5", "gru_features", "rnn_bitstream", "vgg11_pruned", "transformer_base", "googlenet"])
def test_the_ops_of_captured_models_are_on_the_list(model):
    graph = Job(model, 2).graph()
    named = {op.body.target for op in graph.ops}
    named |= {view.target for op in graph.ops for operand in (*op.inputs, *op.writes) for view in operand.views}
    assert named - allowed() == set()


def test_the_plans_of_every_strategy_are_read_back():
    job, machine = Job("lenet5", 4), load_machine("2xgtx1060")
    for name in strategies.names():
        plan = planned(name, job, machine)
        assert load(json.loads(json.dumps(dump(plan)))) == plan, name
