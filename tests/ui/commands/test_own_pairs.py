"""`schedcast judge` for pairs: the records of what-if rules, and a user's own file of measured pairs."""

import pytest

from simulator.predict.rule_records import rule_records
from simulator.replay.whatif.registry import rules
from tests.support.jobs import MLP
from tests.support.small_traces import write_trace
from traces.documents.rule_records import RuleRecords
from traces.errors import SchedcastError
from ui.commands.own_pairs import judgments, records

HEAD = "change,before,after,unit,model,batch,machine,precision,strategy,trace,rule\n"


@pytest.fixture
def own(tmp_path):
    """A function that writes rows below HEAD, or a file with another head."""

    def write(*rows: str, head: str = HEAD):
        path = tmp_path / "pairs.csv"
        path.write_text(head + "\n".join(rows) + "\n")
        return path

    return write


def test_every_rule_has_a_row(schedcast):
    shown = schedcast.call("judge")
    assert (shown.status, shown.err) == (0, "")
    document = RuleRecords.model_validate(schedcast.call("judge", "--json").document)
    judged = {record.rule for record in document.records}
    assert {*judged, *document.unjudged} >= {rule.name for rule in rules()}
    assert document.records == rule_records().records
    assert judged.isdisjoint(document.unjudged)
    assert all(rule in shown.out for rule in (*judged, *document.unjudged))


def test_own_pairs_are_judged(own, tmp_path):
    write_trace(tmp_path / "job.json")
    made = judgments(
        own(
            f"precision=amp,2.0,2.5,ms,{MLP},8,h100,tf32,,,",
            f"batch=16,1000,2000,samples/s,{MLP},8,h100,,,,",
            f"batch=16,2,2,ms,{MLP},8,h100,,,,",
            f"strategy=pytorch-graph,2,1,s,{MLP},8,h100,,,,",
            "kernel:gemm*=0.5,1.0,0.9,ms,,,,,,job.json,faster products",
        )
    )
    assert [(each.rule, each.way, each.measured) for each in made] == [
        ("amp", "preset", pytest.approx(0.8)),
        ("batch", "preset", 2.0),
        ("batch", "preset", 2.0),
        ("cuda-graph", "preset", 2.0),
        ("faster products", "trace", pytest.approx(1 / 0.9)),
    ]
    assert [side > 1 for side in (each.predicted for each in made)] == [False, True, True, True, True]
    assert {record.rule: record.pairs for record in records(made).records}["batch"] == 2


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (
            f"amp,2,1,ms,{MLP},8,h100,,,,",
            "line 2: change is 'amp'; expected OPTION=VALUE, as in precision=amp, or a trace and a what-if rule",
        ),
        (f"precision=amp,0,1,ms,{MLP},8,h100,,,,", "line 2: before is '0'; expected a number above 0"),
        (f"precision=amp,2,1,ms,{MLP},8,,,,,", "line 2: it names no model or no machine; expected both, or a trace"),
    ],
)
def test_a_row_that_cannot_be_judged_is_named(own, row, why):
    with pytest.raises(SchedcastError) as refused:
        judgments(own(row))
    assert str(refused.value).endswith(why)


def test_the_other_rows_are_judged(own, caplog):
    (made,) = judgments(
        own(f"precision=amp,2.0,2.5,ms,{MLP},8,h100,tf32,,,", f"precision=amp,x,1,ms,{MLP},8,h100,,,,", "amp," + "x" * 200_000)
    )
    assert made.rule == "amp"
    assert [record.getMessage().partition(", ")[2] for record in caplog.records] == [
        "line 3: before is 'x'; expected a number above 0; the row is skipped",
        "line 4: it cannot be read: field larger than field limit (131072); the row is skipped",
    ]


def test_columns_that_are_missing_or_unknown_are_named(own):
    for head, what in (("change,before\n", "has no column 'after'"), (f"colour,{HEAD}", "has a column 'colour'")):
        with pytest.raises(SchedcastError, match=what):
            judgments(own(head=head))


@pytest.mark.thorough
def test_own_pairs_on_the_command_line(schedcast, own):
    path = own(f"precision=amp,2.0,2.5,ms,{MLP},8,h100,tf32,,,")
    shown = schedcast.call("judge", path)
    assert (shown.status, shown.err) == (0, "")
    words = " ".join(shown.out.split())
    assert "precision=amp: measured 0.80x" in words
    assert "In all, the sign is right on 1 of 1 pairs, and the interval holds" in words
    assert schedcast.call("judge", path, "--json").document["records"][0]["pairs"] == 1
