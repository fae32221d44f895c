"""Ops whose transposed Jacobian [elements in, elements out] of one sample has a static pattern, as plain data.

Each rule has `rows`, `cols`, `nnz`, `pattern()` (kept in a bounded store), `shared` (all samples have the same values), and what every rule
of `jacobian_rules` has. Elements of a sample are numbered as in a contiguous tensor: channel, then row, then column.
"Reads" and "values" say what a `JacobianValues` task of the rule gets and writes.
"""

from simulator.bodies.csr.elementwise import ElementwiseRule
from simulator.bodies.csr.pools import AdaptiveAveragePoolRule, AveragePoolRule, MaxPoolRule
from simulator.bodies.csr.weights import ConvolutionRule, LinearRule

Rule = ConvolutionRule | ElementwiseRule | MaxPoolRule | AveragePoolRule | AdaptiveAveragePoolRule | LinearRule
