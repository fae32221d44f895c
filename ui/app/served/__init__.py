"""What Streamlit starts. In: a request of a browser. Out: the app, drawn by `ui.app.main`."""
