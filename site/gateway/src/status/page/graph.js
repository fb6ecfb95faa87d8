// A graph of the last two minutes: lines over time, redrawn as samples come.

import { svg } from "/words.js";

export const SPAN_MS = 120_000;
const HEIGHT = 132;
const LEFT = 74;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 20;

/**
 * Draws into `frame`. `lines`: `{ name, values }` with a value, or null, for each of `times` (ms, ascending; the last is
 * now). `shown(value)` is a value in words; the axis reaches to `least` at least.
 */
export function draw(frame, title, times, lines, shown, least) {
  const width = Math.max(220, frame.clientWidth || 320);
  const now = times.at(-1) ?? 0;
  const most = Math.max(least, ...lines.flatMap((line) => line.values.filter((value) => value !== null)));
  const top = roundUp(most);
  const x = (time) => LEFT + (width - LEFT - RIGHT) * (1 - (now - time) / SPAN_MS);
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", class: "graph" });
  picture.append(svg("title", {}, title));
  for (const part of [0, 0.5, 1]) {
    const at = y(top * part);
    picture.append(svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: at, y2: at }));
    picture.append(svg("text", { class: "axis", x: LEFT - 6, y: at + 4, "text-anchor": "end" }, shown(top * part)));
  }
  for (const [ago, label, anchor] of [[SPAN_MS, "2 min ago", "start"], [SPAN_MS / 2, "1 min", "middle"], [0, "now", "end"]]) {
    const at = { class: "axis", x: x(now - ago), y: HEIGHT - 4, "text-anchor": anchor };
    picture.append(svg("text", at, label));
  }
  for (const line of lines) {
    for (const piece of pieces(times, line.values, now)) {
      const points = piece.map(([time, value]) => `${x(time).toFixed(1)},${y(value).toFixed(1)}`);
      if (line.filled && points.length > 1) {
        const ends = [`${x(piece.at(-1)[0]).toFixed(1)},${y(0)}`, `${x(piece[0][0]).toFixed(1)},${y(0)}`];
        picture.append(svg("polygon", { class: `area ${line.name}`, points: [...points, ...ends].join(" ") }));
      }
      picture.append(svg("polyline", { class: `line ${line.name}`, points: points.join(" ") }));
    }
  }
  frame.replaceChildren(picture);
}

/** Runs of samples without a gap between them. */
function pieces(times, values, now) {
  const found = [];
  let piece = [];
  times.forEach((time, at) => {
    if (values[at] === null || now - time > SPAN_MS) {
      if (piece.length) found.push(piece);
      piece = [];
    } else {
      piece.push([time, values[at]]);
    }
  });
  if (piece.length) found.push(piece);
  return found;
}

/** The next 1, 2 or 5 times a power of ten. */
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * ([1, 2, 5].find((factor) => value <= factor * power) ?? 10);
}
