"""The app without a browser: opened at one of its pages."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from streamlit.testing.v1 import AppTest
from streamlit.util import calc_hash

import ui

#: What Streamlit starts.
SCRIPT = Path(ui.__file__).parent / "app" / "served" / "script.py"


def app_at(address: str = "", timeout: int = 60) -> AppTest:
    """The app, not yet run, as a browser asks for it at http://127.0.0.1:8501/ADDRESS."""
    return go_to(AppTest.from_file(str(SCRIPT), default_timeout=timeout), address)


def go_to(app: AppTest, address: str) -> AppTest:
    """The app with its next run at another page, as after a click on its menu. `AppTest.switch_page` knows pages that are files only."""
    app._page_hash = calc_hash(address)
    return app


def opened_by_link(address: str, query: Mapping[str, str | list[str]], monkeypatch, folder: Path) -> AppTest:
    """A page with the real predictor, run once as a link opens it, with the profiles in the data folder `folder`."""
    monkeypatch.setattr(sys, "argv", ["app.py"])
    monkeypatch.setenv("SCHEDCAST_DATA", str(folder))
    app = app_at(address)
    app.query_params.update(query)
    app.run()
    assert not app.exception
    return app


def charts_of(app: AppTest) -> list[str]:
    """The titles of the plotly charts on a page, from top to bottom, each in one line."""
    return [json.loads(chart.proto.spec)["layout"]["title"]["text"].replace("<br>", " ") for chart in app.get("plotly_chart")]


def words_of(app: AppTest, kinds: Sequence[str] = ("markdown", "info", "error", "warning", "subheader", "caption")) -> str:
    """What a page says in its elements of these kinds, a line for each element, without the marks that keep Markdown out."""
    return "\n".join(element.value for kind in kinds for element in app.get(kind)).replace("\\", "")


def press(app: AppTest, label: str) -> AppTest:
    """The app after a click on the one button that bears this label, which raised no exception."""
    (button,) = [button for button in app.button if button.label == label]
    button.click().run()
    assert not app.exception
    return app
