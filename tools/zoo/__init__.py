"""The zoo. In: named models of libraries and of our own. Out: docs/zoo.md: whether each is captured, predicted and equal."""
