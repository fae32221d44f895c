"""The page of accuracy shows every shipped step and how many lie in their intervals."""

import json

from simulator.predict.coverage import judged
from tests.support.app_pages import app_at
from traces.shipped import shipped_validations


def test_every_shipped_step_is_drawn_and_counted():
    app = app_at("accuracy").run()
    assert not app.exception
    steps = judged(shipped_validations())
    figure = json.loads(app.get("plotly_chart")[0].proto.spec)
    assert figure["layout"]["title"]["text"].startswith(f"{sum(step.inside for step in steps)} of {len(steps)} measured steps")
    assert sum(app.dataframe[0].value["steps"]) == len(steps)
