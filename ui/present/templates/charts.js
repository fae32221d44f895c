// Entry point of HTML pages: draws a chart in every element of the class `schedcast-chart`, whose script holds a figure of plotly, when it is
// first seen. The element `schedcast-plotly` holds the library. Texts have the color of the page.

import { bytesOf, drawForPaper } from "../timeline_canvas/embedded.js";

const PAPER_WIDTH = 680; // CSS pixels; A4 and Letter are wider, less their margins
const CONFIG = { responsive: true, displaylogo: false };
const textIn = async (element) => new TextDecoder().decode(await bytesOf(element.textContent));
const ink = () => getComputedStyle(document.body).color;
const charts = [];

function draw(chart) {
  if (chart.drawn) return;
  chart.drawn = true;
  chart.figure.layout.font = { ...chart.figure.layout.font, color: ink(), family: getComputedStyle(document.body).fontFamily };
  Plotly.newPlot(chart.place, chart.figure.data, chart.figure.layout, CONFIG);
}

function drawAgain(chart, size) {
  if (chart.drawn) Plotly.relayout(chart.place, { "font.color": ink(), ...size });
}

const seen = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) if (isIntersecting) draw(charts.find(({ place }) => place === target));
}, { rootMargin: "600px" });

const library = document.createElement("script");
library.textContent = await textIn(document.querySelector("#schedcast-plotly"));
document.head.append(library); // runs at once
for (const element of document.querySelectorAll(".schedcast-chart")) {
  const figure = JSON.parse(await textIn(element.querySelector("script"))), place = document.createElement("div");
  element.append(place);
  charts.push({ place, figure, drawn: false });
  seen.observe(place);
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((chart) => drawAgain(chart, {})));
drawForPaper((printed) => {
  for (const chart of charts) {
    draw(chart);
    drawAgain(chart, printed ? { width: PAPER_WIDTH } : { width: null, autosize: true });
  }
});
