"""The app with the tests' predictor in place of `ui.jobs`, to be started by Streamlit."""

import sys

import fake_jobs

sys.modules["ui.jobs"] = fake_jobs

from ui.app import main  # noqa: E402

main()
