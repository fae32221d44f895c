// Saves pictures of a timeline as files.

import { element } from "./parts.js";

/** Let the browser download a blob. */
export function download(blob, name) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** A canvas's picture on a background, as a PNG file. */
export function savePng(canvas, background, name) {
  const copy = element("canvas", { width: canvas.width, height: canvas.height });
  const context = copy.getContext("2d");
  context.fillStyle = background;
  context.fillRect(0, 0, copy.width, copy.height);
  context.drawImage(canvas, 0, 0);
  copy.toBlob((blob) => download(blob, name), "image/png");
}
