// A button that opens a trace in ui.perfetto.dev. Its window is opened by the click (browsers block others), then Python is asked for the
// trace, and when the window answers PING with PONG, the trace is posted to it.
// https://perfetto.dev/docs/visualization/deep-linking-to-perfetto-ui

const ORIGIN = "https://ui.perfetto.dev";
const EVERY_MS = 100, PATIENCE_MS = 30_000;
const buttons = new WeakMap(); // by place

export default function show({ data, parentElement, setTriggerValue }) {
  if (!buttons.has(parentElement)) buttons.set(parentElement, makeButton(parentElement));
  const shown = buttons.get(parentElement);
  shown.button.onclick = () => {
    shown.opened = window.open(`${ORIGIN}/#!/?mode=embedded`);
    shown.say(shown.opened ? "Sending the trace…" : "The browser blocked the new window. Allow it, or download the trace.");
    if (shown.opened) setTriggerValue("wanted", true);
  };
  if (data?.trace && shown.opened) {
    const trace = Uint8Array.from(atob(data.trace), (letter) => letter.charCodeAt(0));
    send(shown.opened, { buffer: trace.buffer, title: data.title }).then(shown.say);
    shown.opened = null;
  }
  return undefined;
}

function makeButton(place) {
  const root = document.createElement("div"), button = document.createElement("button"), words = document.createElement("span");
  root.className = "schedcast-perfetto";
  button.type = "button";
  button.textContent = "Open in Perfetto";
  button.title = "Opens ui.perfetto.dev in a new window. The trace stays in this browser.";
  words.setAttribute("role", "status");
  root.append(button, words);
  place.append(root);
  return { button, opened: null, say: (text) => { words.textContent = text; } };
}

/** Post a trace to a window of ui.perfetto.dev once it answers. Resolves to what to tell the user. */
export function send(opened, perfetto) {
  return new Promise((resolve) => {
    const end = (text) => {
      clearInterval(ping);
      clearTimeout(wait);
      window.removeEventListener("message", answer);
      resolve(text);
    };
    const answer = (event) => {
      if (event.source !== opened || event.data !== "PONG") return;
      opened.postMessage({ perfetto }, ORIGIN);
      end("");
    };
    const ping = setInterval(() => opened.postMessage("PING", ORIGIN), EVERY_MS);
    const wait = setTimeout(() => end("ui.perfetto.dev does not answer. Without a network, download the trace."), PATIENCE_MS);
    window.addEventListener("message", answer);
  });
}
