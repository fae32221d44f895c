"""The page of papers: what is kept, running one here, and cancelling."""

import sys

import pytest
import streamlit

from simulator.papers import registry as reproduce
from tests.support.app_pages import app_at, press
from traces.documents.comparison import Shares
from traces.documents.reproduction import Check, Figure, Paper, PaperCase, Reproduction, Table
from ui.app import runs
from ui.app.pages import papers as papers_page

NAME = reproduce.names()[0]


class FakeRun:
    """A command that runs until it is told to end."""

    command, title, done, total, text, share, lines, mistake = (
        "schedcast reproduce", "reproducing", 1, 4, "x", 0.25, ["a line"], "no memory",
    )  # fmt: skip

    def __init__(self, arguments):
        self.arguments, self.cancelled, self.status = arguments, False, None

    running = property(lambda self: self.status is None)

    def cancel(self):
        self.cancelled, self.status = True, 130


@pytest.fixture
def start(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(sys, "argv", ["app.py"])
    monkeypatch.setattr(runs, "CommandRun", FakeRun)
    streamlit.cache_resource.clear()
    return app_at("papers").run


@pytest.mark.thorough
def test_a_link_to_a_paper_that_is_not_there_says_so(start):
    app = app_at("papers")
    app.query_params["paper"] = "bpsa"
    app.run()
    assert [error.value.replace("\\", "").partition(";")[0] for error in app.error] == [
        "this link cannot be answered here: unknown paper 'bpsa' (did you mean 'bppsa'?)"
    ]
    assert not app.subheader
    app.sidebar.selectbox(key="paper").set_value("fusion").run()
    assert not app.error


def keep(name=NAME):
    figure = Figure(name="step", unit="s", predicted=0.01, published=0.012)
    table = Table(name="t", title="Table 1", about="what it is", rows=(PaperCase(labels={"net": "alexnet"}, figures=(figure,)),))
    checks = (
        Check(name="a", claim="it is faster", holds=True, said="1.2x", figures={}),
        Check(name="b", claim="always", holds=False, said="0.9x once", figures={}, reason="launches"),
        Check(name="c", claim="on phones", holds=None, said="no phone here", figures={}),
    )
    shares = Shares(measured=0.0, fitted=0.0, guessed=1.0)
    paper = Paper(name=name, title="A paper", reference="2020", machine="h100", setting="s", shares=shares, tables=(table,), checks=checks)
    folder = papers_page.paper_folder(name)
    folder.mkdir(parents=True, exist_ok=True)
    Reproduction(papers=(paper,)).save(folder / "reproduction.json")
    return folder


def words_of(app):
    kinds = ("markdown", "info", "error", "warning", "subheader", "caption", "code")
    return "\n".join(element.value for kind in kinds for element in app.get(kind)).replace("\\", "")


def test_what_is_kept_is_shown_with_its_claims(start):
    keep()
    app = start()
    assert not app.exception
    assert "1 of 2 claims hold" in words_of(app)
    assert "does not hold: always" in words_of(app)
    assert list(app.dataframe[0].value["net"]) == ["alexnet"]


@pytest.mark.thorough
def test_what_comes_with_the_package_is_shown_until_something_is_kept(start):
    app = app_at("papers")
    app.query_params["paper"] = "fusion"
    app.run()
    assert not app.exception
    words = words_of(app)
    assert "These are the predictions that come with this version" in words
    assert "What gains here are waits of the host" in words
    assert "holds, but not by this mechanism: the speed-up rises with the optimizer's share of the step (BF one stream)" in words
    assert len(app.get("plotly_chart")) == 4
    keep("fusion")
    app.run()
    assert "come with this version" not in words_of(app)
    press(app, "Also measure it on this machine")
    folder = papers_page.paper_folder("fusion")
    assert runs.latest("papers").command.arguments == ["reproduce", "fusion", "--measure", "--out", str(folder)]


@pytest.mark.thorough
def test_a_paper_is_predicted_here_until_it_is_cancelled(start):
    app = press(start(), "Predict what the paper published")
    run = runs.latest("papers").command
    assert run.arguments == ["reproduce", NAME, "--fresh", "--out", str(papers_page.paper_folder(NAME))]
    assert "schedcast reproduce" in words_of(app)
    app = press(app, "Cancel").run()
    assert "Cancelled." in words_of(app)
    app = press(app, "Predict what the paper published")
    keep()
    runs.latest("papers").command.status = 0
    app.run()
    assert "1 of 2 claims hold" in words_of(app)


def test_a_failed_run_and_a_damaged_document_are_one_line_each(start):
    folder = keep()
    (folder / "reproduction.json").write_text("{")
    app = press(start(), "Predict it again")
    runs.latest("papers").command.status = 2
    app.run()
    assert not app.exception
    assert len(app.error) == 2
    assert "status 2: no memory" in app.error[0].value.replace("\\", "")


@pytest.mark.thorough
def test_every_paper_of_the_registry_is_offered(start):
    app = start()
    assert app.sidebar.selectbox[0].options == reproduce.names()
