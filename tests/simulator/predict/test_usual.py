from dataclasses import dataclass

import pytest

from simulator.model.job import Job
from simulator.predict import usual
from simulator.predict.usual import PLAIN, least_checkpoint, usual_of
from tests.support.refusals import refuses
from traces.errors import Code
from ui.request import JobRequest


@dataclass(frozen=True)
class Predicted:
    fits: bool
    at_limit: bool = False


@pytest.fixture(autouse=True)
def _stands_for_a_forecast(monkeypatch):
    monkeypatch.setattr(usual, "Forecast", Predicted)


@pytest.mark.parametrize(
    ("fitting", "chosen"),
    [({"none", "selective", "full"}, "none"), ({"selective", "full"}, "selective"), ({"full"}, "full"), (set(), "full")],
)
def test_the_least_checkpointing_that_fits_is_chosen_and_the_most_if_none_does(fitting, chosen):
    tried = []

    def known(job, text):
        tried.append((job.checkpoint, text))
        return Predicted(job.checkpoint in fitting)

    assert least_checkpoint(Job("llama3:8b", 8), ["fsdp"], known).checkpoint == chosen
    assert tried[-1] == (chosen, "fsdp"), "what needs more memory was tried before, and nothing after it"


def test_a_plan_at_the_limit_of_its_memory_counts_as_one_that_does_not_fit():
    def known(job, text):
        return Predicted(fits=True, at_limit=job.checkpoint == "none")

    assert least_checkpoint(Job("llama3:8b", 8), ["fsdp"], known).checkpoint == "selective"


@pytest.mark.parametrize(("model", "machine", "gpus"), [("resnet50", "8xh100", 8), ("llama3:8b", "h100", 1), ("gpt2", "8xh100", 8)])
def test_nothing_changes_for_other_models_and_for_one_gpu(model, machine, gpus):
    assert usual_of(model, machine, gpus) == PLAIN
    request = JobRequest(model, 8, machine=machine)
    assert request.gpus == gpus
    assert request.unstated == {}
    assert request.job() == Job(model, 8, precision="default")


def test_a_card_without_bf16_has_fp16_and_one_without_either_has_pytorchs_own_precision():
    assert [usual_of("gpt2:small", f"4x{card}", 4).precision for card in ("a100", "v100", "k80")] == ["amp", "amp-fp16", "default"]


# A request without them, and one that states some of them.


def test_a_request_for_a_language_model_on_several_gpus_has_what_people_train_it_with():
    job = JobRequest("llama3:8b", 16, machine="8xh100").job()
    assert (job.optimizer, job.form, job.precision, job.checkpoint) == ("adamw", "fused", "amp", "none")
    assert JobRequest("llama3:8b", 16, machine="8xh100", devices=1).job() == Job("llama3:8b", 16, precision="default")
    assert JobRequest("llama3:8b", 16, device="cuda", devices=2, machine="").settled.strategies == ("fsdp",)
    assert JobRequest("llama3:8b", 16, devices=2).settled.strategies == (), "groups of a CPU's cores are no GPUs"


def test_what_a_request_states_wins_and_is_not_called_usual():
    request = JobRequest("llama3:8b", 16, optimizer="sgd", precision="fp32", machine="8xh100", strategies=("zero1",))
    job = request.job()
    assert (job.optimizer, job.form, job.precision) == ("sgd", "foreach", "fp32")
    assert request.settled.strategies == ("zero1",)
    assert request.unstated == {"checkpoint": None}
    assert JobRequest("llama3:8b", 16, machine="8xh100", checkpoint="none").unstated.keys() == {"strategy", "precision", "optimizer"}


def test_a_request_is_brief_without_what_is_usual_for_it():
    stated = JobRequest("llama3:8b", 16, None, "adamw", "fused", precision="amp", machine="8xh100", checkpoint="none")
    assert stated.brief == JobRequest("llama3:8b", 16, machine="8xh100", checkpoint="none")
    assert JobRequest("resnet50", 16, None, "momentum", "foreach", precision="default", checkpoint="none").brief == JobRequest(
        "resnet50", 16
    )
    assert stated.brief.job() == stated.job()


def test_models_and_machines_are_called_as_they_are_listed():
    request = JobRequest("meta-llama/Llama-3.1-8B", machine="8xH100")
    assert (request.model, request.machine) == ("llama3:8b", "8xh100")
    assert [JobRequest("lenet5", machine=name).machine for name in ("4090", "cuda", "cpu", "H101", "Profile.json")] == [
        "rtx4090", "this-gpu", "this-cpu", "H101", "Profile.json",
    ]  # fmt: skip


def test_what_a_whole_training_has_is_read_of_a_request():
    assert JobRequest("llama3:8b", tokens="15T", price=2.5).budget == (15e12, 2.5)
    assert JobRequest("llama3:8b").budget == (1e9, None)
    with refuses(Code.REQUEST, "--tokens is 'many'; expected a number above 0, such as 15T"):
        _ = JobRequest("llama3:8b", tokens="many").budget
    with refuses(Code.REQUEST, "--tokens: lenet5 reads no rows of tokens; drop it"):
        request = JobRequest("lenet5", 4, tokens="1B")
        request.check_budget(request.job())
