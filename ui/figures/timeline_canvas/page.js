// Entry point of HTML pages: shows a timeline in every element of the class `stepcast-payload`, whose script holds the payload in base64.

import { bytesOf } from "./model.js";
import { Timeline } from "./timeline.js";

for (const place of document.querySelectorAll(".stepcast-payload")) {
  bytesOf(place.querySelector("script").textContent).then((bytes) => new Timeline(place).update(bytes));
}
