"""Validations, predictions and edits of a schedule in sentences."""

from collections.abc import Iterable, Sequence
from statistics import median

from simulator.engine.memory.contents import peak_words
from simulator.plan.editor.editor import Fault, Move
from traces import units
from traces.documents.comparison import INTERLEAVED, Comparison, Prediction, Validation, ValidationResult
from traces.documents.timeline import Cause, CriticalSpan
from traces.documents.verdict import is_judged
from ui.present.labels import PEAK, differing, division, labelled_rows, model_name, source_words

#: Reasons that are listed before the rest is counted.
MOST_FAULTS = 8


def move_words(tasks: Sequence[str], move: Move) -> str:
    """A move: conv1/update to stream 1 of cuda:0, before fc/update. `tasks`: all that moved."""
    what = tasks[0] if len(tasks) == 1 else f"{len(tasks)} tasks from {tasks[0]} on"
    lane = f"stream {move.stream} of {move.device}"
    where = f"to the end of {lane}" if move.before is None else f"to {lane}, before {move.before}"
    return f"{what} {where}" + (f", priority {move.priority}" if move.priority is not None else "")


def cost_words(step_s: float, own_s: float, strategy: str, edited: bool) -> str:
    """The step time beside that of the strategy's own order: 25.8 ms, 3.10 ms (13.7 %) slower than turbodl's own order."""
    if not edited:
        return f"{units.duration(step_s)}: {strategy}'s own order."
    if step_s == own_s:
        return f"{units.duration(step_s)}, as long as {strategy}'s own order."
    word = "slower" if step_s > own_s else "faster"
    change = f"{units.duration(abs(step_s - own_s))} ({units.percent(abs(step_s - own_s) / own_s, signed=False)})"
    return f"{units.duration(step_s)}, {change} {word} than {strategy}'s own order."


def best_words(step_s: float, best_s: float, moves: int) -> str:
    """How the step time compares with the best one of this session, which `moves` edits led to."""
    if step_s <= best_s:
        return "No order that you tried here is faster."
    edits = "without edits" if not moves else f"after {moves} edit{'s' if moves > 1 else ''}"
    return f"The best that you tried here took {units.duration(best_s)}, {edits}."


def fault_lines(faults: Sequence[Fault]) -> list[str]:
    """The reasons why an order cannot be run, a line each; many are cut short."""
    lines = [fault.words for fault in faults[:MOST_FAULTS]]
    return [*lines, f"... and {len(faults) - MOST_FAULTS} more"] if len(faults) > MOST_FAULTS else lines


CAUSE_WORDS = {
    Cause.DEPENDENCY: "waiting for a value from another task",
    Cause.LANE: "waiting for the task before them in their lane",
    Cause.LAUNCH: "waiting for the host to issue them",
    Cause.LINK: "waiting for a link",
    Cause.SMS: "waiting for SMs or cores",
    Cause.START: "at the start",
}
#: Said of the measured memory of a CPU's devices (`executors.cpu.memory_watch`).
ONE_AT_A_TIME = (
    "The prediction is of lanes that run at the same time; the memory was counted while tasks ran one at a time, in the plan's order, so"
    " that plans with several lanes may hold more at once than was counted."
)


def job_words(validation: Validation) -> str:
    """The job and the device of a validation: model, batch, input size, optimizer, precision, mode, device, number of devices."""
    about = validation.device
    counts = [f"{about[name]} {name}" for name in ("devices", "partitions", "processes") if about.get(name, 1) != 1]
    return ", ".join([short_job_words(validation), f"on {about.get('name', 'unnamed device')}", *counts])


def short_job_words(validation: Validation) -> str:
    """The job of a validation without its device."""
    size = f", input size {validation.image_size}" if validation.image_size else ""
    optimizer = f"{validation.optimizer}, {validation.precision}, {validation.mode}"
    return f"{model_name(validation.model)}, batch {validation.batch_size}{size}, {optimizer}"


def validation_words(validation: Validation) -> list[str]:
    """The results of a validation below its headline, one sentence per item."""
    if not validation.ran:
        return ["No strategy ran.", *_skipped(validation)]
    count = len(validation.ran)
    sentences = [f"{count} {'strategy' if count == 1 else 'strategies'} ran."]
    errors = {label: _error(row) for label, row in labelled_rows(validation) if row.ok}
    worst = max(errors, key=lambda label: abs(errors[label]))
    middle, largest = units.percent(median(map(abs, errors.values())), signed=False), units.percent(errors[worst])
    sentences.append(f"Median absolute error {middle}, worst {largest} ({worst}).")
    sentences += _drift_words(validation)
    right, asked = validation.signs
    if asked:
        sentences.append(f"{right} of {asked} differences from the baseline that exceed the noise were predicted with the right sign.")
    if validation.aa_spread is not None:
        noise = units.percent(validation.aa_spread, signed=False)
        sentences.append(f"Run-to-run noise: two interleaved measurements of the baseline differ by {noise}.")
    return [*sentences, *_repeat_words(validation), *_skipped(validation)]


def _repeat_words(validation: Validation) -> list[str]:
    """How far two runs of plain PyTorch differ, where that judges: some GPU kernels add in any order, and rounding can grow."""
    own = max((error for row in validation.ran for error in (row.reference_grad_error, row.reference_param_error) if error), default=0.0)
    if not own:
        return []
    return [
        f"Plain PyTorch differs from itself by {units.difference(own)} in a second run, on a CPU from parameters that are one rounding"
        " away; numbers are judged by a multiple of that."
    ]


def _error(result: ValidationResult) -> float:
    predicted_s, measured_s = result.steps_s
    return predicted_s / measured_s - 1


def _drift_words(validation: Validation) -> list[str]:
    """How the machine's speed has changed since its costs were measured, if they were not measured in the same rounds."""
    if validation.calibration == INTERLEAVED or validation.anchor_drift is None or validation.worst is None:
        return []
    corrected = units.percent(validation.median_abs_error, signed=False), units.percent(validation.worst.scored_error)
    return [
        f"The costs are from an earlier calibration; a fixed operation now took {validation.anchor_drift:.3f} times as long. Corrected for"
        f" that, the median absolute error is {corrected[0]}, the worst {corrected[1]}."
    ]


def _skipped(validation: Validation) -> list[str]:
    return [f"{label} was {result.status}." for label, result in labelled_rows(validation) if not result.ok]


def result_words(validation: Validation, result: ValidationResult) -> list[str]:
    """The result of one strategy of a validation, in sentences."""
    predicted = units.speedup(result.predicted_speedup, result.predicted_speedup_interval)
    over_baseline, over_pytorch = validation.gain_over_baseline(result), validation.gain_over_pytorch(result)
    measured = over_baseline.text if over_baseline is not None else units.speedup(result.measured_speedup)
    sentences = [f"Speed-up over the baseline predicted {predicted}, measured {measured}."]
    if over_pytorch is not None:
        sentences.append(f"Against plain PyTorch {over_pytorch.judged}.")
    if result.max_grad_error is not None and result.max_param_error is not None:
        sentences.append(_numerics(result.max_grad_error, result.max_param_error))
    if words := differing(result.semantics):
        sentences.append(f"Differs from plain training: {words}.")
    if taken := result.semantics.get("taken"):
        sentences.append(f"Assumed: {taken}.")
    if words := division(result.semantics):
        sentences.append(f"Layers are divided by {words}.")
    if checkpoint := result.semantics.get("checkpoint"):
        sentences.append(f"Checkpointing: {checkpoint}.")
    if result.shares is not None:
        sentences.append(f"Predicted task time: {source_words(result.shares)}.")
    return sentences


def memory_words(result: ValidationResult) -> list[str]:
    """The predicted and measured peak allocated memory of every device; no sentence if either is unknown.

    On a CPU a second sentence says that the two are of different runs: the executor counts memory while tasks run one at a time.
    """
    predicted, measured = result.predicted_peak_bytes_by_device, result.measured_peak_bytes_by_device
    if not predicted or not measured:
        return []
    peaks = [
        f"{device} {units.memory(predicted.get(device))} / {units.memory(count)}"
        + (f" ({units.percent(predicted[device] / count - 1)})" if count and device in predicted else "")
        for device, count in measured.items()
    ]
    sentences = [f"{PEAK.capitalize()}, predicted / measured: {', '.join(peaks)}."]
    if any(device.startswith("cpu") for device in measured):
        sentences.append(ONE_AT_A_TIME)
    return sentences


def holder_words(prediction: Prediction) -> list[str]:
    """What the memory holds at the peak of the device that needs most, the other devices' peaks, and what every replica holds."""
    if not prediction.at_peak:
        return []
    highest = max(prediction.at_peak, key=lambda peak: peak.bytes)
    sentences = [f"Memory: {peak_words(highest)}."]
    others = [f"{peak.device} {units.memory(peak.bytes)}" for peak in prediction.at_peak if peak is not highest]
    if others:
        sentences.append(f"The peaks of the other devices: {', '.join(others)}.")
    replicas = [peak for peak in prediction.at_peak if peak.replicated_bytes]
    if replicas:
        copied = units.memory(max(peak.replicated_bytes for peak in replicas))
        sentences.append(f"Of this, {copied} are parameters and state that each of {len(replicas)} devices holds a copy of.")
    return sentences


def _numerics(gradients: float, parameters: float) -> str:
    if gradients == parameters == 0:
        return "Gradients and parameters are identical to PyTorch's, bit for bit."
    by_kind = f"gradients {units.difference(gradients)}, parameters {units.difference(parameters)}"
    return f"Largest relative difference from PyTorch: {by_kind}."


def phase_words(comparison: Comparison) -> str:
    """The phase in which predicted and measured task time differ most."""
    seconds = comparison.phases()
    if not seconds:
        return "No task ran within the drawn training step."
    phase, most = max(seconds.items(), key=lambda item: abs(item[1].predicted_s - item[1].measured_s))
    predicted, measured = units.duration(most.predicted_s), units.duration(most.measured_s)
    return f"They differ most in {phase}: predicted {predicted} of task time, measured {measured}."


def no_verdict_words(shares: Iterable[float | None], here: bool = True) -> list[str]:
    """That too little was measured for a verdict, with the smallest of some shares; no sentence if enough was, or without a profile.

    `shares`: as `Prediction.measured_share`. `here`: whether measured costs are this machine's.
    """
    low = [share for share in shares if share is not None and not is_judged(share)]
    if not low:
        return []
    share, place = units.percent(min(low), signed=False), "on this machine" if here else "for its profile"
    return [f"No verdict: {share} of the predicted time was measured {place}; the rest is estimated from other ops."]


#: Of a step time that is but an estimate.
NOT_SETTLED = "Not settled: the schedule does not repeat itself, and longer runs of it take another time per step."


def prediction_words(prediction: Prediction, here: bool = True) -> list[str]:
    """A prediction in sentences: its speed-up, its critical path, memory, communication and the source of its costs.

    Without memory if it does not fit, since then `fits.fit_words` comes first. `here`: whether measured costs are this machine's.
    """
    sentences = [f"Assumed: {what}." for what in prediction.assumed]
    sentences += [] if prediction.settled else [NOT_SETTLED]
    sentences += [f"The loss is {prediction.loss}."] if prediction.loss else []
    if prediction.gain_over_pytorch is not None and prediction.pytorch_step_s is not None:
        sentences.append(f"Against plain PyTorch's {units.duration(prediction.pytorch_step_s)}: {prediction.gain_over_pytorch.judged}.")
    if prediction.gain_over_baseline is not None and prediction.baseline_step_s is not None:
        sentences.append(f"Against the baseline's {units.duration(prediction.baseline_step_s)}: {prediction.gain_over_baseline.judged}.")
    sentences += _causes(prediction.critical_path)
    sentences += holder_words(prediction) if prediction.fits else []
    sentences += [f"Checkpointing: {prediction.checkpoint}."] if prediction.checkpoint else []
    sentences += [f"{prediction.shown}."] if prediction.shown else []
    hidden, idle = units.duration(prediction.exposed_transfer_s), units.percent(prediction.bubble_share, signed=False)
    communication = f"Communication not hidden by computation takes {hidden}; " if prediction.exposed_transfer_s else ""
    sentences.append(f"{communication}{'devices are' if communication else 'Devices are'} idle for {idle} of the step.")
    if prediction.unused_devices:
        used, given = len(prediction.devices), len(prediction.devices) + prediction.unused_devices
        sentences.append(f"Uses {used} of {given} devices; the others have nothing to do.")
    return [*sentences, f"Predicted task time: {source_words(prediction.shares, here)}."]


def _causes(path: tuple[CriticalSpan, ...]) -> list[str]:
    if not path:
        return []
    counts = {cause: sum(link.cause == cause for link in path) for cause in Cause if cause != Cause.START}
    causes = [f"{count} {CAUSE_WORDS[cause]}" for cause, count in sorted(counts.items(), key=lambda item: -item[1]) if count]
    longest = max(path, key=lambda link: link.end_s - link.start_s)
    longest_task = f"the longest is {longest.task} ({units.duration(longest.end_s - longest.start_s)})"
    count = f"{len(path)} {'task' if len(path) == 1 else 'tasks'}"
    return [f"The critical path has {count}{': ' + ', '.join(causes) if causes else ''}; {longest_task}."]
