"""The sections of a page about predictions, which compare strategies per job and machine, and about one timeline."""

from collections.abc import Sequence
from itertools import groupby

from traces import units
from traces.documents.base import Document
from traces.documents.comparison import Prediction
from traces.documents.predictions import PlacedPrediction, Predictions
from traces.documents.timeline import Timeline
from ui.present import predictions, sentences, tables, waterfalls
from ui.present.charts import predictions_figure
from ui.present.charts_page import chart_html
from ui.present.labels import model_name
from ui.present.page import Section, document_data, section
from ui.present.timeline_canvas.page import timelines_html
from ui.present.waterfall_figures import waterfall_figure


def timeline_section(timeline: Timeline, name: str) -> Section:
    """One step drawn, with its memory. `name`: what the timeline is called."""
    summary = f"{timeline.kind}: a step of {units.duration(timeline.step_s)}"
    return section(f"Timeline {name}", summary, "timeline.html", timelines=timelines_html([timeline], ""))


def prediction_section(prediction: Prediction) -> Section:
    """A prediction of one strategy, whose document does not name the job."""
    return _section(f"Predicted: {tables.prediction_label(prediction)}", [prediction], prediction, "prediction.json", ())


def predictions_sections(document: Predictions) -> list[Section]:
    """Every batch of a model on a machine, with what was refused there."""

    def place(each: PlacedPrediction) -> tuple[str, int, str]:
        return each.model, each.batch, each.machine

    sections = []
    for (model, batch, machine), group in groupby(document.predictions, key=place):
        refused = [
            f"{own.strategy}: {own.why}" for own in document.refused if (own.model, own.batch, own.machine) == (model, batch, machine)
        ]
        title = f"Predicted: {model_name(model)}, batch {batch}, on {machine}"
        sections.append(_section(title, list(group), document, "predictions.json", refused))
    return sections


def _section(title: str, predictions: Sequence[Prediction], document: Document, name: str, refused: Sequence[str]) -> Section:
    labels = [tables.prediction_label(prediction) for prediction in predictions]
    fastest = min((p for p in predictions if p.fits), key=lambda own: (own.is_at_limit, own.step_s), default=None)
    summary = "Nothing fits."
    if fastest is not None:
        summary = f"Fastest: {tables.prediction_label(fastest)}, {units.duration(fastest.step_s)} per step."
    return section(
        title, summary, "predictions.html", rows=tables.prediction_rows(predictions, here=False), refused=refused,
        chart=chart_html(predictions_figure(predictions, labels), "Predicted step time of every strategy"),
        strategies=[_strategy_values(*pair) for pair in zip(labels, predictions, strict=True)], data=document_data(document), name=name,
    )  # fmt: skip


def _strategy_values(label: str, prediction: Prediction) -> dict[str, object]:
    """What the page says of one strategy."""
    words = [
        *predictions.fit_words(prediction),
        *sentences.prediction_words(prediction, here=False),
        *waterfalls.prediction_words(prediction),
    ]
    title = f"From the baseline to {label}"
    chart = chart_html(waterfall_figure(waterfalls.prediction_bars(prediction), title), title) if prediction.waterfall else ""
    return {"heading": label, "words": " ".join(words), "chart": chart}
