"""The tables of a GPU report, from sample validations."""

from tests.support.page_samples import result, skipped, validation
from traces.documents.gpu_report import GpuReport
from ui.present import gpu_report

REPORT = GpuReport(
    date="2026-01-01", versions={"torch": "2.13"}, device={"name": "H100"}, identity={}, minutes=8.0, seconds=1.0, parts=(),
)  # fmt: skip


def rows_of(document):
    lines = gpu_report.readme(REPORT, {"part": document}).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ") and "---" not in line]
    return [dict(zip(gpu_report.COLUMNS, row, strict=True)) for row in cells]


def test_plain_pytorch_is_the_first_row_and_every_row_is_compared_with_it():
    fast = result(against_pytorch=1.16, against_pytorch_interval=(1.08, 1.22), max_param_error=0.0)
    head, plain, row, refused = rows_of(validation(fast, skipped()))
    assert head == {name: name for name in gpu_report.COLUMNS}
    assert (plain["strategy"], plain["measured ms"], plain["against PyTorch"]) == ("plain PyTorch", "30.0", "1.00x")
    assert (row["against PyTorch"], row["verdict"], row["numbers"]) == ("1.16x (1.08 to 1.22)", "faster", "identical")
    assert (row["run-to-run noise"], refused["predicted ms (interval)"]) == ("1.0 %", "skipped: needs 2 devices")


def test_the_error_is_that_of_the_times_beside_it():
    _, _, row = rows_of(validation(result(predicted=0.040, measured=0.050, drift=1.2)))
    assert (row["predicted ms (interval)"], row["measured ms"], row["error"]) == ("40.0 (38.8 to 41.2)", "50.0", "-20.0 %")
