"""The app: predicts schedules and machines, shows reports, and replays recorded traces. `stepcast ui` starts it.

The app offers built-in models, the traces named at start, and the reports named at start or kept in the data folder. It never runs
uploaded code.
"""

from functools import cache
from types import ModuleType

import streamlit as st

from simulator.discovery import modules
from ui.app.state import keep_widgets


def main() -> None:
    """Draw the page that the address names; without a name, the first."""
    st.set_page_config(page_title="Stepcast", layout="wide")
    keep_widgets()
    offered = [
        st.Page(page.page, title=page.TITLE, icon=page.ICON, url_path=address(page), default=not number)
        for number, page in enumerate(pages())
    ]
    chosen = st.navigation(offered, position="top")
    chosen.run()


@cache
def pages() -> tuple[ModuleType, ...]:
    """The modules of `ui.app.pages`, in the order of the menu."""
    return tuple(sorted(modules("ui.app.pages"), key=lambda page: (page.ORDER, page.TITLE)))


def address(page: ModuleType) -> str:
    """The last part of a page's address."""
    return getattr(page, "URL", None) or page.__name__.rpartition(".")[2].replace("_", "-")
