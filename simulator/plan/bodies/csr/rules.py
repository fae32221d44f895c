"""The ops whose transposed Jacobian has a static pattern: every kind of `SparseRule`."""

from simulator.plan.bodies.csr.elementwise import ElementwiseRule
from simulator.plan.bodies.csr.pools import AdaptiveAveragePoolRule, AveragePoolRule, MaxPoolRule
from simulator.plan.bodies.csr.weights import ConvolutionRule, LinearRule

Rule = ConvolutionRule | ElementwiseRule | MaxPoolRule | AveragePoolRule | AdaptiveAveragePoolRule | LinearRule
