"""The app with the tests' predictor instead of `ui.jobs`. Streamlit starts this file."""

import sys

from tests.support import fake_jobs

sys.modules["ui.jobs"] = fake_jobs

from ui.app.main import main  # noqa: E402

main()
