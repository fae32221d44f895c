"""Benchmarks, fits of costs, writers of pages. In: shared measurements, this machine. Out: tables of costs, documents, pages of docs/."""
