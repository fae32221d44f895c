"""The script that Streamlit runs for every request.

It stands apart from the pages, because Streamlit takes a folder `pages` beside its script for scripts of their own.
"""

from ui.app.main import main

main()
