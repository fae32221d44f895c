"""The kinds of folders that commands write, by which a later command recognizes that it may write there again."""

from traces.outputs import FolderKind

REPORT = FolderKind("report.json", "schedcast.report", ("index.html", "report.json", "validation.json", "summary.png"))
TRAINING = FolderKind("run.json", "schedcast.run", ("index.html", "run.json", "loss.png", "loss.svg"))
REPRODUCTION = FolderKind("reproduction.json", "schedcast.reproduction", ("index.html", "reproduction.json"))
GPU_REPORT = FolderKind("report.json", "schedcast.gpu-report", ("report.json", "README.md"))
#: What an older gpu-first wrote, which is continued as a GPU report.
GPU_FIRST = FolderKind("first.json", "schedcast.gpu_first", ("report.json", "README.md"))
DIFF = FolderKind("diff.json", "schedcast.diff", ("index.html", "diff.json", "a.json.gz", "b.json.gz", "waterfall.png", "perfetto.json.gz"))
