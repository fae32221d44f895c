"""Schedcast in Python. `import schedcast as sc` loads nothing else; each function loads what it needs when it is called.

A module that exists, on a GPU that may not:

    >>> import torch, schedcast as sc
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    >>> batch = torch.randn(32, 64), torch.randint(10, (32,))
    >>> p = sc.predict(model, batch, optimizer=torch.optim.Adam(model.parameters()), on="h100")
    >>> p.fits
    True
    >>> p.compare("backward-fusion").frame()["strategy"].tolist()
    ['pytorch', 'pytorch-graph', 'backward-fusion']

Answers print themselves in a terminal and in a notebook, and carry their data (`json()`, `frame()`, `save(path)`).
"""

from traces.errors import SchedcastError
from ui.api.facade import accelerate, calibrate, diff, hf, lightning, predict, replay, report, run, search, validate, watch

__all__ = [
    "SchedcastError",
    "accelerate",
    "calibrate",
    "diff",
    "hf",
    "lightning",
    "predict",
    "replay",
    "report",
    "run",
    "search",
    "validate",
    "watch",
]
