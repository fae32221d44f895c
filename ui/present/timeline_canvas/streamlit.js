// Entry point of the Streamlit component: Streamlit calls the default export whenever its data or its theme changes.

import { Timeline } from "./timeline.js";

const timelines = new WeakMap(); // by place

export default function show({ data, parentElement, setTriggerValue }) {
  if (!data) return undefined;
  if (!timelines.has(parentElement)) timelines.set(parentElement, { timeline: new Timeline(parentElement), calls: 0 });
  const shown = timelines.get(parentElement);
  const call = ++shown.calls;
  shown.timeline.report = setTriggerValue;
  shown.timeline.update(data);
  return () => {
    if (shown.calls !== call) return; // a later call shows other data in the same place
    shown.timeline.destroy();
    timelines.delete(parentElement);
  };
}
