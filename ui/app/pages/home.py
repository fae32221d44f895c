"""The app's first page: three doors, for a user with a model, a trace or a report."""

import streamlit as st

TITLE, ICON, ORDER = "Home", ":material/home:", 0


def page() -> None:
    """Show the doors."""
    st.title("Stepcast", anchor=False)
