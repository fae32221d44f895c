"""The part of the app that shows tables and figures: how each quantity is computed is one click away, in the head of its column."""

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from ui.present.text.formulas import FORMULAS, column_formulas, formulas_markdown


def table_ui(rows: Sequence[Mapping[str, Any]], shown: Any = None, columns: Mapping[str, Mapping[str, Any]] | None = None) -> None:
    """Show rows, column name to text or number. `shown`: the same rows with styles. `columns`: more of a column, such as its width."""
    more, quantities = columns or {}, column_formulas(rows[0] if rows else ())
    config = {
        head: st.column_config.Column(help=FORMULAS[quantities[head]] if head in quantities else None, **more.get(head, {}))
        for head in {**quantities, **more}
    }
    st.dataframe(rows if shown is None else shown, hide_index=True, column_config=config)


def formulas_ui(*quantities: str) -> None:
    """Offer the formulas of some quantities of `FORMULAS`, one click away."""
    with st.popover("How is this computed?", type="tertiary"):
        st.markdown(formulas_markdown(quantities))
