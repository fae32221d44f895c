"""The table of times to compute Jacobians, on small layers. No test is decided by a time."""

from dataclasses import replace

import pytest

from calibrate import reproduction
from simulator.papers import bppsa_sparse
from simulator.plan.bodies.csr.rules import ConvolutionRule, MaxPoolRule


def test_each_layer_is_timed_by_rule_and_by_column(monkeypatch):
    rules = {
        "convolution": ConvolutionRule(1, 6, 6, 2, (3, 3), padding=(1, 1)),
        "ReLU": replace(bppsa_sparse.FIRST["ReLU"], elements=64),
        "max-pooling": MaxPoolRule(2, 6, 6, (3, 3), (2, 2), (2, 2)),
    }
    monkeypatch.setattr(reproduction, "FIRST", rules)
    rows = reproduction.generation_table().rows
    assert [row.labels["columns"] for row in rows] == ["72", "64", "18"]
    for row in rows:
        assert row.predicted("by rule") > 0
        assert row.predicted("faster") == pytest.approx(row.predicted("by column") / row.predicted("by rule"))
    assert [row.figures[2].published for row in rows] == [8.3e3, 1.2e6, 1.5e5]
