"""The app: predicts schedules and machines, shows reports, and replays recorded traces. `schedcast ui` starts it.

The app offers built-in models, the models and traces named at start, and the reports named at start or stored in the data folder. It never
runs uploaded code.
"""

from pathlib import Path

import streamlit as st

from ui.app import ahead, runs
from ui.app.navigation import pages, streamlit_page
from ui.app.state import keep_widgets

#: Style that Streamlit offers no other way to change.
STYLE = Path(__file__).with_name("style.css")
#: The icon in the browser's tab; a page's own symbol would come from a font host.
ICON = str(Path(__file__).with_name("icon.png"))


def main() -> None:
    """Draw the page that the address names; without a name, the first."""
    st.set_page_config(page_title="Schedcast", page_icon=ICON, layout="wide")
    st.html(STYLE)
    keep_widgets()
    page = st.navigation([streamlit_page(page) for page in pages()], position="top")
    runs.running_ui(page.title)
    page.run()
    ahead.start()
