"""Requests that cannot be served end with status 2 and one line (what was given, what is expected, what to do), and write nothing."""

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli_process import environment
from tests.support.places import SUPPORT
from tests.support.refusals import failed_after_answer, refused, refused_after_estimate
from traces.documents.profile import Identity, Profile

BROKEN = SUPPORT / "broken_models.py"
BASE = {"--model": "lenet5", "--batch": 4, "--strategy": "baseline", "--machine": "this-cpu"}


def options(**changes) -> list:
    """The options of a valid prediction with some changed; None leaves an option out."""
    changed = BASE | {f"--{name.replace('_', '-')}": item for name, item in changes.items()}
    return [part for name, item in changed.items() if item is not None for part in (name, item)]


WRONG_OPTIONS = [
    (options(model="lenet"), "unknown model 'lenet' (did you mean 'lenet5'?)"),
    (options(model=""), "unknown model ''"),
    (options(model=":"), "neither a file nor a module"),
    (options(model="torchvision:none"), "torchvision"),
    (options(model="llama3:8bb"), "unknown model 'llama3:8bb' (did you mean 'llama3:8b'?)"),
    (options(model="Llama-3:8B"), "unknown model 'Llama-3:8B' (did you mean 'llama3:8b'?)"),
    (options(model="lm:form=lama"), "unknown form of lm: 'lama' (did you mean 'llama'?)"),
    (options(model="lm:form=llama,heads=4"), "lm: lacks layers, d_model; give it as in lm:form=llama,"),
    (options(model="gpt2:xl", seq=2048), "--seq is 2048; gpt2:xl has positions for 1024 tokens; choose a shorter sequence"),
    (options(strategy="basline"), "unknown strategy 'basline' (did you mean 'baseline'?)"),
    (options(strategy="backward-fusion:speed=9"), "unknown option of strategy backward-fusion 'speed'"),
    (options(strategy="backward-fusion:update_stream=perhaps"), "update_stream='perhaps'"),
    (options(strategy="backward-fusion:update_stream"), "expected option=value"),
    (options(set="speed=9"), "unknown option for --set 'speed'"),
    (options(set="speed"), "--set 'speed' is not option=value"),
    (options(machine="h2000"), "unknown machine 'h2000' (did you mean 'h200'?)"),
    (options(machine="this-gpu"), "no calibrated NVIDIA GPU"),
    (options(machine="H1000"), "unknown machine 'H1000' (did you mean 'h100'?)"),
    (options(machine="h100,H2000"), "unknown machine 'H2000' (did you mean 'h200'?)"),
    (options(model="ResNet18"), "unknown model 'ResNet18' (did you mean 'resnet18'?)"),
    (options(strategy="Backward_Fusion"), "unknown strategy 'Backward_Fusion' (did you mean 'backward-fusion'?)"),
    (options(strategy="turbodl:Async=on"), "'Async' (did you mean 'async'?)"),
    (options(optimizer="AdamW"), "unknown optimizer 'AdamW' (did you mean 'adamw'?)"),
    (options(profile="p.json"), "--profile p.json and --machine this-cpu both name a machine"),
    (options(machine=None, profile="p.json"), "no profile at p.json"),
    (options(device="tpu"), "unknown device 'tpu' (did you mean 'cpu'?); expected one of: cpu, cuda, cuda:N"),
    (options(device="cuda:x"), "unknown device 'cuda:x'"),
    (options(device="cuda"), "machine this-cpu is a CPU"),
    (options(devices=0), "--devices is 0", "at least 1"),
    (options(devices=9999), "--devices 9999", "at least one core"),
    (options(devices=5, machine="p100x4"), "--devices 5", "choose 1 to 4"),
    (options(devices=2, machine="h100"), "machine h100 has 1 GPU; split its GPU with --partition 2, or choose", "dgx-h100"),
    (options(partition=2), "--partition 2 splits a GPU"),
    (options(partition=0, machine="h100"), "--partition is 0; expected at least 1"),
    (options(partition=2, devices=2, machine="p100x4"), "--partition 2 splits one GPU, and --devices 2 are several"),
    (options(link="wire"), "link is 'wire'", "copy:0.5"),
    (options(strategy="data-parallel"), "needs at least 2 devices", "--devices 2"),
    (options(mode="fast"), "unknown mode 'fast'"),
    (options(mode="graph"), "--mode graph needs CUDA"),
    (options(optimizer="adamm"), "unknown optimizer 'adamm' (did you mean 'adam'?)"),
    (options(optimizer="rmsprop:fused"), "PyTorch has no fused form of rmsprop", "rmsprop:foreach"),
    (options(optimizer="adam:quick"), "unknown optimizer form 'quick'"),
    (options(precision="fp8"), "unknown precision 'fp8'"),
    (options(layout="hwcn"), "unknown layout 'hwcn'"),
    (options(batch=0), "--batch is 0; expected at least 1"),
    (options(batch=-1), "--batch is -1"),
    (options(batch="many"), "--batch 'many' is not an integer"),
    (options(batch="8,,16"), "--batch '' is not an integer"),
    (options(batch="9" * 5000), "is not an integer"),
    (options(device="cuda:" + "9" * 5000), "unknown device 'cuda:999"),
    (options(batch="9" * 25), "failed for batch size 999"),
    (options(model=None), "Missing option '--model'; give a model as in --model resnet50"),
    ([*options(), "--model", "vgg11"], "--model is given 2 times and takes one value; give it once"),
    ([*options(), "--lr", "0.1", "--lr", "0.2"], "--lr is given 2 times"),
    (options(timeline="t.json", batch="4,8"), "--timeline t.json takes one prediction"),
    (options(accumulate=3), "--batch 4 is not divisible by --accumulate 3"),
    (options(batch=2**31, accumulate=2**31), "--accumulate is 2147483648; expected at most 10000"),
    (options(accumulate=0), "--accumulate is 0"),
    (options(lr="nan"), "--lr is nan; expected a finite number"),
    (options(lr="inf"), "--lr is inf"),
    (options(lr=-1), "--lr is -1.0"),
    (options(lr="fast"), "'--lr'"),
    (options(clip_norm=-1), "--clip-norm is -1.0; expected a finite number above 0"),
    (options(clip_norm="inf"), "--clip-norm is inf"),
    (options(image_size=0), "--image-size is 0"),
    (options(image_size=7), "--image-size is 7; lenet5 takes 16 or more"),
    (options(model="googlenet", image_size=16, batch=1), "the training step fails for batch size 1", "more than 1 value per channel"),
    (options(image_size=10**9), "the training step fails", "overflowed"),
    (options(speed=9), "No such option: --speed"),
    ([*options(), "more"], "more and --model lenet5 both name a model; drop one of the two"),
]


@pytest.mark.sampled(15)
@pytest.mark.parametrize("case", WRONG_OPTIONS, ids=lambda case: case[1][:40])
def test_wrong_option(schedcast, case):
    arguments, *fragments = case
    refused(schedcast.call("predict", *arguments, SCHEDCAST_DATA="nowhere"), *fragments)


#: Dense Jacobians of LeNet-5 grow with the batch: 0.12 GB a sample.
SCAN_TOO_LARGE = [
    "predict", "--model", "lenet5", "--batch", 4096, "--strategy", "bppsa:jacobian=dense,level=0", "--memory-limit", 4,
]  # fmt: skip


@pytest.mark.sampled(18)
@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (["fly"], "No such command 'fly'; see schedcast --help"),
        (["run", "--steps", 1], "--steps is 1; expected 2"),
        (["run", "--steps", 10**9], "--steps is 1000000000"),
        (["run", "--then", "baseline@10"], "--then is 'baseline@10'; expected a strategy and an iteration before --steps 10"),
        (["run", "--then", "baseline"], "as in gpipe@5"),
        (["run", "--then", "basline@5"], "did you mean 'baseline'?"),
        (["run", "--then", "baseline@5", "--schedule", "order.csv"], "drop one of the two"),
        (["run", "--lr-schedule", "0.1"], "--lr-schedule '0.1': '0.1' is not ITERATION:RATE; give it as in 0:0.1,300:0.01"),
        (["run", "--seeds", 0], "--seeds is 0; expected 1 to 1000"),
        (["run", "--eval-every", 1], "--eval-every is 1; expected at least 2"),
        (["run", "--target", 90], "--target is 90.0; expected a share of the samples above 0 and at most 1"),
        (["run", "--target", 0.9, "--eval-every", 0], "--target 0.9 needs evaluations"),
        (["run", "--predict-on", "gtx"], "unknown machine 'gtx'"),
        (["run", "--beside", "pytorh"], "unknown name for --beside 'pytorh' (did you mean 'pytorch'?)"),
        (["run", "--beside", "baseline"], "--beside baseline is the strategy itself"),
        (["run", "--beside", "turbodl:speed=9"], "unknown option of strategy turbodl 'speed'"),
        (["run", "--out", "/dev/null"], "cannot write /dev/null: it is a file, expected the name of a folder"),
        (["run", "--mode", "graph"], "--mode graph needs CUDA"),
        (["run", "--device", "cuda"], "use the device cpu"),
        (["run", "--devices", 9999], "--devices 9999"),
        (["run", "--precision", "tf32"], "tf32 needs an NVIDIA GPU"),
        (["run", "--batch", 10**8], "the largest batch that fits is"),
        ([*SCAN_TOO_LARGE, "--machine", "h100"], "choose a smaller batch or --image-size; the largest batch that fits is 27"),
        (["run", "--strategy", "backward-fusion", "--clip-norm", 1], "cannot clip by the global norm"),
        (["calibrate", "--batch", 10**8], "needs"),
        (["validate", "--quick", "--calibrate", "--no-calibrate"], "is given 2 times and takes one value"),
        (["calibrate", "--strategy", "none"], "unknown strategy 'none'"),
        (["validate", "--strategy", "none"], "unknown strategy 'none'"),
        (["validate", "--no-calibrate"], "no profile at"),
        (["ui", "--port", 0], "--port 0 is not a port"),
        (["ui", "nowhere"], "no report at nowhere"),
    ],
    ids=lambda item: " ".join(map(str, item)) if isinstance(item, list) else None,
)
def test_wrong_request(schedcast, arguments, fragment):
    command, *more = arguments
    given = {"run": BASE_RUN, "calibrate": BASE_RUN[:4], "validate": BASE_RUN[:4]}.get(command, [])
    job = [part for name, value in zip(given[::2], given[1::2], strict=True) if name not in more for part in (name, value)]
    refused(schedcast.call(command, *job, *more, SCHEDCAST_DATA="nowhere"), fragment)
    assert not (schedcast.folder / "nowhere").exists()


BASE_RUN = ["--model", "lenet5", "--batch", 4, "--strategy", "baseline"]

BAD_FACTORIES = [
    ("raises", "broken_models.py:", " in raises: RuntimeError: no data today; the factory "),
    ("exits", "in exits: SystemExit: 3"),
    ("raises_a_base_exception", "in raises_a_base_exception: Stop: enough"),
    ("forward_raises_a_base_exception", "in stop: Stop: enough"),
    ("returns_nothing", "returned NoneType; expected (module, inputs), (module, inputs, target)"),
    ("returns_a_function", "returned a function as its model; expected a torch.nn.Module"),
    ("no_argument", "takes 0 positional arguments"),
    ("loss_is_a_number", "returned a loss of type int; expected a function (output, target)"),
    ("loss_per_sample", "the loss is a tensor of shape (4,); expected a tensor with one element"),
    ("loss_without_graph", "the loss does not depend on any trainable parameter"),
    ("frozen", "no trainable parameter"),
    ("lazy", "lazy parameters"),
    ("sparse", "layer '0' of", "sparse=False"),
    ("other_batch", "made input:0 (7, 5), target:0 (7,) for batch size 4"),
    ("other_target", "Expected input batch_size (4) to match target batch_size (5)"),
    ("other_width", "the training step fails for batch size 4"),
    ("reads_a_value", "remove .item()"),
    ("picks_by_value", "reads tensor values", "boolean indexing"),
    ("needs_a_gpu", "broken_models.py:", " in <lambda>: "),
    ("forward_raises", "broken_models.py:", " in complain: KeyError: 'layer 7'; the training step fails for batch size 4"),
    ("compiled", "is compiled by torch.compile, which is not modeled"),
    ("complex_parameter", "parameter 'phase' of ", " is complex, which is not modeled"),
    ("sparse_input", "input:0 of ", "is a sparse tensor (torch.sparse_coo)"),
    ("nested_input", "input:0 of ", "is a nested tensor"),
    ("meta_parameters", "tensor 'weight' of ", "on the device meta"),
    ("always_16", "made input:0 (16, 4), target:0 (16,) for batch size 4"),
    ("hook_on_a_weight", "tensor 'weight' of ", "has a hook (register_hook)"),
    ("hook_after_accumulation", "tensor 'bias' of ", "has a hook (register_post_accumulate_grad_hook)"),
    ("hook_in_forward", "tensor 'linear.weight' of the model has a hook (register_hook)"),
    ("counts", "two forward passes in a row differ at model/mul", "'calls' of the model from 0 to 2"),
    ("rebinds_a_buffer", "reads a tensor that an earlier step computed"),
    ("changes_its_input", "aten.relu_.default in layer '' changes input:0 in place"),
    ("backward_in_forward", "the model's forward calls backward (parameter 'linear.weight'"),
    ("absent", "has no factory 'absent'", "it offers: "),
    ("NOT_A_FUNCTION", "has no factory 'NOT_A_FUNCTION'"),
    ("", "has no factory ''"),
]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("case", BAD_FACTORIES, ids=lambda case: case[0])
def test_wrong_factory(schedcast, case):
    name, *fragments = case
    refused(schedcast.call("predict", *options(model=f"{BROKEN}:{name}"), SCHEDCAST_DATA="nowhere"), *fragments)


@pytest.mark.thorough
def test_a_failure_that_only_real_tensors_show(schedcast):
    job = ["--model", f"{BROKEN}:class_out_of_range", "--batch", 4, "--strategy", "baseline"]
    refused(schedcast.call("run", *job), "the training step fails for batch size 4: IndexError")
    refused_after_estimate(schedcast.call("validate", *job), "the training step fails for batch size 4: IndexError")


@pytest.mark.thorough
def test_a_run_whose_numbers_are_not_those_of_plain_pytorch(schedcast):
    job = ["run", "--batch", 4, "--strategy", "baseline", "--steps", 4, "--json"]
    done = schedcast.call(*job, "--model", f"{BROKEN}:hidden_gradient_hook")
    assert done.status == 1
    assert "baseline does not compute what plain PyTorch computes" in done.err
    assert done.document["max_grad_error"] > 0.1
    done = schedcast.call(*job, "--model", f"{BROKEN}:good")
    assert (done.status, done.err) == (0, "")
    assert done.document["max_grad_error"] < 1e-6


def test_a_factory_that_never_returns(schedcast):
    call = options(model=f"{BROKEN}:never_returns")
    refused(
        schedcast.call("predict", *call, SCHEDCAST_FACTORY_SECONDS="0.5"), "never_returns has made no progress for 0.5 s", "FACTORY_SECONDS"
    )
    refused(schedcast.call("predict", *call, SCHEDCAST_FACTORY_SECONDS="soon"), "SCHEDCAST_FACTORY_SECONDS is 'soon'")


def test_a_model_path_that_is_not_utf8(schedcast, tmp_path):
    name = "model-\udcff.py"  # Python's form of the byte 0xff in a file name
    (tmp_path / name).write_text(BROKEN.read_text())
    refused(schedcast.call("predict", *options(model=f"{name}:good"), cwd=tmp_path), "\\udcff", "is not UTF-8 text", "rename")
    refused(schedcast.call("predict", *options(model=f"{'m' * 300}.py:good"), cwd=tmp_path), "File name too long")


@pytest.mark.sampled(9)
@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        (None, "no file"), ("import absent", "No module named 'absent'"), ("def f(:", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)  # fmt: skip
def test_a_model_file_that_does_not_import(schedcast, tmp_path, text, fragment):
    if text is not None:
        (tmp_path / "model.py").write_text(text)
    refused(schedcast.call("predict", *options(model="model.py:make"), cwd=tmp_path), fragment)
    refused(schedcast.call("predict", *options(model="model:make"), cwd=tmp_path), fragment if text else "module model does not import")
    refused(schedcast.call("predict", *options(model="model.py"), cwd=tmp_path), "names no factory; expected FILE.py:FACTORY")


@pytest.mark.thorough
def test_a_users_files_with_our_names(schedcast, tmp_path):
    (tmp_path / "traces.py").write_text("raise RuntimeError('the wrong traces')")
    (tmp_path / "simulator.py").write_text(BROKEN.read_text())
    for name in ("good.py", "needs.py", "indirect.py"):
        (tmp_path / name).write_text(
            {"good.py": "", "needs.py": "import traces\n", "indirect.py": "import needs\n"}[name] + BROKEN.read_text()
        )
    path = {"PYTHONPATH": str(tmp_path)}
    assert schedcast.call("predict", *options(model="good.py:good"), cwd=tmp_path, **path).status == 0
    assert schedcast.call("predict", *options(model="simulator.py:good"), cwd=tmp_path, **path).status == 0
    for name in ("needs", "indirect"):
        done = schedcast.call("predict", *options(model=f"{name}.py:good"), cwd=tmp_path)
        refused(done, "needs.py imports traces, a name taken by schedcast; rename", "traces.py")
    refused(schedcast.call("predict", *options(model="traces:make"), cwd=tmp_path), "a name taken by schedcast")


def test_a_process_takes_no_package_of_schedcast_from_the_current_folder(tmp_path):
    (tmp_path / "traces.py").write_text("raise RuntimeError('the wrong traces')")
    command = [sys.executable, "-m", "ui.cli", "machines", "--json"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def damaged_profiles(folder: Path) -> dict[str, tuple[Path, str]]:
    """Unusable profiles by the kind of damage: each file, and a part of the error message."""
    good = Profile(identity=Identity(kind="cpu", cpu="A", cores=2)).save(folder / "good.json").read_bytes()
    packed = gzip.compress(good)
    newer = json.dumps(json.loads(good) | {"schema": "schedcast.profile/99"}).encode()
    contents = {
        "truncated": (good[: len(good) // 2], "not valid JSON"),
        "prose": (b"once upon a time", "not valid JSON"),
        "empty": (b"", "not valid JSON"),
        "cut gzip": (packed[: len(packed) // 2], "damaged gzip"),
        "flipped gzip": (packed[:-8] + b"\0" * 8, "CRC"),
        "newer": (newer, "schema schedcast.profile/99, newer than schedcast.profile/1"),
        "other kind": (b'{"schema": "schedcast.timeline/1"}', "is not a profile"),
        "wrong type": (good.replace(b'"cpu": "A"', b'"cpu": 7'), "damaged at identity > cpu"),
    }
    profiles = {}
    for name, (content, message) in contents.items():
        path = folder / f"{name.replace(' ', '-')}.json"
        path.write_bytes(content)
        profiles[name] = path, message
    return profiles


@pytest.mark.thorough
def test_an_unusable_profile(schedcast, tmp_path):
    for path, message in damaged_profiles(tmp_path).values():
        before = path.read_bytes()
        refused(schedcast.call("predict", *options(machine=None, profile=path)), message)
        refused(schedcast.call("calibrate", *BASE_RUN, "-o", path), message)
        assert path.read_bytes() == before
    refused(schedcast.call("predict", *options(machine=None, profile=tmp_path)), "cannot read profile")
    gpu = Profile(identity=Identity(kind="gpu", gpu="NVIDIA H200", sms=132)).save(tmp_path / "gpu.json")
    refused(schedcast.call("predict", *options(machine=None, profile=gpu, precision="tf32")), "was measured in fp32")
    gpu = Profile(identity=Identity(kind="gpu", gpu="NVIDIA B900", sms=132)).save(tmp_path / "unknown.json")
    refused(schedcast.call("predict", *options(machine=None, profile=gpu)), "the profile of NVIDIA B900 lacks", "this GPU has no preset")


@pytest.mark.thorough
def test_a_profile_of_another_machine_is_used_with_a_warning_but_not_changed(schedcast, tmp_path):
    place = Profile(identity=Identity(kind="cpu", cpu="Elsewhere 9000", cores=64)).save(tmp_path / "there.json")
    before = place.read_bytes()
    done = schedcast.call("predict", *options(machine=None, profile=place), "--json")
    assert done.status == 0
    assert "cpu-elsewhere-9000-64" in done.err
    assert "this machine is cpu-" in done.err
    assert schedcast.call("run", *BASE_RUN, "--steps", 3, "--profile", place).status == 0
    assert schedcast.call("validate", *BASE_RUN, "--profile", place, "--no-calibrate", "--json").document["results"][0]["status"] == "ok"
    refused(schedcast.call("calibrate", *BASE_RUN, "-o", place), "of another machine (cpu-elsewhere-9000-64)", "-o")
    assert place.read_bytes() == before


@pytest.mark.thorough
def test_places_that_cannot_be_written(schedcast, tmp_path):
    (tmp_path / "file").write_text("mine")
    for place, message in ((tmp_path / "file" / "x.json", f"{tmp_path / 'file'} is not a folder"), (tmp_path, "it is a folder")):
        refused(schedcast.call("predict", *options(timeline=place)), message)
        refused(schedcast.call("run", *BASE_RUN, "--timeline", place), message)
        refused(schedcast.call("run", *BASE_RUN, "--metrics", place), message)
    refused(schedcast.call("calibrate", *BASE_RUN, "-o", tmp_path / "file" / "p.json"), "is not a folder")
    refused(schedcast.call("validate", *BASE_RUN, "--out", tmp_path / "file"), "it is a file, expected the name of a folder")
    refused(schedcast.call("demo", "--out", tmp_path / "file" / "report"), "is not a folder")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.thorough
def test_a_full_disk(schedcast, tmp_path):
    """What was measured is printed all the same. Standard output is a file here, and gets full, too."""
    full = {"file_limit": 600}
    assert schedcast.call("predict", *options()).status == 0  # this and the next put their graphs into the cache
    assert schedcast.call("calibrate", *BASE_RUN, "-o", schedcast.folder / "before.json").status == 0
    done = schedcast.call("predict", *options(timeline=tmp_path / "t.json"), **full)
    failed_after_answer(done, "cannot write the answer to standard output: File too large", "t.json: File too large")
    done = schedcast.call("run", *BASE_RUN, "--steps", 3, "--metrics", tmp_path / "m.json", **full)
    failed_after_answer(done, "m.json: File too large")
    assert "per step" in done.out
    refused(schedcast.call("calibrate", *BASE_RUN, "-o", tmp_path / "p.json", **full), "p.samples.jsonl.gz: File too large")
    done = schedcast.call("validate", *BASE_RUN, "--out", tmp_path / "report", "--quick", **full)
    assert (done.status, "File too large" in done.err, "Traceback" in done.err) == (2, True, False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
@pytest.mark.parametrize("arguments", [["machines"], ["machines", "--json"], ["--help"], ["predict", "--model", "lenet5", "--json"]])
def test_standard_output_on_a_full_disk(tmp_path, arguments):
    with open("/dev/full", "w") as full:
        code = "from ui.cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, env=environment(tmp_path), check=False
        )
    assert done.returncode == 2
    assert "schedcast: cannot write the answer to standard output: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


@pytest.mark.thorough
def test_standard_error_on_a_full_disk(tmp_path):
    """Nobody can be told why, however long the reason is; the status says that it failed, and not by a bug."""
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-c", "from ui.cli import main; main()", "machines", "nobody" * 2000]
        assert subprocess.run(command, stderr=full, env=environment(tmp_path), check=False).returncode == 2


@pytest.mark.thorough
def test_a_memory_limit(schedcast):
    small = ("--memory-limit", 0.0004)
    done = schedcast.call("predict", *options(), *small, "--json")
    assert (done.status, done.document["fits"]) == (1, False)
    (memory,) = done.document["memories"]
    assert memory["needed_bytes"] > memory["size_bytes"] == 400_000
    assert done.document["largest_batch"] is None, "the parameters alone are larger"
    shown = schedcast.call("predict", *options(), *small, FORCE_COLOR="1")
    assert shown.status == 1
    assert re.match(r"\x1b\[1;31mbaseline does not fit: needs .*, 390.6 KiB \(0.0004 GB\) there, .* too much\.", shown.out), (
        "red, and first"
    )
    assert "Memory: peak of" in shown.out
    assert "No smaller batch is predicted to fit." in shown.out
    words = ("does not fit: needs", "390.6 KiB (0.0004 GB) there", "too much; peak of", "parameters", "no smaller batch is predicted")
    refused(schedcast.call("run", *BASE_RUN, *small), *words)
    done = schedcast.call("validate", *BASE_RUN, *small, "--json")
    assert done.status == 1
    assert all(word in row["status"] for row in done.document["results"] for word in words)
    assert schedcast.call("predict", *options(), "--memory-limit", 10**6, "--json").document["fits"], (
        "a limit above the machine's memory changes nothing"
    )
    for wrong in (0, -1, "nan"):
        refused(schedcast.call("predict", *options(), "--memory-limit", wrong), "expected a number above 0")


@pytest.mark.thorough
def test_more_memory_than_there_is(schedcast, tmp_path):
    done = schedcast.call("predict", *options(batch=10**8), "--json")
    assert (done.status, done.document["fits"]) == (1, False)
    assert 1 < done.document["largest_batch"] < 10**8
    done = schedcast.call("validate", "--model", "lenet5", "--batch", 10**8, "--out", tmp_path / "report", "--json")
    assert done.status == 1
    assert len(done.document["results"]) >= 3
    assert all(row["status"].startswith("skipped: ") and "needs" in row["status"] for row in done.document["results"])
    assert done.document["reference_step_s"] is None
    assert (tmp_path / "report" / "index.html").exists()
    assert schedcast.call("validate", "--model", "lenet5", "--batch", 10**8).status == 1


# Every command that reads a file refuses a damaged one, and a place that is no file, with status 2 and one line.


JOB = ("--model", "lenet5", "--batch", 4, "--strategy", "baseline")
READERS = {
    "predict": ("predict", *JOB, "--profile"),
    "run": ("run", *JOB, "--steps", 2, "--profile"),
    "validate": ("validate", *JOB, "--no-calibrate", "--profile"),
    "replay": ("replay",),
    "diff": ("diff",),
}


@pytest.mark.sampled(24)
@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize("place", ["/dev/zero", "/", "x" * 5000, "no/such/file", "\udcff"])
def test_a_place_that_is_no_file(schedcast, command, place):
    refused(schedcast.call(*READERS[command], place))


@pytest.mark.sampled(24)
@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize(
    "content",
    [
        b"", b"\x1f\x8b", b"\xff\xfe{", b"[" * 100_000, b"9" * 5000, b'{"traceEvents": [NaN]}', b'"\\ud800"', b'{"schema": 1e999}',
        gzip.compress(b"[" + b" " * (1 << 20)),
        json.dumps({"schema": "schedcast.profile/1", "identity": {"kind": "cpu"}, "costs": 7}).encode(),
    ],
)  # fmt: skip
def test_a_damaged_file(schedcast, tmp_path, command, content):
    (tmp_path / "damaged.json").write_bytes(content)
    refused(schedcast.call(*READERS[command], tmp_path / "damaged.json"), "damaged.json")


@pytest.mark.parametrize("option", ["--trace", None])
def test_the_app_is_not_started_for_a_place_that_is_no_file(schedcast, option):
    refused(schedcast.call("ui", *filter(None, [option]), "x" * 5000), "no ")


def test_a_search_of_a_number_that_is_too_long(schedcast):
    digits = "9" * 5000
    refused(schedcast.call("search", "--model", "lenet5", "--batch", 8, "--try", f"accumulate={digits}"), "is not a number of at least 1")


def test_a_limit_beyond_every_memory_is_none(schedcast):
    assert schedcast.call("predict", *options(machine="h100", memory_limit="1e308"), "--json").document["fits"]


@pytest.mark.parametrize("call", ["profiles", "report", "judge", "scoreboard", "rules", "replay", "ui", "gpu-report --out"])
def test_a_name_that_is_too_long_for_a_file_is_refused_by_every_command_that_takes_one(schedcast, call):
    refused(schedcast.call(*call.split(), "x" * 5000), "xxx")


def test_a_module_whose_name_is_too_long_for_a_file_does_not_exist(schedcast):
    refused(schedcast.call("predict", *options(model=f"{'x' * 300}.{'y' * 300}:make"), SCHEDCAST_DATA="nowhere"), "xxx")
