"""Which strategies an answer has, for every door."""

import pytest

from simulator.model.job import Job
from simulator.predict.answers import Answers, answers
from simulator.predict.target import preset_target
from tests.support.jobs import MLP
from traces.documents.comparison import PARALLEL_LOOPS


def asked(job: Job, *texts: str, machine: str = "h100") -> Answers:
    return answers(job, texts, preset_target(job, machine))


PLAIN = ("pytorch", "pytorch-graph")


@pytest.mark.parametrize(
    ("texts", "machine", "headline", "rows"),
    [
        ((), "h100", "pytorch", ("pytorch",)),
        ((), "2xh100", "pytorch", ("pytorch", *PARALLEL_LOOPS)),
        (("turbodl",), "h100", "turbodl", ("turbodl",)),
        (("turbodl", "baseline"), "h100", "pytorch", (*PLAIN, "turbodl", "baseline")),
        (("gpipe",), "h100", "gpipe", (*PLAIN, "gpipe")),  # refused: it needs two devices
    ],
)
def test_an_only_strategy_is_answered_alone_and_several_stand_below_the_users_own_loops(texts, machine, headline, rows):
    own = asked(Job(MLP, 4), *texts, machine=machine)
    assert (own.headline, own.rows()) == (headline, rows)


def test_where_plain_pytorch_cannot_be_predicted_the_baseline_is_the_answer():
    recurrent = Job("rnn_bitstream", 2, image_size=4, precision="fp32")
    own = asked(recurrent)
    assert "recurrent layers" in own.refusal("pytorch").words
    assert (own.headline, own.rows()) == ("baseline", ("pytorch", "baseline"))
    assert [row.strategy for row in own.document().predictions] == ["baseline"]
    several = asked(recurrent, "bppsa", "turbodl")
    assert several.rows() == (*PLAIN, "baseline", "bppsa", "turbodl")
