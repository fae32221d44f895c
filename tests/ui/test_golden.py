"""What pages say about fixed, hand-made documents of every kind, word by word: a golden text for each."""

from pathlib import Path

import pytest

from simulator.engine.costs.op_points import key_points
from tests.support.document_samples import documents
from tests.support.golden import check_golden, words_file, words_of_page
from tests.support.page_samples import prediction, result, skipped, validation
from tests.support.sample_trainings import evaluated, training
from tests.support.search_samples import ranked, search_result, verification
from traces.documents.comparison import Change, MemoryNeed
from traces.documents.measured_step import MeasuredStep
from traces.documents.profile import Profile
from traces.documents.search_result import PlainStep
from traces.documents.timeline import AtPeak, Holder
from traces.files import write_json
from ui.commands.reporting import DOCUMENTS as PAGES
from ui.commands.reporting import sections_of
from ui.present import machines
from ui.present.blocks import Section
from ui.present.page import page

GIB = 2**30


def held(device: str, size: int) -> AtPeak:
    kinds = {"activation": size - GIB // 2, "parameter": GIB // 2}
    return AtPeak(
        device=device, bytes=size, time_s=0.041, task="t", layer="conv2", phase="backward", by_kind=kinds,
        largest=(Holder(storage="y", kind="activation", layer="bn1", bytes=size // 4),), replicated_bytes=GIB // 2,
    )  # fmt: skip


def predictions():
    """One that fits, on some of the GPUs; those that do not fit; one at the limit; and one on costs that were hardly measured."""
    yield "a prediction", prediction(
        at_peak=(held("gpu0", GIB), held("gpu1", GIB * 13 // 4)), unused_devices=2, speedup_interval=(1.2, 1.3),
        against_pytorch=1.16, against_pytorch_interval=(0.9, 1.3), faster_than_pytorch_probability=0.7,
        waterfall=(Change(part="overlap of backward", seconds=-0.02), Change(part="contention", seconds=0.01)),
    )  # fmt: skip
    need = MemoryNeed(name="hbm", needed_bytes=GIB * 213 // 10, size_bytes=16 * GIB)
    yield "a prediction too large", prediction(fits=False, memories=(need,), at_peak=(held("gpu0", 21 * GIB),), largest_batch=176)
    for changes in (True, False):
        name = "a prediction for which no batch fits" if changes else "a prediction without other changes"
        yield name, prediction(fits=False, batch_sought=True, changes_sought=changes)
    tight = MemoryNeed(name="hbm", needed_bytes=72 * GIB, size_bytes=80 * GIB, allocated_bytes=69 * GIB, reserved_bytes=71 * GIB)
    yield "a prediction at its limit", prediction(memories=(tight,), at_limit=("turbodl",))
    yield "a prediction without a verdict", prediction(measured_share=0.1, assumed=("the target, which is random",))


def validations():
    """With drifted costs; with a fastest schedule that is faster; and one in which nothing ran."""
    yield "a validation", validation(result("baseline", 0.05, 0.05, drift=1.0), result("turbodl", 0.04, 0.042, drift=1.0), skipped())
    faster = result(against_pytorch=1.16, against_pytorch_interval=(1.08, 1.22), semantics={"staleness": 2})
    counted = {"predicted_peak_bytes_by_device": {"cpu:0": 99}, "measured_peak_bytes_by_device": {"cpu:0": 100}}
    yield "a validation with a gain", validation(result("baseline", 0.05, 0.05, **counted), faster)
    yield "a validation without runs", validation(skipped())


def searches():
    """Ranked; verified, with every outcome; with stale weights; beside PyTorch; on costs hardly measured; and without a plan that fits."""
    yield "a search", search_result()
    yield "a search verified", search_result(verification=verification(("a", 1, 1.0, 1.1), ("b", 2, 2.1, 1.0), ("c", 1, 1, None)))
    yield "a search whose ranking holds", search_result(verification=verification(("a", 1, 1.1, 1.2), ("b", 2, 2.1, 2.3)))
    yield "a search of which nothing ran", search_result(verification=verification(("c", 1, 1, None)))
    rounds = {"a": [1.0, 1.1, 1.0, 1.1], "b": [1.1, 1.0, 1.1, 1.0]}
    yield "a search too close to tell", search_result(verification=verification(("a", 1, 1, 1.0), ("b", 1, 1, 1.01), rounds=rounds))
    measured = verification(("turbodl:fuse=backward", 10, 11, 12), ("baseline", 20, 19, 11))
    yield "a search won by another plan", search_result(verification=measured, best="baseline")
    stale = ranked("pipedream", 0.010, 3.0, probability=0.97, semantics={"staleness": 1, "stages": 2})
    fresh = ranked("gpipe", 0.012, 3.0, (1.1, 1.3), semantics={"stages": 2})
    yield "a search with stale weights", search_result(plans=(stale, fresh), best="pipedream", rival=None)
    before = MeasuredStep(step_s=0.0192, against_pytorch=0.77, against_pytorch_interval=(0.7, 0.8), date="2026-01-31")
    plain = PlainStep(step_s=0.018, interval_s=(0.017, 0.02), peak_bytes=GIB, measured=before)
    loop = PlainStep(strategy="pytorch-ddp", step_s=0.02, interval_s=(0.017, 0.04), peak_bytes=GIB, fits=False)
    now = before.model_copy(update={"step_s": 0.025})
    plans = (search_result().plans[0].model_copy(update={"measured": now}), *search_result().plans[1:])
    yield "a search beside PyTorch", search_result(pytorch=plain, parallel=(loop,), plans=plans)
    yield "a search without a verdict", search_result(measured_share=0.1, machine="this-cpu")
    yield "a search without a plan that fits", search_result(fits=False)


def trainings():
    """With equal losses; with stale weights; and to an accuracy, by several seeds."""
    yield "a training", training(10, "turbodl", "autograd")
    yield "a training with stale weights", training(3, "baseline", semantics={"staleness": 2})
    yield "a training to an accuracy", evaluated("stale", "autograd", seeds=3)


DOCUMENTS = dict([*predictions(), *validations(), *searches(), *trainings()])
#: The other kinds of documents that a page shows, one sample of each.
SAMPLES = {
    kind: sample
    for kind, (sample, _) in documents().items()
    if sample["schema"].partition("/")[0] in PAGES and sample["schema"] not in {document.schema_name for document in DOCUMENTS.values()}
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_reads_as_it_did(name, tmp_path):
    DOCUMENTS[name].save(tmp_path / "document.json")
    check_page(tmp_path / "document.json", name)


@pytest.mark.parametrize("kind", SAMPLES)
def test_a_document_of_another_kind_reads_as_it_did(kind, tmp_path):
    write_json(tmp_path / "document.json", SAMPLES[kind])
    check_page(tmp_path / "document.json", kind)


def test_a_profile_reads_as_it_did(tmp_path):
    write_json(tmp_path / "profile.json", documents()["profile"][0])
    profile = Profile.load(tmp_path / "profile.json")
    section = Section("A profile", machines.profile_blocks(profile, key_points(profile)))
    check_golden(words_of_page(page("A profile", [section])), words_file("a profile"))


def check_page(place: Path, name: str) -> None:
    check_golden(words_of_page(page(name, sections_of(place))), words_file(name))
