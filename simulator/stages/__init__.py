"""Stages of a pipeline: a graph cut into stages, the order of their actions, and what they need; strategies make plans of them."""
