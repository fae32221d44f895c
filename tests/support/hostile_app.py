"""The app with a predictor whose names are hostile. Streamlit starts this file."""

import sys

from tests.support import hostile

sys.modules["ui.jobs"] = hostile

from ui.app.main import main  # noqa: E402

main()
