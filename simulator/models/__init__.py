"""Models. In: a name or a factory. Out: a module with a batch and a loss, in one form."""
