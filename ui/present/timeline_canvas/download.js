// Saves pictures of a timeline as files.

import { element } from "./parts.js";

/** Let the browser download a blob. */
export function download(blob, name) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
