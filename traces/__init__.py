"""Predictions and measurements as data: profiles, timelines, validations, and their files. Imports no other package of the project."""
