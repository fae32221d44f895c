"""docs/papers.md is what the documents that come with the package say, and these are what `schedcast reproduce` predicts today."""

import pytest

from simulator.papers import deepa, registry
from tools import papers
from traces.documents.reproduction import Paper, Reproduction, Table
from traces.documents.shipped import reproduction_file
from ui.commands import reproducing
from ui.present import reproductions


def test_the_page_is_generated():
    assert papers.PAGE.read_text() == papers.page(), "run make papers"


def test_every_claim_has_a_verdict_and_a_cause_if_it_does_not_hold():
    for name in registry.names():
        (paper,) = Reproduction.load(reproduction_file(name)).papers
        assert {check.name for check in paper.checks if check.holds is not True and not check.reason} == set(), name
        assert {check.name for check in paper.checks if not (check.published and check.mechanism)} == set(), name
        assert {claim.name for claim in registry.get(name).claims if claim.off} >= {
            check.name.partition(",")[0] for check in paper.checks if check.without and "," not in check.name
        }, name


def test_a_verdict_says_by_what_a_claim_holds():
    """By the paper's mechanism only if it does not hold without, and identities are counted apart."""
    claim = registry.Claim(
        name="gain", claim="it gains", published="1.2x (table 1)", mechanism="overlap", off="overlap off", within=((1.1, None),),
        said="{case} {0:.1f}x",
    )  # fmt: skip
    usual, less, none = (claim.each({"batch 8": (gain,)}) for gain in (1.3, 1.2, 1.0))
    by_it, by_another, refuted = claim.beside(usual, none), claim.beside(usual, less), claim.beside(none, none)
    assert [check.verdict for check in (usual, by_it, by_another, refuted)] == ["holds", "holds", "other", "refuted"]
    assert [reproductions.verdict_words(check) for check in (usual, by_it, by_another, refuted)] == [
        "holds (overlap)",
        "holds by this mechanism (overlap)",
        "holds, but not by this mechanism (overlap)",
        "does not hold (overlap)",
    ]
    assert by_it.without == "overlap off: batch 8 1.0x"
    counted = claim.model_copy(update={"identity": True}).each({"batch 8": (1.3,)})
    paper = Paper(
        name="p", title="P", reference="r", machine="h100", setting="s", shares=None, tables=(), checks=(by_it, by_another, counted)
    )
    assert reproductions.holding_words(paper) == "1 of 2 claims hold; 1 more holds, but not by the paper's mechanism; 1 is an identity."
    assert [each.verdict for each in Reproduction(papers=(paper,)).claims] == ["holds", "other", "identity"]


def check_rows(table: Table, same: Table) -> None:
    """Every predicted figure of a table is that of the shipped one. How long DeePa's search takes is measured."""
    shipped = {tuple(row.labels.items()): row for row in same.rows}
    for row in table.rows:
        for figure, before in zip(row.figures, shipped[tuple(row.labels.items())].figures, strict=True):
            assert (figure.name, figure.published) == (before.name, before.published)
            if table.name == "search":
                continue
            expected = None if before.predicted is None else pytest.approx(before.predicted, rel=1e-6)
            assert figure.predicted == expected, f"{table.name}, {row.labels}, {figure.name}"


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in registry.names() if name != "deepa"])
def test_the_documents_are_up_to_date(name):
    """Every predicted figure and every verdict, on any machine: no calibration enters."""
    (shipped,) = Reproduction.load(reproduction_file(name)).papers
    predicted, _ = reproducing.reproduced(registry.get(name), measure=False, quiet=True)
    paper = papers.with_measured(predicted, reproduction_file(name))
    assert [(check.name, check.verdict) for check in paper.checks] == [(check.name, check.verdict) for check in shipped.checks]
    for table in paper.tables:
        same = shipped.table(table.name)
        assert [row.labels for row in table.rows] == [row.labels for row in same.rows], table.name
        check_rows(table, same)


@pytest.mark.thorough
def test_the_document_of_deepa_is_up_to_date(monkeypatch):
    """The figures of its first network, for all of them take ten minutes."""
    first = {"networks": deepa.SCOPE.networks[:1], "batches": deepa.SCOPE.batches[:2], "slower": False}
    monkeypatch.setattr(deepa, "SCOPE", deepa.SCOPE.model_copy(update=first))
    (shipped,) = Reproduction.load(reproduction_file("deepa")).papers
    predicted, _ = reproducing.reproduced(registry.get("deepa"), measure=False, quiet=True)
    assert {"fc6", "speedups", "clusters", "imagenet-22k"} <= {table.name for table in predicted.tables if table.rows}
    for table in predicted.tables:
        check_rows(table, shipped.table(table.name))
