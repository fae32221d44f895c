// What the timeline is drawn on: a canvas, or an SVG file. Both have the same methods, in CSS pixels.

export const FONT = "12px system-ui, -apple-system, 'Segoe UI', sans-serif";

let band = null; // a canvas of one row of pixels, for all timelines
const words = new Map(); // by color: its red, green and blue in a pixel's 32 bits

function pixel(color, opacity) {
  if (!words.has(color)) words.set(color, [1, 3, 5].reduce((word, at, byte) => word | (parseInt(color.slice(at, at + 2), 16) << (8 * byte)), 0));
  return (words.get(color) | (Math.round(opacity * 255) << 24)) >>> 0;
}

/** Draws on a canvas's context; `scale` is the number of its pixels per CSS pixel. */
export class CanvasSurface {
  constructor(context, width, height, scale) {
    Object.assign(this, { context, width, height, scale });
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = FONT;
    context.textBaseline = "middle";
  }

  rect(x, y, width, height, color, opacity = 1) {
    const { context } = this;
    if (context.globalAlpha !== opacity) context.globalAlpha = opacity;
    if (this.color !== color) context.fillStyle = this.color = color;
    context.fillRect(x, y, width, height);
  }

  /**
   * Draws many rectangles of the same height: paint(fill) calls fill(x, width, color, opacity), later ones over earlier ones. They are
   * painted as one row of pixels, which is much faster than rectangles.
   */
  band(x, y, width, height, paint) {
    const { context, scale } = this, columns = Math.max(1, Math.round(width * scale));
    band ??= document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    if (band.canvas.width !== columns) [band.canvas.width, band.canvas.height] = [columns, 1];
    const image = band.createImageData(columns, 1), pixels = new Uint32Array(image.data.buffer);
    paint((left, length, color, opacity = 1) => {
      const first = Math.round((left - x) * scale), last = Math.round((left + length - x) * scale);
      if (last > 0) pixels.fill(pixel(color, opacity), Math.max(0, first), Math.min(columns, Math.max(last, first + 1)));
    });
    band.putImageData(image, 0, 0);
    context.globalAlpha = 1;
    context.imageSmoothingEnabled = false;
    context.drawImage(band.canvas, 0, 0, columns, 1, x, y, columns / scale, height);
  }

  /** Fills what lies between points [x, y], in order of x, and the height `base`. */
  area(points, base, color) {
    const { context } = this;
    context.globalAlpha = 1;
    context.fillStyle = this.color = color;
    context.beginPath();
    context.moveTo(points[0][0], base);
    for (const [x, y] of points) context.lineTo(x, y);
    context.lineTo(points.at(-1)[0], base);
    context.fill();
  }

  frame(x, y, width, height, color, thickness) {
    const { context } = this;
    context.globalAlpha = 1;
    context.strokeStyle = color;
    context.lineWidth = thickness;
    context.setLineDash([]);
    context.strokeRect(x + thickness / 2, y + thickness / 2, Math.max(0, width - thickness), Math.max(0, height - thickness));
  }

  line(x0, y0, x1, y1, color, { opacity = 1, dash = [], thickness = 1 } = {}) {
    const { context } = this;
    context.globalAlpha = opacity;
    context.strokeStyle = color;
    context.lineWidth = thickness;
    context.setLineDash(dash);
    context.beginPath();
    context.moveTo(x0, y0);
    context.lineTo(x1, y1);
    context.stroke();
  }

  text(x, y, text, color, { align = "left", bold = false } = {}) {
    const { context } = this;
    context.globalAlpha = 1;
    context.fillStyle = this.color = color;
    context.textAlign = align;
    if (bold) context.font = `600 ${FONT}`;
    context.fillText(text, x, y);
    if (bold) context.font = FONT;
  }

  clip(x, y, width, height) {
    this.context.save();
    this.context.beginPath();
    this.context.rect(x, y, width, height);
    this.context.clip();
  }

  unclip() {
    this.context.restore();
    this.color = null;
  }
}

const round = (value) => Number(value.toFixed(2));

/** A text as a part of XML. What XML cannot hold is left out. */
export function escaped(text) {
  const allowed = text.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]|\p{Surrogate}/gu, "");
  return allowed.replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);
}

/** Collects the elements of an SVG file. A rectangle can have a title, which viewers show under the pointer. */
export class SvgSurface {
  constructor(width, height) {
    Object.assign(this, { width, height, scale: 1, clips: 0, parts: [] });
  }

  rect(x, y, width, height, color, opacity = 1, title = "") {
    const size = `x="${round(x)}" y="${round(y)}" width="${round(width)}" height="${round(height)}"`;
    const look = `fill="${color}"${opacity < 1 ? ` fill-opacity="${round(opacity)}"` : ""}`;
    this.parts.push(title ? `<rect ${size} ${look}><title>${escaped(title)}</title></rect>` : `<rect ${size} ${look}/>`);
  }

  band(x, y, width, height, paint) {
    paint((left, length, color, opacity, title) => this.rect(left, y, length, height, color, opacity, title));
  }

  area(points, base, color) {
    const places = [[points[0][0], base], ...points, [points.at(-1)[0], base]];
    this.parts.push(`<path d="M${places.map(([x, y]) => `${round(x)} ${round(y)}`).join("L")}Z" fill="${color}"/>`);
  }

  frame(x, y, width, height, color, thickness) {
    const size = `x="${round(x + thickness / 2)}" y="${round(y + thickness / 2)}"`;
    const inner = [width, height].map((length) => round(Math.max(0, length - thickness)));
    const stroke = `fill="none" stroke="${color}" stroke-width="${thickness}"`;
    this.parts.push(`<rect ${size} width="${inner[0]}" height="${inner[1]}" ${stroke}/>`);
  }

  line(x0, y0, x1, y1, color, { opacity = 1, dash = [], thickness = 1 } = {}) {
    const ends = `x1="${round(x0)}" y1="${round(y0)}" x2="${round(x1)}" y2="${round(y1)}"`;
    const dashes = dash.length ? ` stroke-dasharray="${dash.join(" ")}"` : "";
    this.parts.push(`<line ${ends} stroke="${color}" stroke-width="${thickness}" stroke-opacity="${opacity}"${dashes}/>`);
  }

  text(x, y, text, color, { align = "left", bold = false } = {}) {
    const anchor = { left: "start", center: "middle", right: "end" }[align];
    const weight = bold ? ' font-weight="600"' : "";
    const place = `x="${round(x)}" y="${round(y)}" text-anchor="${anchor}" dominant-baseline="central"`;
    this.parts.push(`<text ${place} fill="${color}"${weight}>${escaped(text)}</text>`);
  }

  clip(x, y, width, height) {
    const size = [x, y, width, height].map(round);
    this.clips += 1;
    this.parts.push(
      `<clipPath id="c${this.clips}"><rect x="${size[0]}" y="${size[1]}" width="${size[2]}" height="${size[3]}"/></clipPath>`,
      `<g clip-path="url(#c${this.clips})">`,
    );
  }

  unclip() {
    this.parts.push("</g>");
  }

  /** The file. */
  toString() {
    const size = `width="${this.width}" height="${this.height}" viewBox="0 0 ${this.width} ${this.height}"`;
    const font = "font-family=\"system-ui, 'Segoe UI', sans-serif\" font-size=\"12\"";
    return `<svg xmlns="http://www.w3.org/2000/svg" ${size} ${font}>\n${this.parts.join("\n")}\n</svg>\n`;
  }
}
