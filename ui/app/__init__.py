"""The Streamlit app. In: report folders, traces and the user's choices. Out: pages."""
