// Entry point of HTML pages: shows a timeline in every element of the class `schedcast-payload`, whose script holds the payload in base64.

import { bytesOf, drawForPaper } from "./embedded.js";
import { Timeline } from "./timeline.js";

const shown = [];
for (const place of document.querySelectorAll(".schedcast-payload")) {
  bytesOf(place.querySelector("script").textContent).then((bytes) => {
    shown.push(new Timeline(place));
    shown.at(-1).update(bytes);
  });
}
drawForPaper(() => shown.forEach((timeline) => timeline.draw()));
