"""Paths of files that tests use."""

from pathlib import Path

SUPPORT = Path(__file__).resolve().parent
ROOT = SUPPORT.parents[1]
#: A file per model that a stranger could bring; each has a factory `make`.
USER_MODELS = sorted((SUPPORT / "user_models").glob("[a-z]*.py"))
