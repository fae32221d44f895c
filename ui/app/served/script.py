"""The script that Streamlit runs for every request.

It is not next to the pages, because Streamlit treats modules of a folder `pages` next to its script as separate scripts.
"""

from ui.app.main import main

main()
