"""The app with the tests' predictor instead of `ui.service.jobs`. Streamlit starts this file."""

from tests.support import fake_jobs
from tests.support.stand_in import answer_by
from ui.app.main import main

answer_by(fake_jobs)
main()
