"""Plans: what a strategy decides. In: tasks and values. Out: a checked plan, its dependencies, and its JSON and text forms."""
