"""The predictor of the app's tests. It answers with synthetic timelines and refuses strategies that have none.

Batches of TOO_LARGE or more do not fit.
"""

from dataclasses import replace

from simulator.machine.presets import HOSTS
from simulator.model.job import NAMED
from simulator.predict.largest_batch import Fitting
from simulator.predict.search.ranking import Ranking
from tests.support.sample_runs import CASES, play
from tests.support.search_samples import of_a_language_model, search_result
from traces.documents.comparison import Change, MemoryNeed, Prediction, Shares
from traces.documents.predictions import Normal, Place, Predictions
from traces.errors import Code, Refusal, SchedcastError
from ui.service.jobs import Answer, Figure, MachineFacts

TOO_LARGE = 4096


def choices():
    return {
        **NAMED,
        "model": ("small-cnn", "resnet50"),
        "optimizer": ("sgd", "adam"),
        "form": ("foreach", "fused"),
        "precision": ("fp32", "bf16"),
        "strategies": ("baseline", "turbodl", "1f1b", "gpipe"),
        "machine": ("h200", "this-cpu"),
        "mode": ("eager", "graph"),
        "host": HOSTS,
    }


def facts(request):
    about = f"132 SMs, 66.9 TFLOP/s ({request.settled.precision})"
    return MachineFacts(4, {"memory": Figure(100.0, "GB/s")}, about=about, cautions=("The device throttled while it was measured: power.",))


def fitting(request, strategy):
    return Fitting(3000, ("--checkpoint full",))


def speed(request, strategy, measured_s):
    (answer,) = predict_many(replace(request, strategies=(strategy,))).values()
    return Normal(step_s=answer.prediction.step_s, interval_s=answer.prediction.interval_s, measured_s=measured_s)


def in_editor(request, strategy, order=None):
    raise SchedcastError(f"{strategy} is synthetic and has no plan; choose another predictor")


def search(request, progress):
    if request.batch == 13:
        raise SchedcastError("batch 13 is not divisible by 2 microbatches; choose another batch")
    names = request.strategies or ("baseline", "turbodl")
    for number, name in enumerate(names, 1):
        progress(number, len(names), name)
    result = of_a_language_model() if request.tries else search_result(fits=request.batch < TOO_LARGE)
    return Ranking(result, play("predicted", CASES["turbodl"]), None)


def document(request):
    place = Place(model=request.model, batch=request.batch, machine=request.machine)
    told = {text: own if isinstance(own, Refusal) else own.prediction for text, own in predict_many(request).items()}
    return Predictions.of((place, text, own, "") for text, own in told.items())


def predict_many(request):
    if request.batch == 13:
        raise SchedcastError("batch 13 is not divisible by 2 microbatches; choose another batch", Code.BATCH)
    base = play("predicted", CASES["baseline"])
    answers = {}
    for text in request.strategies:
        strategy, _, options = text.partition(":")
        if strategy not in CASES:
            answers[text] = Refusal(Code.DEVICES, f"needs 2 devices, {request.machine} has 1; choose a machine with more")
            continue
        timeline = play("predicted", CASES[strategy])
        fits = request.batch < TOO_LARGE
        prediction = Prediction(
            strategy=strategy,
            options=dict(option.split("=") for option in options.split(",") if option),
            mode="eager",
            precision=request.settled.precision,
            step_s=timeline.step_s,
            interval_s=(timeline.step_s * 0.96, timeline.step_s * 1.05),
            baseline_step_s=base.step_s,
            speedup=base.step_s / timeline.step_s,
            devices=timeline.devices,
            fits=fits,
            memories=(MemoryNeed(name="hbm", needed_bytes=2**30 if fits else 20 * 2**30, size_bytes=16 * 2**30),),
            waterfall=(Change(part="overlap of backward", seconds=timeline.step_s - base.step_s),) if strategy != "baseline" else (),
            exposed_transfer_s=0.0,
            bubble_share=timeline.bubble_share,
            tasks=len(timeline.spans),
            simulate_wall_s=0.01,
            shares=Shares(measured=0.0, fitted=0.0, guessed=1.0),
            critical_path=timeline.critical_path,
        )
        answers[text] = Answer(prediction, timeline, text=text)
    return answers
