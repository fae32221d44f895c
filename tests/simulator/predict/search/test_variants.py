"""Variants of the job: what is tried, and that nothing which is left out without a simulation would have won or fitted."""

from dataclasses import replace

import pytest

from simulator.engine.costs.model import CostModel
from simulator.engine.memory.over_time import beside_bytes
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.predict.search.evaluation import evaluate
from simulator.predict.search.least import least_of, microbatch_of
from simulator.predict.search.ranking import rank
from simulator.predict.search.search import Cache, candidates, search
from simulator.predict.search.setup import Setup
from simulator.predict.search.variants import read_tries, split, usual_tries, varied
from simulator.predict.target import Target
from traces.errors import SchedcastError

LM = "lm:form=llama,layers=2,d_model=256,heads=4,ffn=512,vocab=500"
JOB = Job(LM, 8, 128, precision="amp", autocast="gpu", optimizer="adamw")
STRATEGIES = (
    "fsdp:shard=1", "fsdp:prefetch=0", "fsdp:tp=2", "fsdp:cp=2,shard=1", "data-parallel:bucket=1", "1f1b:stages=2", "gpipe:stages=2",
    "1f1b:stages=1,tp=2", "1f1b:stages=1,replicas=2,shard=1", "fsdp:reshard=off",
)  # fmt: skip
TRIES = {"accumulate": ("1", "2", "4"), "checkpoint": ("none", "full")}


def here(calls):
    """Evaluate in this process."""
    return (function(*arguments) for function, arguments in calls)


@pytest.fixture(scope="module")
def setup():
    machine = load_machine("2xh100")
    return Setup(JOB, Target.of(CostModel(machine)))


@pytest.fixture(scope="module")
def everything(setup):
    """All candidates, simulated."""
    return search(setup, candidates(setup, STRATEGIES, TRIES), here, prune=False)


def test_a_language_model_on_several_devices_is_tried_with_other_microbatches_and_checkpointing(setup):
    usual = {"accumulate": ("1", "2", "4", "8"), "checkpoint": ("none", "selective", "full")}
    assert usual_tries(JOB, setup.target.machine) == usual
    assert usual_tries(replace(JOB, accumulate=2, batch=6), setup.target.machine) == {"checkpoint": usual["checkpoint"]}
    assert usual_tries(replace(JOB, checkpoint="full"), setup.target.machine) == {"accumulate": usual["accumulate"]}
    assert usual_tries(Job("resnet18", 16), setup.target.machine) == usual_tries(JOB, load_machine("h100")) == {}
    texts = candidates(setup, ["fsdp:shard=1", "turbodl:alpha=2"], read_tries(["accumulate=1,2", "checkpoint=none,full"]))
    assert texts[:2] == ["fsdp:shard=1 --accumulate 1 --checkpoint none", "fsdp:shard=1 --accumulate 2 --checkpoint none"]
    assert len(texts) == 8  # explicit values are tried with every strategy
    assert "turbodl:alpha=2" in candidates(setup, ["fsdp:shard=1", "turbodl:alpha=2"])


def test_a_language_model_is_tried_with_stages_divided_layers_tokens_and_experts():
    def tried(job, machine):
        return {split(text)[0] for text in candidates(Setup(job, Target.of(CostModel(load_machine(machine)))))}

    few = tried(replace(JOB, batch=64), "16xh100")
    assert {"fsdp:tp=8,shard=1", "1f1b:stages=16", "1f1b:stages=4,replicas=4,shard=1", "1f1b:stages=2,tp=8"} <= few
    assert not [text for text in few if "cp=" in text or "ep=" in text]
    assert {"fsdp:cp=4", "fsdp:tp=4,cp=8"} <= tried(replace(JOB, batch=64, image_size=32768), "16xh100")
    assert "fsdp:ep=8" in tried(replace(JOB, model=f"{LM},experts=8,active=2,expert_ffn=64", batch=64), "16xh100")


def test_what_a_pipeline_does_by_default_is_tried_once(setup):
    """It has four microbatches for two stages."""
    texts = candidates(setup, ["1f1b:stages=2"], {"accumulate": ("1", "2", "4")})
    assert texts == ["1f1b:stages=2 --accumulate 2", "1f1b:stages=2 --accumulate 4"]
    texts = candidates(replace(setup, shared={"microbatches": "2"}), ["1f1b:stages=2"], {"accumulate": ("1", "4")})
    assert texts == ["1f1b:stages=2 --accumulate 1", "1f1b:stages=2 --accumulate 4"]  # the latter contradicts it


def test_the_text_of_a_candidate_says_its_strategy_and_its_job():
    assert split("fsdp:shard=1 --accumulate 4 --checkpoint budget:1GiB") == (
        "fsdp:shard=1", {"accumulate": "4", "checkpoint": "budget:1GiB"},
    )  # fmt: skip
    job = varied(JOB, "fsdp --accumulate 4 --checkpoint full")
    assert (job.accumulate, job.checkpoint, job.batch) == (4, "full", JOB.batch)
    assert varied(JOB, "fsdp") == JOB


def test_what_cannot_be_tried_is_refused_in_one_line():
    for text, said in (
        ("batch=1,2", "--try"),
        ("accumulate=0", "at least 1"),
        ("accumulate=", "at least 1"),
        ("checkpoint=some", "checkpoint"),
    ):
        with pytest.raises(SchedcastError, match=said):
            read_tries([text])


def test_one_capture_serves_all_variants_of_checkpointing(setup, monkeypatch):
    captured = []
    own = Job._load_or_capture
    monkeypatch.setattr(Job, "_load_or_capture", lambda job, *arguments: captured.append(arguments) or own(job, *arguments))
    job = replace(JOB, seed=1)
    for checkpoint in ("none", "selective", "full"):
        job.varied(accumulate=2, checkpoint=checkpoint).graph(2, 8)
    assert captured == [(2, 8, False)]


@pytest.mark.thorough
def test_a_search_with_pruning_finds_what_a_simulation_of_everything_finds(setup, everything):
    reserved = sorted(each.simulated.memories[0].reserved_bytes for each in everything.simulated)
    middle = reserved[len(reserved) // 2]  # a driver and a context take less of a small memory than of an H100's
    tight = replace(setup, target=replace(setup.target, machine=setup.target.machine.with_memory_limit(middle + beside_bytes(middle))))
    texts = candidates(tight, STRATEGIES, TRIES)
    pruned = rank(search(tight, texts, here)).result
    every = rank(search(tight, texts, here, prune=False)).result
    steps = {plan.plan: plan for plan in every.plans}
    assert (pruned.best, pruned.winner.step_s) == (every.best, every.winner.step_s)
    assert pruned.pruned
    assert all(plan.bound_s <= steps[plan.plan].step_s * 1.002 for plan in pruned.pruned)
    large = [plan for plan in pruned.refused if plan.excess_bytes]
    assert large
    assert not any(steps[plan.plan].fits for plan in large)
    assert min(plan.peak_bytes for plan in pruned.fitting) < pruned.winner.peak_bytes  # though none of those can win
    assert {(plan.accumulate, plan.checkpoint) for plan in every.plans} == {(n, how) for n in (1, 2, 4) for how in ("none", "full")}


def is_bounded(setup, each) -> bool:
    """Whether what is known of a candidate before it is planned is true of its simulated plan."""
    bound = least_of(setup, each.text)
    memories = {device.memory for device in setup.target.machine.devices}
    needed = max(need.needed_bytes for need in each.simulated.memories if need.name in memories)
    return 0 < bound.step_s <= each.simulated.step_s and 0 < bound.held_bytes <= needed


@pytest.mark.thorough
def test_nothing_takes_or_holds_less_than_what_is_known_before_it_is_planned(setup, everything):
    assert [each.text for each in everything.simulated if not is_bounded(setup, each)] == []
    assert len(everything.simulated) == 6 * len(STRATEGIES) - 8  # what four pipelines do by default is tried once


@pytest.mark.thorough
@pytest.mark.parametrize("checkpoint", ["none", "selective", "full"])
@pytest.mark.parametrize(
    "strategy",
    [
        "1f1b:stages=4",
        "gpipe:stages=4,placement=1-2-9",
        "1f1b:stages=2,tp=2",
        "1f1b:stages=2,replicas=2,shard=1",
        "fsdp:tp=4,sp=off",
        "fsdp:ep=2",
    ],
)
def test_nor_do_plans_of_four_devices(strategy, checkpoint):
    machine = load_machine("4xh100")
    experts = ",experts=4,active=2,expert_ffn=64" if "ep=" in strategy else ""
    own = Setup(replace(JOB, model=f"{LM}{experts}", batch=16), Target.of(CostModel(machine)))
    for accumulate in (2, 4):
        assert is_bounded(own, evaluate(own, f"{strategy} --accumulate {accumulate} --checkpoint {checkpoint}"))


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", [*STRATEGIES, "fsdp:shard=2", "fsdp:shard=1,gradients=fused", "data-parallel"])
def test_nor_do_plans_whose_parameters_are_larger_than_their_activations(setup, strategy):
    """Whole parameters and gradients are most of what they hold."""
    wide = replace(setup, job=replace(JOB, model=LM.replace("ffn=512", "ffn=4096"), image_size=8), microbatches={})
    for accumulate in (2, 4):
        each = evaluate(wide, f"{strategy} --accumulate {accumulate} --checkpoint none")
        assert is_bounded(wide, each)


def test_what_is_held_at_least_does_not_shrink_as_microbatches_grow(setup):
    """A search does not look at larger ones where smaller ones do not fit, but at a single one, which no gradients lie beside."""
    for text in STRATEGIES:
        for checkpoint in TRIES["checkpoint"]:
            held = {}
            for accumulate in TRIES["accumulate"]:
                candidate = f"{text} --accumulate {accumulate} --checkpoint {checkpoint}"
                microbatch, portion = microbatch_of(setup, candidate)
                if portion.microbatches > 1:
                    held[microbatch.graph[0]] = least_of(setup, candidate).held_bytes
            assert len(held) >= 2
            assert [held[size] for size in sorted(held)] == sorted(held.values()), (text, checkpoint)


@pytest.mark.thorough
def test_what_was_simulated_because_it_may_be_small_stays_in_the_cache(setup, tmp_path, monkeypatch):
    monkeypatch.setenv("SCHEDCAST_CACHE", str(tmp_path))
    texts = candidates(setup, ("fsdp:shard=1", "fsdp:tp=2"), TRIES)
    first = search(setup, texts, here, cache=Cache(setup.digest))
    best_s = rank(first).result.winner.step_s
    assert [each.text for each in first.simulated if each.least.step_s > 2 * best_s]  # pruned at first

    def nobody(calls):
        raise AssertionError(list(calls))

    for _ in range(2):
        again = search(setup, texts, nobody, cache=Cache(setup.digest))
        assert rank(again).result.document() == rank(first).result.document()


def test_a_plan_at_its_limit_does_not_win_while_another_one_has_room(setup):
    """Parameters that stay gathered make the step shorter. What is reserved for them is nine tenths of the memory."""
    wide = Job("lm:form=llama,layers=2,d_model=512,heads=4,ffn=131072,vocab=500", 2, 16, precision="amp", autocast="gpu", optimizer="adamw")
    texts = ["fsdp:reshard=off", "fsdp:prefetch=0"]
    free = evaluate(replace(setup, job=wide, microbatches={}), texts[0])
    limit = int(free.simulated.memories[0].reserved_bytes / 0.9)
    result = rank(
        search(
            replace(setup, job=wide, target=replace(setup.target, machine=setup.target.machine.with_memory_limit(limit)), microbatches={}),
            texts,
            here,
        )
    ).result
    roomy, limited = result.plans
    assert (result.best, roomy.at_limit, limited.at_limit) == (texts[1], False, True)
    assert limited.fits
    assert limited.step_s < roomy.step_s
    assert (roomy.probability, limited.probability) == (1, 0)


def test_a_plan_that_cannot_fit_is_refused_before_it_is_simulated(setup):
    small = replace(setup, target=replace(setup.target, machine=setup.target.machine.with_memory_limit(10**7)))
    refused = evaluate(small, "fsdp --accumulate 2", float("inf"))
    assert refused.refusal.words.startswith("needs at least")
    assert refused.refusal.excess_bytes > 0
    assert evaluate(small, "fsdp --accumulate 2").simulated.why_not


def test_copies_of_a_job_have_the_factory_that_it_was_given():
    """Which may be of a model that its name does not lead to."""
    job, other = Job("lenet5", 4), Job("tests/support/mlp.py:make", 4).factory
    job.__dict__["factory"] = other
    copies = [job.varied(accumulate=2), job.varied(checkpoint="full"), job.with_seed(1), job.on("gpu"), job.planned(compact=True)]
    assert all(copy.factory is other for copy in copies)
    assert job.varied(accumulate=2).graph().parameters == Job("tests/support/mlp.py:make", 4, accumulate=2).graph().parameters
