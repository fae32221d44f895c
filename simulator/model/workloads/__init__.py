"""The built-in models. In: a name, a batch size and an image size. Out: a module with its inputs, target, loss and data set."""
