"""Tests of how a model is named and made."""
