"""Models whose layers two devices divide train as in plain PyTorch."""

import pytest

from executors.cpu.backend import CpuBackend
from simulator.model.job import Job
from tests.support import models
from tests.support.applicable import core_groups
from tests.support.jobs import planned
from tests.support.same_numbers import largest_error

LLAMA = "lm:form=llama,layers=1,d_model=24,heads=4,kv_heads=2,ffn=36,vocab=30"
GPT = "lm:form=gpt,layers=1,d_model=24,heads=4,ffn=36,vocab=30"


def error(model: str, text: str, devices: int = 2, **fields) -> float:
    """The largest difference from plain PyTorch after three steps."""
    machine = core_groups(devices)
    job = Job(model, 2 if model.startswith("lm:") else 8, precision="fp64", **fields)
    return largest_error(job, planned(text, job, machine), CpuBackend(machine, cores=[0] * devices), 3)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", models.DIVIDED)
def test_small_models(name):
    assert error(f"{models.__file__}:{name}", "fsdp:tp=2", optimizer="sgd") <= 1e-12


@pytest.mark.parametrize(
    ("model", "devices"),
    [
        (LLAMA, 2),
        (f"{LLAMA},qk_norm=on,tied=on", 2),
        (GPT, 2),
        (LLAMA, 4),  # two heads of keys and values for four devices
        (f"{GPT},kv_heads=2", 2),  # queries, keys and values of one product, whose blocks are unequal
        (LLAMA.replace("vocab=30", "vocab=31"), 2),
        (f"{GPT},positions=alibi", 2),
    ],
)
@pytest.mark.sampled(6)
@pytest.mark.parametrize("between", ["on", "off"])
def test_decoders(model, devices, between):
    assert error(model, f"fsdp:tp={devices},sp={between}", devices, image_size=8, optimizer="sgd") <= 1e-12
