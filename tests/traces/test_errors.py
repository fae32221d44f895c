"""Messages of one line, and which name a user meant."""

import pytest

from traces.errors import SchedcastError, nearest

MACHINES = ("k20", "p100", "v100", "h100", "h200", "dgx-h100", "titan-xp")
MEANT = {"H100": "h100", "DGX-H100": "dgx-h100", "dgx_h100": "dgx-h100", "Titan Xp": "titan-xp", "h10": "h100", "zebra": None, "": None}


@pytest.mark.parametrize(("given", "meant"), MEANT.items())
def test_case_comes_before_spelling(given, meant):
    assert nearest(given, MACHINES) == meant


def test_the_same_but_for_case_wins_over_a_similar_name():
    assert nearest("RESNET18", ("resnet18x", "resnet18")) == "resnet18"
    assert nearest("RNN", ("RNM", "rnn")) == "rnn"


def test_a_message_is_one_line_whatever_it_quotes():
    assert str(SchedcastError("a\nb \x1b[31m \udcff")) == r"a b \x1b[31m \udcff"
    assert len(str(SchedcastError("x" * 10_000))) == 800
