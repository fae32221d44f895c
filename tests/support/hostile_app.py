"""The app with a predictor whose names are hostile. Streamlit starts this file."""

from tests.support import hostile
from tests.support.stand_in import answer_by
from ui.app.main import main

answer_by(hostile)
main()
