"""Measuring with one process per device: this process leads, and the others do what it says (`executors.distributed`)."""
