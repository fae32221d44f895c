"""The networks of the built-in models as `torch.nn.Module` classes. In: sizes and depths. Out: a module."""
