"""Validations and predictions in sentences."""

from simulator.memory.words import peak_words
from traces import units
from traces.comparison import INTERLEAVED, Comparison, Prediction, Validation, ValidationResult
from traces.timeline import Cause, CriticalSpan
from ui.text.labels import plain_threads, row_labels

CAUSE_WORDS = {
    Cause.DEPENDENCY: "waiting for a value from another task",
    Cause.LANE: "waiting for the task before them in their lane",
    Cause.LAUNCH: "waiting for the host to issue them",
    Cause.LINK: "waiting for a link",
    Cause.SMS: "waiting for SMs or cores",
    Cause.START: "at the start",
}


def job_words(validation: Validation) -> str:
    """The job and the device of a validation: model, batch, optimizer, precision, mode, device."""
    device = validation.device.get("name", "unnamed device")
    job = f"{validation.model}, batch {validation.batch_size}, {validation.optimizer}, {validation.precision}, {validation.mode}"
    return f"{job}, on {device}"


def validation_words(validation: Validation) -> list[str]:
    """The results of a validation, one sentence per item."""
    if not validation.ran:
        return ["No strategy ran.", *_skipped(validation)]
    count = len(validation.ran)
    sentences = [f"{count} {'strategy' if count == 1 else 'strategies'} ran."]
    worst = validation.worst
    if worst is not None:
        label = row_labels(validation.results)[validation.results.index(worst)]
        middle, largest = units.percent(validation.median_abs_error, signed=False), units.percent(worst.scored_error)
        corrected = "" if validation.calibration == INTERLEAVED else ", corrected for drift"
        sentences.append(f"Median absolute error {middle}, worst {largest} ({label}){corrected}.")
    right, asked = validation.signs
    if asked:
        sentences.append(f"{right} of {asked} speed-ups that differ from 1 by more than the noise were predicted on the right side of 1.")
    if validation.aa_spread is not None:
        sentences.append(f"Two interleaved measurements of the baseline differ by {units.percent(validation.aa_spread, signed=False)}.")
    if validation.anchor_drift is not None:
        sentences.append(f"A fixed operation took {validation.anchor_drift:.3f} times as long as at calibration.")
    return sentences + plain_words(validation) + _skipped(validation)


def plain_words(validation: Validation) -> list[str]:
    """Whether any schedule is faster than plain PyTorch, the user's own loop; no sentence if either was not measured.

    A schedule that is faster by no more than the A/A spread beats it within the noise.
    """
    fastest = validation.fastest
    if fastest is None or validation.reference_step_s is None:
        return []
    threads = plain_threads(validation)
    plain = f"plain PyTorch on {threads}" if threads else "plain PyTorch"
    label = row_labels(validation.results)[validation.results.index(fastest)]
    plain_time, fastest_time = units.duration(validation.reference_step_s), units.duration(fastest.measured_step_s)
    gain = validation.reference_step_s / fastest.measured_step_s
    if gain <= 1:
        return [f"No schedule beats {plain}: it takes {plain_time} per step, the fastest schedule ({label}) {fastest_time}."]
    doubt = ", which is within the noise" if gain - 1 <= (validation.aa_spread or 0.0) else ""
    return [f"{label} beats {plain} by a factor of {gain:.2f}{doubt}: {fastest_time} per step instead of {plain_time}."]


def _skipped(validation: Validation) -> list[str]:
    labels = row_labels(validation.results)
    return [f"{label} was {result.status}." for label, result in zip(labels, validation.results, strict=True) if not result.ok]


def result_words(result: ValidationResult) -> list[str]:
    """One strategy's result, in sentences."""
    gain = f"Speed-up predicted {units.speedup(result.predicted_speedup)}, measured {units.speedup(result.measured_speedup)}."
    sentences = [gain]
    if result.max_grad_error is not None and result.max_param_error is not None:
        sentences.append(_numerics(result.max_grad_error, result.max_param_error))
    if result.semantics:
        sentences.append(f"Differs from plain training: {'; '.join(f'{name}: {value}' for name, value in result.semantics.items())}.")
    if result.shares is not None:
        measured, fitted, guessed = (
            units.percent(share, signed=False) for share in (result.shares.measured, result.shares.fitted, result.shares.guessed)
        )
        sentences.append(
            f"Of the predicted task time, {measured} comes from measured costs, {fitted} from fitted and {guessed} from guessed costs."
        )
    return sentences


def memory_words(result: ValidationResult) -> list[str]:
    """The predicted and measured peak memory of every device; no sentence if either is unknown."""
    predicted, measured = result.predicted_peak_bytes_by_device, result.measured_peak_bytes_by_device
    if not predicted or not measured:
        return []
    peaks = [
        f"{device} {units.memory(predicted.get(device))} / {units.memory(count)}"
        + (f" ({units.percent(predicted[device] / count - 1)})" if count and device in predicted else "")
        for device, count in measured.items()
    ]
    return [f"Peak memory predicted / measured: {', '.join(peaks)}."]


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
        return "Gradients and parameters are exactly those of the reference."
    by_kind = f"gradients {units.difference(gradients)}, parameters {units.difference(parameters)}"
    return f"Largest relative difference from the reference: {by_kind}."


def phase_words(comparison: Comparison) -> str:
    """The phase in which predicted and measured task time differ most."""
    seconds = comparison.phases()
    if not seconds:
        return "No task ran within the steady period."
    phase, most = max(seconds.items(), key=lambda item: abs(item[1].predicted_s - item[1].measured_s))
    predicted, measured = units.duration(most.predicted_s), units.duration(most.measured_s)
    return f"They differ most in {phase}: predicted {predicted} of task time, measured {measured}."


def prediction_words(prediction: Prediction) -> list[str]:
    """A prediction in sentences: its speed-up, its critical path, memory, transfers and the source of its costs.

    Without memory if it does not fit, since then `fits.fit_words` comes first.
    """
    sentences = []
    if prediction.speedup is not None and prediction.baseline_step_s is not None and prediction.strategy != "baseline":
        sentences.append(
            f"The baseline takes {units.duration(prediction.baseline_step_s)}: a speed-up of {units.speedup(prediction.speedup)}."
        )
    sentences += _causes(prediction.critical_path)
    sentences += holder_words(prediction) if prediction.fits else []
    exposed, idle = units.duration(prediction.exposed_transfer_s), units.percent(prediction.bubble_share, signed=False)
    sentences.append(f"Exposed transfers, which no computation hides, take {exposed}; devices are idle for {idle} of the step.")
    shares = prediction.shares
    costs = ", ".join(f"{units.percent(share, signed=False)} {name}" for name, share in shares.model_dump().items() if share)
    return [*sentences, f"Costs by predicted task time: {costs}."]


def _causes(path: tuple[CriticalSpan, ...]) -> list[str]:
    if not path:
        return []
    counts = {cause: sum(link.cause == cause for link in path) for cause in Cause if cause != Cause.START}
    causes = [f"{count} {CAUSE_WORDS[cause]}" for cause, count in sorted(counts.items(), key=lambda item: -item[1]) if count]
    longest = max(path, key=lambda link: link.end_s - link.start_s)
    longest_task = f"the longest is {longest.task} ({units.duration(longest.end_s - longest.start_s)})"
    return [f"The critical path has {len(path)} tasks{': ' + ', '.join(causes) if causes else ''}; {longest_task}."]
