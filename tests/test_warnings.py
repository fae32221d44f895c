"""Which warnings are errors in the tests: ours, and not those that another version of a library may have."""

import warnings

import pytest


def warn(message: str, category: type[Warning], module: str) -> list[str]:
    """Warn as if from a line of `module`, with pytest's filters. Returns the messages that are shown."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.warn_explicit(message, category, f"{module}.py", 1, module=module)
    return [str(warning.message) for warning in shown]


@pytest.mark.parametrize("module", ["executors.cuda.graphs", "simulator", "ui.cli", "tests.test_warnings"])
@pytest.mark.parametrize("category", [UserWarning, RuntimeWarning, DeprecationWarning, ResourceWarning])
def test_our_warnings_are_errors(category, module):
    with pytest.raises(category):
        warn("an argument is ignored", category, module)


@pytest.mark.parametrize("module", ["torch.cuda.graphs", "pandas.core", "executorsx", "numpy"])
@pytest.mark.parametrize("category", [UserWarning, FutureWarning, DeprecationWarning, RuntimeWarning])
def test_warnings_in_a_librarys_code_are_shown(category, module):
    assert warn("old", category, module) == ["old"]


@pytest.mark.parametrize(
    ("message", "category"),
    [
        ("torch.cuda.amp.autocast is deprecated", FutureWarning),
        ("Please use the new settings\nof torch.backends", DeprecationWarning),
        ("cuDNN SDPA got other strides (Triggered internally at /pytorch/aten/src/ATen/native/cudnn/MHA.cpp:668.)", UserWarning),
    ],
)
def test_warnings_of_pytorch_about_a_call_of_ours_are_shown(message, category):
    assert warn(message, category, "executors.run") == [message]


@pytest.mark.parametrize("category", [ResourceWarning, pytest.PytestUnraisableExceptionWarning])
def test_what_nothing_closed_or_caught_is_an_error(category):
    with pytest.raises(category):
        warn("unclosed file", category, "_pytest.unraisableexception")
