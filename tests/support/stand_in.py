"""Answers of tests in place of those of `ui.service.jobs`."""

from collections.abc import Callable
from typing import Any

from ui.app import sweeping
from ui.service import jobs

#: What the app asks of `ui.service.jobs`.
ASKED = ("choices", "facts", "predict_many", "fitting", "speed", "in_editor", "search")


def answer_by(answers: Any, put: Callable[[Any, str, Any], None] = setattr) -> None:
    """Let the functions of `answers` answer the app. `put` sets an attribute, such as `monkeypatch.setattr`."""
    sweeping._outcomes.cache_clear()
    for name in ASKED:
        if hasattr(answers, name):
            put(jobs, name, getattr(answers, name))
