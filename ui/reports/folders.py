"""The kinds of folders that commands write, by which a later command recognizes that it may write there again."""

from traces.outputs import FolderKind

REPORT = FolderKind("report.json", "stepcast.report", ("index.html", "report.json", "validation.json", "summary.png"))
TRAINING = FolderKind("run.json", "stepcast.run", ("index.html", "run.json", "loss.png", "loss.svg"))
REPRODUCTION = FolderKind("reproduction.json", "stepcast.reproduction", ("index.html", "reproduction.json"))
GPU_REPORT = FolderKind("report.json", "stepcast.gpu-report", ("report.json", "README.md"))
#: What an older gpu-first wrote, which is continued as a GPU report.
GPU_FIRST = FolderKind("first.json", "stepcast.gpu_first", ("report.json", "README.md"))
DIFF = FolderKind("diff.json", "stepcast.diff", ("index.html", "diff.json", "a.json.gz", "b.json.gz", "waterfall.png", "perfetto.json.gz"))
