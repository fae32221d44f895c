"""The schedule editor. In: a plan and another order of its tasks. Out: the plan in that order, or the hazards that the order breaks."""
