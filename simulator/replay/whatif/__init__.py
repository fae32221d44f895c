"""What-if rules, one module each. In: a replay and the text of a rule. Out: the changed replay and what was assumed."""
