"""The Streamlit app. In: reports, traces and choices. Out: pages."""
