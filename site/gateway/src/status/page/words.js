// Quantities in words, and elements with text. Text from the gateway becomes text nodes, never markup.

/** Bits per second, as networks are sold: powers of 1000. */
export function rate(bytesPerSecond) {
  if (bytesPerSecond === null) return "–";
  return scaled(bytesPerSecond * 8, 1000, ["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"]);
}

/** The same for where space is short: without `bit/s`. */
export function shortRate(bytesPerSecond) {
  if (bytesPerSecond === null) return "–";
  return scaled(bytesPerSecond * 8, 1000, ["", "k", "M", "G", "T"]);
}

/** Bytes, as memory is sold: powers of 1024. */
export function bytes(count) {
  return scaled(count, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);
}

function scaled(value, step, units) {
  let at = 0;
  while (value >= step * 0.9995 && at < units.length - 1) {
    value /= step;
    at += 1;
  }
  const digits = at === 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return `${value.toFixed(digits)} ${units[at]}`.trim();
}

export function roundTrip(microseconds) {
  if (microseconds === null) return "–";
  const ms = microseconds / 1000;
  return `${ms >= 100 ? ms.toFixed(0) : ms >= 10 ? ms.toFixed(1) : ms.toFixed(2)} ms`;
}

export function duration(ms) {
  const s = Math.floor(ms / 1000);
  const two = (n) => String(n).padStart(2, "0");
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)}:${two(s % 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)} h`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s / 3600) % 24} h`;
}

/** A count with its noun. */
export function many(count, noun) {
  return `${grouped(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** Digits in groups of three. */
export function grouped(count) {
  return String(count).replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

/** An element with attributes, holding text and elements. */
export function element(name, attributes = {}, ...content) {
  return filled(document.createElement(name), attributes, content);
}

/** The same of SVG. */
export function svg(name, attributes = {}, ...content) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, content);
}

function filled(node, attributes, content) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...content);
  return node;
}
