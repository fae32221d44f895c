"""docs/papers.md is what the documents that come with the package say, and these are what `schedcast reproduce` predicts today."""

import pytest

from simulator.papers import registry
from tests import papers
from traces.documents.reproduction import Reproduction
from traces.documents.shipped import reproduction_file
from ui.commands import reproducing


def test_the_page_is_generated():
    assert papers.PAGE.read_text() == papers.page(), "run make papers"


def test_every_claim_has_a_verdict_and_a_cause_if_it_does_not_hold():
    for name in registry.names():
        (paper,) = Reproduction.load(reproduction_file(name)).papers
        assert {check.name for check in paper.checks if check.holds is not True and not check.reason} == set(), name


@pytest.mark.thorough
@pytest.mark.parametrize("name", registry.names())
def test_the_documents_are_up_to_date(name):
    """Every predicted figure and every verdict, on any machine: no calibration enters. How long DeePa's search takes is measured."""
    (shipped,) = Reproduction.load(reproduction_file(name)).papers
    predicted, _ = reproducing.reproduced(registry.get(name), measure=False, quiet=True)
    paper = papers.with_measured(predicted, reproduction_file(name))
    assert [(check.name, check.holds) for check in paper.checks] == [(check.name, check.holds) for check in shipped.checks]
    for table in paper.tables:
        same = shipped.table(table.name)
        assert [row.labels for row in table.rows] == [row.labels for row in same.rows], table.name
        for row, other in zip(table.rows, same.rows, strict=True):
            for figure, before in zip(row.figures, other.figures, strict=True):
                assert (figure.name, figure.published) == (before.name, before.published)
                if table.name == "search":
                    continue
                expected = None if before.predicted is None else pytest.approx(before.predicted, rel=1e-6)
                assert figure.predicted == expected, f"{table.name}, {row.labels}, {figure.name}"
