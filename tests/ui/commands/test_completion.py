"""What the shell offers for models, strategies and machines."""

import os
import subprocess
import sys

import pytest

from ui.commands import job_options


def offered(words: str) -> list[str]:
    """What bash offers for the last word of a command line, as completion's script asks for it; in a process without PyTorch."""
    without_torch = "import sys; sys.modules['torch'] = None; from ui.cli import main; sys.argv = ['schedcast']; main()"
    asks = {"_SCHEDCAST_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    answer = subprocess.run([sys.executable, "-c", without_torch], env=os.environ | asks, capture_output=True, text=True, check=False)
    assert not answer.stderr
    return answer.stdout.split()


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("schedcast pred", {"predict"}),
        ("schedcast predict --model alexnet_c", {"alexnet_cifar"}),
        ("schedcast validate --strategy backward", {"backward-fusion"}),
    ],
)
def test_names_are_completed_without_pytorch(words, names):
    assert set(offered(words)) == names


def test_options_of_a_strategy_are_completed_after_its_colon():
    assert job_options.complete_strategies("turbodl:al") == ["turbodl:alpha="]
    assert "turbodl:alpha=2,beta=" in job_options.complete_strategies("turbodl:alpha=2,")
    assert "turbodl:alpha=2,alpha=" not in job_options.complete_strategies("turbodl:alpha=2,")
    assert job_options.complete_strategies("nothing:") == []


def test_machines_are_completed_one_after_another():
    assert "h100" in job_options.complete_machines("h")
    assert "a100,h100" in job_options.complete_machines("a100,h")
    assert "h100,h100" not in job_options.complete_machines("h100,h")
