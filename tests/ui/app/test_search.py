"""The page of searches without a browser."""

import sys

import pytest

from tests.support import fake_jobs
from tests.support.app_pages import app_at
from tests.support.canvas_payload import payloads_of_app
from tests.support.stand_in import answer_by
from ui.present import searches
from ui.service import jobs


@pytest.fixture
def page(monkeypatch):
    """Opens the page, which the tests' answers are for."""

    def opened(answers=fake_jobs, **query):
        monkeypatch.setattr(sys, "argv", ["app.py"])
        answer_by(answers, monkeypatch.setattr)
        app = app_at("search")
        app.query_params.update(query)
        app.run()
        assert not app.exception
        return app

    return opened


def button(app, label):
    return next(each for each in app.button if each.label == label)


def text_of(app):
    return "\n".join(each.value for kind in ("success", "info", "error", "warning", "markdown") for each in app.get(kind))


def test_nothing_is_searched_before_the_user_asks(page):
    app = page()
    assert [each.label for each in app.button if each.label == "Search"] == ["Search"]
    assert not app.dataframe


def test_the_ranking_the_reasons_and_the_command_line(page):
    app = page(model="resnet50", batch="16", strategy=["turbodl", "baseline"])
    button(app, "Search").click().run()
    assert not app.exception
    text = text_of(app)
    assert "is predicted fastest of 8 candidates" in text
    assert "A tie" in text
    assert list(app.dataframe[0].value["P(fastest)"])[:2] == ["70.0 %", "30.0 %"]
    assert {"Step time": "10.0 ms", "Tied plans": "2"}.items() <= {metric.label: metric.value for metric in app.metric}.items()
    command = app.code[0].value
    assert command.startswith("schedcast search --model resnet50 --batch 16")
    assert command.endswith("--strategy baseline --strategy turbodl")
    assert (len(app.get("plotly_chart")), len(payloads_of_app(app))) == (3, 1)


def test_the_table_shows_the_strategies_that_the_user_picks(page):
    app = page(model="resnet50", batch="16")
    button(app, "Search").click().run()
    assert len(app.dataframe[0].value) == 5
    app.multiselect(key="search shown").set_value(["turbodl"]).run()
    assert list(app.dataframe[0].value["plan"]) == ["turbodl:fuse=backward", "turbodl (and 1 equal one)"]
    app.multiselect(key="search shown").set_value(["gpipe"]).run()
    assert len(app.dataframe) == 1, "none of gpipe's plans was left out of the simulation"


def test_equal_plans_are_one_tie_in_every_number_of_the_page(page):
    app = page(model="resnet50", batch="16")
    button(app, "Search").click().run()
    shown = dict(zip([metric.label for metric in app.metric], [metric.value for metric in app.metric], strict=True))
    result = app.session_state["searched"][1].result
    rows = [row for row in app.dataframe[0].value.to_dict("records") if row[""]]
    assert int(shown["Tied plans"]) == sum(group[0].tied for group in searches.groups(result.fitting)) <= len(rows) - 1


def test_a_plan_can_be_opened_on_other_pages(page):
    app = page(model="resnet50", batch="16")
    button(app, "Search").click().run()
    app.selectbox(key="search taken").set_value("backward-fusion").run()
    queries = [each.proto.query_string for each in app.get("page_link")]
    assert len(queries) == 2
    assert all("model=resnet50&batch=16" in query for query in queries)
    assert all(query.endswith("strategy=baseline&strategy=backward-fusion") for query in queries)


def test_a_language_model_shows_the_configurations_worth_knowing_and_opens_their_jobs(page):
    app = page(**{"model": "resnet50", "batch": "16", "machine": "64xh100", "try": "accumulate=4,8"})
    button(app, "Search").click().run()
    app.text_input(key="tokens").set_value("3.6M").run()
    app.number_input(key="price").set_value(2.5).run()
    assert not app.exception
    shown = [(metric.label, metric.value) for metric in app.metric]
    assert ("Speed", "100,000 tokens/s") in shown
    assert ("MFU", "46.0 %") in shown
    assert [value for label, value in shown if label == "Cost"] == ["$2", "$2", "$2"]
    queries = [each.proto.query_string for each in app.get("page_link")]
    assert [("accumulate=8" in query, "checkpoint=" in query) for query in queries[:3]] == [(True, False), (True, True), (True, True)]
    assert all("strategy=baseline&strategy=fsdp&tokens=3.6M&price=2.5" in query and "try=" not in query for query in queries)
    assert any(code.value.startswith("schedcast search") and "--try accumulate=4,8" in code.value for code in app.code)


def test_an_answer_is_marked_when_the_request_has_changed(page):
    app = page()
    button(app, "Search").click().run()
    assert "earlier request" not in text_of(app)
    app.sidebar.number_input(key="batch").set_value(8).run()
    assert "earlier request" in text_of(app)
    assert "resnet" in text_of(app) or "small-cnn" in text_of(app)


def test_a_job_that_cannot_be_searched_and_one_that_does_not_fit(page):
    app = page(batch="13")
    button(app, "Search").click().run()
    assert "batch 13 is not divisible" in text_of(app)
    app.sidebar.number_input(key="batch").set_value(fake_jobs.TOO_LARGE).run()
    button(app, "Search").click().run()
    assert "None of 8 candidates fits" in text_of(app)
    assert not app.exception


def test_the_real_search(page, schedcast, monkeypatch):
    monkeypatch.setenv("SCHEDCAST_DATA", str(schedcast.data))
    app = page(jobs, model="lenet5", batch="8", machine="p100", strategy=["baseline", "backward-fusion"])
    button(app, "Search").click().run(timeout=100)
    assert not app.exception
    assert "is predicted fastest of 3 candidates" in text_of(app)
