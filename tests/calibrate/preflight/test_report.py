"""The GPU report on a simulated GPU: the files it writes, how it resumes, and how it handles parts that fail or do not fit."""

import json
import re
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from calibrate import rounds
from calibrate.cuda import testbed as gpu_testbed
from calibrate.cuda.bench import Effort
from calibrate.cuda.contention import Sizes
from calibrate.preflight import validations
from calibrate.preflight.probe import GRACE_S, Context, Probe, Scale
from calibrate.preflight.registry import probes
from calibrate.preflight.runner import _LATE_S, Runner
from calibrate.preflight.validations import LONG_SEQUENCES, SEQUENCES, SHORT_SEQUENCES, TARGETS, Target, cases
from simulator.strategies import registry as strategies
from tests.fake_gpu import FACTS, FakeGpu
from tests.support import mlp
from tests.support.first_gpus import Attachable, EmptySessions, in_process
from tests.support.gpu_testbeds import few_repetitions
from tests.support.jobs import MLP
from tests.support.page_samples import result, validation
from tests.support.refusals import refuses
from traces.documents import gpu_report as documents
from traces.documents.comparison import Validation
from traces.documents.gpu_report import GpuReport
from traces.documents.profile import Identity, Profile
from traces.documents.shipped import shipped_profile
from traces.errors import Code, SchedcastError
from traces.outputs import archive_path
from ui.commands import preflight as command
from ui.present import gpu_report as gpu_report_page

SMALL = replace(FACTS, memory_bytes=64 << 20, cache_bytes=1 << 18)
QUICK = Effort(rounds=2, graph_s=1e-6, fewest_copies=1, most_copies=2, most_sets=2, most_issues=2, sustained_s=0.0)
LITTLE = Scale(QUICK, Sizes(16, 8, 4096), reference_edge=32, transfer_sizes=(4096, 65536))
MODELS = [Target(MLP, 4), Target("lenet5", 2)]
#: The probes that the tests run; the others are the same with other models and precisions.
MEASURED = (
    "machine", "streams", "machine-tf32", "mlp-make-b4-eager-tf32-strategies", "mlp-make-b4-eager-fp32", "mlp-make-b4-graph-fp32",
    "lenet5-b2-eager-fp32", "mlp-make-b4-eager-fp32-strategies",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def few_rounds():
    """Run two rounds, which are as good as ten without noise, and skip the slow measurement of the executor's own time, which is 0 here."""
    with few_repetitions(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "ROUNDS", 2)
        patch.setattr(gpu_testbed, "dispatch_s", lambda *arguments: 0.0)
        yield


def context_on(gpu: FakeGpu, folder: Path, **more) -> Context:
    return Context(gpu, LITTLE, folder, **more)


def chosen(*names: str, models=MODELS) -> list[Probe]:
    """The probes of these names after the first one, which says which GPU it is."""
    selected = [probe for probe in probes(models) if probe.name in ("versions", *(names or MEASURED))]
    assert len(selected) == 1 + len(names or MEASURED)
    return selected


def measure(context: Context, todo: list[Probe], minutes: float, **more) -> GpuReport:
    return Runner(context.folder, todo, minutes, in_process(context), clock=context.clock, **more).run()


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> Path:
    """The folder of a run that measured all parts in MEASURED."""
    folder = tmp_path_factory.mktemp("shipped") / "fake-gpu"
    with few_repetitions(), FakeGpu(facts=SMALL) as gpu:
        command.write(in_process(context_on(gpu, folder)), chosen(), 60, folder, archive_path(folder))
    return folder


@pytest.fixture
def folder(measured, tmp_path) -> Path:
    """A copy of that folder."""
    return Path(shutil.copytree(measured, tmp_path / "copy"))


def packed(folder: Path) -> dict[str, bytes]:
    """The files of the folder's archive, by their path in the folder."""
    with tarfile.open(archive_path(folder)) as archive:
        names = [member.name for member in archive.getmembers()]
        return {name.partition("/")[2]: archive.extractfile(name).read() for name in names}


def statuses(report: GpuReport) -> dict[str, str]:
    """By name, without the first probe, which is run in every call."""
    assert (report.parts[0].name, report.parts[0].status) == ("versions", "done")
    return {part.name: part.status for part in report.parts[1:]}


def test_a_run_writes_all_files(measured):
    report = GpuReport.load(measured / "report.json")
    assert statuses(report) == dict.fromkeys(MEASURED, "done")
    assert [part.why for part in report.parts if part.file] == [""] * 7
    assert (report.complete, report.well) == (True, True)
    assert [fix for fix in report.fix_first if "-graph-" not in fix] == [], "graphs of three tiny kernels are measured too coarsely"
    assert report.same_numbers
    assert (report.device["name"], report.versions["driver"], report.identity["gpu"]) == ("Fake GPU", "fake", "Fake GPU")
    validations = {f"validations/{name}.json" for name in MEASURED if "-b" in name}
    files = {str(path.relative_to(measured)) for path in measured.rglob("*") if path.is_file()}
    outputs = {"probes/versions.json", "probes/streams.json"}
    assert files == {"README.md", "report.json", "profile.json.gz", "profile-tf32.json.gz"} | outputs | validations
    assert packed(measured) == {name: (measured / name).read_bytes() for name in files}
    figures = report.parts[0].figures
    assert figures["gpu"]["sms"] == 132
    assert figures["device"] == report.device
    assert json.loads((measured / "probes" / "streams.json").read_text()) == report.quick[1].figures
    read = report.read_validations(measured)
    assert [row.strategy for row in read["mlp-make-b4-eager-fp32"].results] == ["baseline"]
    assert {row.strategy for row in read["mlp-make-b4-eager-fp32-strategies"].ran} == set(strategies.names(1))
    assert read["mlp-make-b4-eager-tf32-strategies"].precision == "tf32"
    summary = {of.mode: of for of in report.summary}
    assert summary["eager"].results == 2 + 2 * len(strategies.names(1))
    assert summary["eager"].median_abs_error < 0.02
    assert summary["graph"].results == 1


def test_its_profiles_load_as_shipped_profiles(measured):
    for tf32 in (False, True):
        profile = shipped_profile("Fake GPU", tf32, measured.parent)
        assert profile.identity.tf32 == tf32
        assert profile.costs
        assert profile.dispatch.dispatch_s == 0.0


def test_the_table_has_a_row_per_strategy_and_lists_what_is_left(measured):
    report = GpuReport.load(measured / "report.json")
    text = (measured / "README.md").read_text()
    assert text == gpu_report_page.readme(report, report.read_validations(measured))
    lines = text.splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ") and "---" not in line]
    assert tuple(rows[0]) == gpu_report_page.COLUMNS
    assert {len(row) for row in rows} == {len(gpu_report_page.COLUMNS)}
    plain = [row for row in rows if row[5] == "plain PyTorch"]
    assert len(plain) == len(report.read_validations(measured))
    assert rows[1] == plain[0]
    in_graphs = [row for row in rows if row[5] == "plain PyTorch, one CUDA graph"]
    assert len(in_graphs) == len(plain)
    rows = [row for row in rows if row not in plain + in_graphs]
    assert len(rows) == 1 + 3 + 2 * len(strategies.names(1))
    assert rows[1][:6] == ["mlp-make", "4", "eager", "tf32", "momentum:foreach", "baseline"]
    assert (rows[1][-3], rows[1][-1]) == ("1.00x / 1.00x", "identical")
    assert {row[0] for row in rows[1:]} == {"mlp-make", "lenet5"}
    assert "What did not fit" not in text
    assert str(Path(mlp.__file__).parent) not in text
    records = [
        part.model_copy(update={"status": "left", "why": "about 9 s, 3 s were left"} if part.name == "machine" else {})
        for part in report.parts
    ]
    words = gpu_report_page.readme(report.model_copy(update={"parts": tuple(records)}), {})
    assert "## What did not fit into the time\n\n- host costs, rates and transfers, fp32: about 9 s, 3 s were left" in words


def test_resume_skips_what_is_done_and_redoes_what_is_damaged(folder):
    torn = folder / "validations" / "mlp-make-b4-eager-fp32.json"
    torn.write_text(torn.read_text()[:100])
    with FakeGpu(facts=SMALL) as gpu:
        report = measure(context_on(gpu, folder), chosen(), 60)
        again = measure(context_on(gpu, folder), chosen(), 1e-9)
    redone = {"mlp-make-b4-eager-fp32"}
    assert statuses(report) == {name: "done" if name in redone else "skipped" for name in MEASURED}
    assert set(statuses(again).values()) == {"skipped"}
    assert again.same_numbers
    assert all(part.seconds is not None for part in again.parts)
    assert again.summary == report.summary
    assert [row.strategy for row in Validation.load(torn).results] == ["baseline"]


def test_a_new_strategy_or_a_damaged_profile_makes_a_part_undone(folder, tmp_path, monkeypatch):
    by_name = {part.name: part for part in chosen()}
    with FakeGpu(facts=SMALL) as gpu:
        context = context_on(gpu, folder)
        assert by_name["mlp-make-b4-eager-fp32-strategies"].earlier(context)
        discovered = {name: strategies.get(name) for name in strategies.names(1)}
        discovered["new"] = replace(discovered["forward-fusion"], name="new")
        monkeypatch.setattr(strategies, "_discover", lambda: discovered)
        newer = {part.name: part for part in probes(MODELS)}
        assert newer["mlp-make-b4-eager-fp32-strategies"].earlier(context) is None
        assert newer["mlp-make-b4-eager-fp32"].earlier(context)
        (folder / "profile.json.gz").write_bytes(b"\x1f\x8b")
        context = context_on(gpu, folder)
        undone = [name for name in MEASURED if "tf32" not in name and name != "streams"]
        assert [name for name, part in by_name.items() if part.file and part.earlier(context) is None] == undone
        assert "damaged gzip" in context.notes[0]
        assert str(tmp_path) not in context.notes[0]


def test_another_machines_folder_is_refused_and_replaced_on_request(folder):
    Profile(identity=Identity(kind="gpu", gpu="Other GPU", sms=1)).save(folder / "profile.json.gz")
    (folder / "notes.txt").write_text("mine")
    with FakeGpu(facts=SMALL) as gpu:
        with refuses(Code.REQUEST, r"the GPU is Other GPU here, Fake GPU there.*--no-resume"):
            measure(context_on(gpu, folder), chosen(), 60)
        measure(context_on(gpu, folder), chosen(), 1e-9, resume=False)
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name != "README.md"}
    assert files == {"notes.txt", "report.json", "probes/versions.json"}


def test_a_part_that_is_cut_short_resumes(tmp_path):
    part = chosen("mlp-make-b4-eager-fp32")[1]
    with FakeGpu(facts=SMALL) as gpu:
        machine = chosen("machine")
        cut = measure(context_on(gpu, tmp_path), [*machine, replace(part, reserve_s=1e9)], 60)
        assert statuses(cut) == {"machine": "done", part.name: "left"}
        assert cut.parts[2].why.startswith("cut short: ")
        assert "keys are not measured yet" in cut.parts[2].why
        assert not (tmp_path / part.file).exists()
        done = measure(context_on(gpu, tmp_path, keep_samples=True), [*machine, part], 60)
        assert (tmp_path / "profile.samples.jsonl.gz").exists()
    assert statuses(done) == {"machine": "skipped", part.name: "done"}


def test_strategies_that_fail_together_are_validated_one_by_one(folder, monkeypatch):
    (folder / "validations" / "mlp-make-b4-eager-fp32-strategies.json").unlink()
    original = validations.validate

    def validate(job, names, *rest, **more):
        if "backward-fusion" in names:
            raise RuntimeError("an op failed")
        return original(job, names, *rest, **more)

    monkeypatch.setattr(validations, "validate", validate)
    with FakeGpu(facts=SMALL) as gpu:
        report = measure(context_on(gpu, folder), chosen(), 60)
    record = next(part for part in report.parts[1:] if part.status == "done")
    rows = {row.strategy: row.status for row in Validation.load(folder / record.file).results}
    assert rows["backward-fusion"] == "skipped: RuntimeError: an op failed"
    assert {name for name, status in rows.items() if status == "ok"} == set(strategies.names(1)) - {"backward-fusion"}
    assert any("one by one" in flag for flag in record.flags)


def test_data_parallelism_is_validated_on_two_partitions_of_the_gpu(folder):
    names = [f"mlp-make-b4-{mode}-tf32-2-parts" for mode in ("eager", "graph")]
    asked = chosen(*names, models=MODELS[:1])
    with FakeGpu(facts=SMALL) as gpu:
        done = measure(context_on(gpu, folder), asked, 60)
        again = measure(context_on(gpu, folder), asked, 60)
    assert statuses(done) == dict.fromkeys(names, "done")
    assert statuses(again) == dict.fromkeys(names, "skipped")
    assert done.same_numbers
    assert {summary.mode: summary.results for summary in done.summary} == {"eager": 3, "graph": 3}
    assert done.summary[0].worst_error == pytest.approx(0.0, abs=0.02), "graphs are not checked: such short ones are measured too coarsely"
    for name in names:
        rows = Validation.load(folder / "validations" / f"{name}.json").ran
        assert [(row.strategy, row.options.get("overlap")) for row in rows] == [
            ("baseline", None), ("data-parallel", True), ("data-parallel", False)
        ]  # fmt: skip
        assert {row.shares.measured for row in rows} == {1.0}


@pytest.mark.parametrize(
    ("gpu", "verdicts", "geometry"),
    [
        (Attachable, ["differs", "ok"], "profiler"),  # without kernels it would come from the table
        (EmptySessions, ["differs", "differs"], "partitions"),
    ],
)
def test_the_profiler_is_used_as_its_checks_found_it(tmp_path, gpu, verdicts, geometry):
    with gpu(facts=SMALL) as simulated:
        report = measure(context_on(simulated, tmp_path), chosen("machine", "profiler", "profiler-attached", "mlp-make-b4-eager-fp32"), 60)
    assert [part.verdict for part in report.parts[2:]] == [*verdicts, "done"]
    assert {cost.geometry_from for cost in Profile.load(tmp_path / "profile.json.gz").costs.values() if cost.geometry_from} == {geometry}
    assert any("the profiler was off" in flag for flag in report.flags) == (geometry == "partitions")


def test_what_validations_need_are_checks():
    quick = {probe.name for probe in probes() if probe.file is None}
    needs = {probe.name: probe.needs for probe in probes()}
    assert quick.issuperset(name for names in needs.values() for name in names)
    assert needs["resnet50-b64-eager-amp-adamw-fused-schedules"] == ()
    assert needs["gpt2-small-b8-graph-amp-adamw-fused-schedules"] == ("captures", "events", "attention")
    assert needs["resnet50-b64-eager-tf32-2-parts"] == ("partitions",)


def test_a_gpu_that_cannot_be_split_says_why(folder):
    name = "mlp-make-b4-eager-tf32-2-parts"
    with FakeGpu(facts=SMALL, partitionable=False) as gpu:
        report = measure(context_on(gpu, folder), chosen("machine-tf32", name), 60)
        assert statuses(report) == {"machine-tf32": "skipped", name: "unsuited"}
        assert report.parts[2].why == "Fake GPU cannot be partitioned"
        page = gpu_report_page.readme(report, {})
    assert (
        "## What this GPU cannot do\n\n- mlp-make batch 4, eager, tf32, 2 partitions of the GPU: 3 strategies: Fake GPU cannot be" in page
    )
    assert "this GPU cannot run 1" in page


def test_scans_are_validated_together_with_plain_pytorch(tmp_path, monkeypatch):
    monkeypatch.setattr(validations, "SEQUENCES", ((8, 2),))
    name = "rnn_bitstream-8px-b2-graph-fp32-adam-foreach-scans"
    with FakeGpu(facts=SMALL) as gpu:
        done = measure(context_on(gpu, tmp_path), chosen("machine", name), 60)
    assert statuses(done) == {"machine": "done", name: "done"}
    assert done.parts[2].same_numbers
    document = Validation.load(tmp_path / "validations" / f"{name}.json")
    assert [(row.strategy, row.options.get("scan"), row.status) for row in document.results] == [
        ("baseline", None, "ok"), ("bppsa", "blelloch", "ok"), ("bppsa", "linear", "ok")
    ]  # fmt: skip
    assert document.reference_step_s > 0


def test_another_patch_of_the_driver_is_the_same_machine(folder):
    """The report says so. Another major version is another machine."""

    class Newer(FakeGpu):
        driver = "fake.95.05"

        def software(self):
            return super().software() | {"driver": self.driver}

    with Newer(facts=SMALL) as gpu:
        report = measure(context_on(gpu, folder), chosen(), 1e-9)
        assert set(statuses(report).values()) == {"skipped"}
        said = "profile.json.gz was begun with driver fake and is continued with fake.95.05; drivers of one major version count as the same"
        assert said in report.flags
        gpu.driver = "590.1"
        with refuses(Code.REQUEST, r"is of another machine or software \(Fake GPU 132 fake.95.05 .* there, Fake GPU 132 590.1"):
            measure(context_on(gpu, folder), chosen(), 1e-9)
        (folder / "report.json").unlink()
        with refuses(Code.REQUEST, r"the driver is fake here, 590 there"):
            measure(context_on(gpu, folder), chosen(), 1e-9)


def test_a_killed_run_keeps_what_it_has(folder, tmp_path, monkeypatch):
    """The table and the archive are as new as the last finished part, while the next one is being measured."""
    archive = tmp_path / "all.tgz"
    for name in MEASURED[4:6]:
        (folder / "validations" / f"{name}.json").unlink()
    seen = []
    original = validations.validate

    def validate(*arguments, **more):
        with tarfile.open(archive) as packed:
            report = json.loads(packed.extractfile("copy/report.json").read())
            page = packed.extractfile("copy/README.md").read().decode()
        assert not report["complete"]
        seen.append([part["name"] for part in report["parts"][1:] if part["status"] == "done"])
        assert page.count("plain PyTorch |") == sum(
            part["status"] in ("done", "skipped") and "-b" in part["name"] for part in report["parts"]
        )
        return original(*arguments, **more)

    monkeypatch.setattr(validations, "validate", validate)
    with FakeGpu(facts=SMALL) as gpu:
        command.write(in_process(context_on(gpu, folder)), chosen(), 60, folder, archive)
    assert seen == [[], ["mlp-make-b4-eager-fp32"]]


def test_progress_says_how_much_time_is_left(folder, tmp_path, capsys):
    (folder / "validations" / "lenet5-b2-eager-fp32.json").unlink()
    with FakeGpu(facts=SMALL) as gpu:
        command.write(in_process(context_on(gpu, folder)), chosen(), 60, folder, tmp_path / "copy.tar.gz")
    lines = capsys.readouterr().err.splitlines()
    assert re.search(r" s  done      lenet5 batch 2, eager, fp32: baseline \((60:00|5\d:\d\d) left\)$", lines[1])
    assert lines[-1] == f"report: {folder / 'README.md'}, all of it in {tmp_path / 'copy.tar.gz'}"


# Scheduling, on simulated parts.

VERSIONS = probes(())[0]


class SimulatedParts:
    """Makes parts that take a given time on a simulated clock, or fail. `ran` are the names of those that ran."""

    def __init__(self):
        self.now_s = 0.0
        self.ran: list[str] = []

    def part(self, name: str, estimate_s: float = 10.0, takes_s: float = 10.0, error: BaseException | None = None) -> Probe:
        def run(context: Context) -> str:
            self.ran.append(name)
            self.now_s += takes_s
            if error is not None:
                raise error
            (context.folder / name).touch()
            return ""

        def earlier(context: Context) -> dict | None:
            return {} if (context.folder / name).exists() else None

        return Probe(name, f"the part {name}", run, 1, file=name, kind="simulated", estimate_s=estimate_s, earlier=earlier)

    def measure(self, folder: Path, todo: list[Probe], minutes: float) -> GpuReport:
        with FakeGpu(facts=SMALL) as gpu:
            return measure(context_on(gpu, folder, clock=lambda: self.now_s), [VERSIONS, *todo], minutes)


def test_parts_that_do_not_fit_are_listed_and_measured_next_time(tmp_path):
    time = SimulatedParts()
    todo = [time.part("a"), time.part("long", 100.0), time.part("b"), time.part("c", takes_s=25.0), time.part("d"), time.part("e")]
    report = time.measure(tmp_path, todo, 0.75)
    assert time.ran == ["a", "b", "c"]
    assert statuses(report) == {"a": "done", "long": "left", "b": "done", "c": "done", "d": "left", "e": "left"}
    assert [part.why for part in report.parts if part.status == "left"] == [
        f"about {s} were left" for s in ("100 s, 35 s", "10 s, 0 s", "10 s, 0 s")
    ]
    time.ran.clear()
    assert set(statuses(time.measure(tmp_path, todo, 10)).values()) == {"done", "skipped"}
    assert time.ran == ["long", "d", "e"]


def test_estimates_follow_the_times_of_earlier_parts(tmp_path):
    time = SimulatedParts()
    report = time.measure(tmp_path, [time.part("a", 10.0, 40.0), time.part("b", 10.0), time.part("c", 1.0, 4.0)], 55 / 60)
    assert statuses(report) == {"a": "done", "b": "left", "c": "done"}
    assert report.parts[2].why == "about 40 s, 15 s were left"


def test_a_failing_part_does_not_stop_the_others(tmp_path):
    time = SimulatedParts()
    todo = [time.part("refused", error=SchedcastError("too large; choose less")), time.part("full", error=MemoryError()), time.part("well")]
    report = time.measure(tmp_path, todo, 5)
    assert statuses(report) == {"refused": "failed", "full": "failed", "well": "done"}
    _, refusal, full, _ = report.parts
    assert (refusal.why, refusal.where) == ("too large; choose less", "")
    assert full.why == "MemoryError"
    assert full.where.startswith("probe.py:")
    assert "/" not in full.where
    time.ran.clear()
    assert statuses(time.measure(tmp_path, todo, 1e-9)) == {"refused": "failed", "full": "failed", "well": "skipped"}
    time.measure(tmp_path, [*todo, time.part("new")], 5)
    assert time.ran == ["new", "refused", "full"], "a part that failed may break the GPU again: it comes last"


def test_a_gpu_that_cannot_compute_any_more_is_said_so(tmp_path, monkeypatch):
    """The next probe gets a new process; see test_runner."""
    time = SimulatedParts()
    part, before = time.part("breaks", error=RuntimeError("illegal memory access")), FakeGpu.synchronize

    def synchronize(gpu, in_flight=None):
        if "breaks" in time.ran:
            raise RuntimeError("CUDA error")
        before(gpu, in_flight)

    monkeypatch.setattr(FakeGpu, "synchronize", synchronize)
    with FakeGpu(facts=SMALL) as gpu:
        fields = in_process(context_on(gpu, tmp_path))(part, 60.0, 60.0, 0.0, lambda text: None)
    assert (fields["status"], fields["why"], fields["usable"]) == ("failed", "RuntimeError: illegal memory access", False)


def test_ctrl_c_leaves_a_folder_that_can_be_resumed(tmp_path):
    time = SimulatedParts()
    with pytest.raises(KeyboardInterrupt):
        time.measure(tmp_path, [time.part("a"), time.part("b", error=KeyboardInterrupt())], 5)
    stopped = GpuReport.load(tmp_path / "report.json")
    assert (statuses(stopped), stopped.parts[2].why, stopped.complete) == ({"a": "done", "b": "left"}, "stopped", False)
    assert statuses(time.measure(tmp_path, [time.part("a"), time.part("b")], 5)) == {"a": "skipped", "b": "done"}


# The parts and the command.


def test_the_parts_are_every_strategy_in_a_fixed_order():
    all_parts = probes()
    names = [part.name for part in all_parts]
    assert names == [part.name for part in probes()]
    assert len(set(names)) == len(names)
    assert [part.order for part in all_parts] == sorted(part.order for part in all_parts)

    def in_both(name: str) -> list[str]:
        return [name.format(mode) for mode in ("eager", "graph")]

    assert names[:41] == [
        "versions", "yardstick", "machine", *in_both("resnet50-b64-{}-amp-adamw-fused-schedules"),
        "urgency",
        *in_both("rnn_bitstream-1000px-b16-{}-fp32-adam-foreach-scans"), *in_both("rnn_bitstream-1000px-b128-{}-fp32-adam-foreach-scans"),
        "partitions", "machine-tf32", *in_both("resnet50-b64-{}-tf32-2-parts"), *in_both("resnet50-b64-{}-tf32-2-stages"),
        *in_both("alexnet_cifar-b128-{}-tf32-2-layers"),
        *in_both("gpt2-small-b8-{}-amp-adamw-fused-schedules"),
        *in_both("resnet50-b8-{}-amp-adamw-fused-schedules"),
        "streams", "host-calls", "cadence", "launches",
        "attention", "updates", "events", "captures",
        *in_both("mobilenet_v2-b32-{}-fp32-adam-for-fusion"),
        "several-gpus",
        "batch-norm", "writes", "keys", "numerics-fp32", "numerics-bf16", "numerics-nhwc", "profiler", "profiler-attached",
    ], "each published system has met the GPU after ten minutes"  # fmt: skip
    assert {part.name.split("-fp32")[1] for part in all_parts[-10:]} == {"-strategies"}, "nobody trains so on a GPU of today"
    all_strategies = [case for _, case in cases() if case.variant == "strategies"]
    assert {case.target.model for case in all_strategies} == {target.model for target in TARGETS}
    assert {frozenset(case.strategies) for case in all_strategies} == {frozenset(strategies.names(1))}
    assert {case.precision for case in all_strategies} == {"fp32", "tf32", "bf16", "amp"}
    methods = [case for _, case in cases() if case.variant == "turbodl-methods"]
    assert {(case.target, case.mode) for case in methods} == {
        (Target(model, batch), mode)
        for model, batch in (("resnet50", 64), ("resnet50", 8), ("gpt2:small", 8))
        for mode in ("eager", "graph")
    }  # fmt: skip
    scans = [(case.image_size, case.target.batch, case.mode) for _, case in cases() if case.variant == "scans"]
    assert len(scans) == 2 * len({*SEQUENCES, *SHORT_SEQUENCES, *LONG_SEQUENCES})
    assert scans[-2:] == [(10_000, 16, "eager"), (10_000, 16, "graph")]
    twice = [part.name for part in probes([Target("resnet50", 64), Target("resnet50", 8), Target("resnet50", 64)])]
    assert len(set(twice)) == len(twice)
    forms = {(case.form, case.mode) for _, case in cases() if case.target == Target("gpt2:small", 8) and case.optimizer == "adamw"}
    assert forms == {(form, mode) for form in ("foreach", "fused", "for") for mode in ("eager", "graph")}
    files = [part.file for part in all_parts if part.file]
    assert all(set(file) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-/") and file.count("/") <= 1 for file in files)


#: What the first probe says of the simulated GPU.
FAKE_GPU = {"identity": {str(tf32): Identity(kind="gpu", gpu="Fake GPU", sms=132).model_dump(mode="json") for tf32 in (True, False)}}


class SimulatedPlan:
    """Answers every part of the real list on a simulated clock, in its estimated time. The part `broken` dies, hangs or fails instead.

    `answered`: the parts that have an answer, which a later run skips.
    """

    def __init__(self, folder: Path, broken: str = "", how: str = ""):
        self.folder, self.broken, self.how, self.now_s = folder, broken, how, 0.0
        self.order: list[str] = []
        self.answered: list[str] = []

    def ask(self, asked: Probe, limit_s: float, left_s: float, reserve_s: float, show) -> dict:
        self.order.append(asked.name)
        trouble = asked.name == self.broken
        self.now_s += limit_s if trouble and self.how == "hangs" else asked.estimate_s
        if trouble:
            return {"status": "failed", "why": self.how, "usable": self.how == "fails"}
        if asked.kind == "validation":
            validation(result(predicted=0.040, measured=0.050)).save(self.folder / asked.file)
        self.answered.append(asked.name)
        return {"status": "done", "why": "", "figures": FAKE_GPU if asked.name == "versions" else {}}

    def _probes(self) -> list[Probe]:
        def with_answers(part: Probe) -> Probe:
            return replace(part, earlier=lambda context: {} if part.name in self.answered else None)

        return [with_answers(part) for part in probes()]

    def run(self, minutes: float) -> GpuReport:
        self.order, self.now_s = [], 0.0
        return Runner(self.folder, self._probes(), minutes, self.ask, clock=lambda: self.now_s).run()


@pytest.mark.parametrize(("minutes", "reaches"), [(10, "cadence"), (30, "resnet50-b64-eager-tf32-strategies"), (48, "")])
def test_a_plan_reaches_as_far_as_its_time_allows_and_goes_on_where_it_stopped(tmp_path, minutes, reaches):
    plan, names = SimulatedPlan(tmp_path), [part.name for part in probes()]
    report, reached = plan.run(minutes), names.index(reaches or names[-1]) + 1
    assert plan.order[:reached] == names[:reached]
    assert plan.now_s <= 60 * minutes + GRACE_S
    assert statuses(report)[names[-1]] == ("left" if reaches else "done")
    left = [name for name in names if name not in plan.answered]
    assert set(statuses(plan.run(60)).values()) <= {"done", "skipped"}
    assert plan.order == ["versions", *left]


TEN_MINUTES = [part.name for part in probes()][1:20]


@pytest.mark.parametrize("how", ["dies", "hangs", "fails"])
def test_ten_minutes_end_with_a_table_whatever_part_is_broken(tmp_path, how):
    """A long part that leaves the GPU unusable is tried twice, since the key is left out then."""
    by_name = {part.name: part for part in probes()}
    for broken in TEN_MINUTES:
        folder = tmp_path / broken
        plan = SimulatedPlan(folder, broken, how)
        report = plan.run(10)
        assert plan.now_s <= 600 + GRACE_S + _LATE_S
        ran = {part.name for part in report.parts if part.status == "done"}
        assert broken not in ran
        assert set(TEN_MINUTES[:10]) - {broken} <= ran, broken
        assert plan.order.count(broken) == (2 if by_name[broken].file and how != "fails" else 1)
        table = gpu_report_page.readme(report, report.read_validations(folder))
        assert table.count("| plain PyTorch |") == sum(part.kind == "validation" and part.name in ran for part in probes())


def test_the_next_call_tries_a_broken_part_last(tmp_path):
    plan = SimulatedPlan(tmp_path, "urgency", "dies")
    plan.run(10)
    plan.broken = ""
    assert statuses(plan.run(60))["urgency"] == "done"
    assert plan.order[-1] == "urgency"


def test_where_reports_go(tmp_path, monkeypatch):
    assert command.default_place("NVIDIA H200") == Path(documents.__file__).parents[1] / "data" / "nvidia-h200"
    monkeypatch.setattr(command.traces, "__file__", str(tmp_path / "traces" / "__init__.py"))
    assert command.default_place("NVIDIA H200") == Path("gpu-report-nvidia-h200")


def test_pipelines_are_validated_on_two_partitions_of_the_gpu(folder):
    """Within 3 %: the steps of so small a model are measured coarsely. The numbers are those that the weights' age gives."""
    part = "mlp-make-b4-eager-tf32-2-stages"
    with FakeGpu(facts=SMALL) as gpu:
        done = measure(context_on(gpu, folder), chosen(part, models=MODELS[:1]), 60)
    assert statuses(done) == {part: "done"}
    assert done.same_numbers
    rows = Validation.load(folder / "validations" / f"{part}.json").ran
    assert [row.strategy for row in rows] == ["baseline", "gpipe", "1f1b", "zero-bubble", "stale-pipeline"]
    assert {row.shares.measured for row in rows} == {1.0}
    assert max(abs(row.error) for row in rows) == pytest.approx(0.0, abs=0.03), [(row.strategy, row.error) for row in rows]
