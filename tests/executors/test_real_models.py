"""Small models of the families that libraries have, with masks, relative positions and tied weights, train as in plain PyTorch."""

from dataclasses import replace
from importlib.util import find_spec

import pytest

from simulator.model.job import Job
from tests.support import real_models
from tests.support.same_numbers import assert_trains_alike

#: Library -> models of tests.support.real_models.
FAMILIES = {
    "timm": ("swin", "beit", "levit"),
    "transformers": ("bert", "gpt2_mask", "t5", "bart", "llama_tied"),
}


def job_of(library: str, name: str) -> Job:
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    return Job(f"{real_models.__file__}:{name}", 2, precision="fp64", optimizer="sgd")


@pytest.mark.parametrize(("library", "name"), [(library, name) for library, names in FAMILIES.items() for name in names])
def test_families_train_as_in_plain_pytorch(library, name, two_cores, backend):
    assert_trains_alike(job_of(library, name), two_cores, backend)


def test_a_mixture_of_experts_trains_as_in_plain_pytorch(two_cores, backend):
    """Its products of groups, one for each expert, compute in float32."""
    assert_trains_alike(replace(job_of("transformers", "mixtral"), precision="fp32"), two_cores, backend)
