// The elements of a timeline: title, tools, canvas, legend and details. Every text is set as text, never as HTML.

/** An element with properties and children; properties whose names have a dash are attributes. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children);
  return made;
}

const button = (text, label) => element("button", { type: "button", textContent: text, title: label, "aria-label": label });

let made = 0; // ids are unique on a page

/** The elements of one timeline, by name; `root` holds all of them. */
export function partsOf() {
  const id = `schedcast-timeline-${++made}`;
  const parts = {
    title: element("strong", { className: "title" }),
    search: element("input", { type: "search", placeholder: "Search tasks, layers, phases", "aria-label": "Search tasks, layers and phases" }),
    previous: button("‹", "Previous match (Shift+N)"),
    next: button("›", "Next match (N)"),
    matches: element("span", { className: "matches", role: "status" }),
    colors: element("select", { "aria-label": "Color by" }, new Option("Color by phase", "phase"), new Option("Color by layer", "group")),
    out: button("−", "Zoom out (−)"),
    in: button("+", "Zoom in (+)"),
    reset: button("Reset", "Show the whole step (Home)"),
    png: button("PNG", "Download as PNG"),
    svg: button("SVG", "Download the visible part as SVG"),
    canvas: element("canvas", { tabIndex: 0, role: "application", "aria-describedby": id }),
    words: element("p", { id, className: "words" }),
    hover: element("div", { className: "hover", hidden: true, "aria-hidden": "true" }),
    legend: element("div", { className: "legend" }),
    details: element("p", { className: "details", "aria-live": "polite" }),
  };
  const tools = element("div", { className: "tools" }, parts.search, parts.previous, parts.next, parts.matches,
    element("span", { className: "space" }), parts.colors, parts.out, parts.in, parts.reset, parts.png, parts.svg);
  const root = element("div", { className: "schedcast-timeline" }, parts.title, tools, parts.legend,
    element("div", { className: "picture" }, parts.canvas, parts.hover), parts.details, parts.words);
  return { ...parts, root };
}

/** Fill the legend with { name, color, kind } entries. A click calls choose(name). */
export function fillLegend(legend, entries, choose) {
  legend.replaceChildren(...entries.map(({ name, color, kind = "bar" }) => {
    const mark = element("span", { className: `mark ${kind}` });
    mark.style.setProperty("--mark", color);
    if (kind !== "bar") return element("span", {}, mark, name);
    const chosen = element("button", { type: "button", title: "Search for it" }, mark, name);
    chosen.addEventListener("click", () => choose(name));
    return chosen;
  }));
}
