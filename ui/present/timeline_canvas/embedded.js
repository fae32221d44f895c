// What the scripts of HTML pages share: data inside the page, and the look on paper.

/** The bytes of a text in base64; gzip is undone if they are compressed. */
export async function bytesOf(base64) {
  const bytes = Uint8Array.from(atob(base64.trim()), (letter) => letter.charCodeAt(0));
  if (bytes[0] !== 0x1f || bytes[1] !== 0x8b) return bytes;
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(plain).arrayBuffer());
}

/** Calls draw() before the page is printed, in the colors of paper, and again after that. */
export function drawForPaper(draw) {
  for (const [event, printed] of [["beforeprint", true], ["afterprint", false]]) {
    addEventListener(event, () => {
      document.documentElement.classList.toggle("printed", printed);
      draw(printed);
    });
  }
}
