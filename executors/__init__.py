"""Runs a plan for real and returns a measured timeline."""
