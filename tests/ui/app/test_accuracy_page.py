"""The page of accuracy shows every shipped step and how many lie in their intervals."""

import json

from simulator.predict.coverage import judged
from tests.support.app_pages import app_at
from traces.documents.shipped import shipped_validations


def test_every_shipped_step_is_drawn_and_counted():
    app = app_at("accuracy").run()
    assert not app.exception
    steps = judged(shipped_validations())
    figure = json.loads(app.get("plotly_chart")[0].proto.spec)
    assert figure["layout"]["title"]["text"].startswith(f"{sum(step.inside for step in steps)} of {len(steps)} (")
    by_group, by_strategy = (table.value for table in app.dataframe)
    assert sum(by_group["steps"]) == sum(by_strategy["steps"]) == len(steps)
    assert {"pipelines", "several processes"} <= set(by_group["group"])
