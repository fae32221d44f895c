"""The app with the tests' predictor in place of `ui.jobs`, to be started by Streamlit."""

import sys

from tests.support import fake_jobs

sys.modules["ui.jobs"] = fake_jobs

from ui.app.main import main  # noqa: E402

main()
