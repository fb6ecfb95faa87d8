// The map: this gateway, the other sites, and a line for each trunk. Where there is room the sites stand beside it, on a
// phone below it.

import { many, rate, roundTrip, shortRate, svg } from "/words.js";

const HEAD = 30;
const OWN_ROW = 26;
const ROW = 42;
const GAP = 16;
const MARGIN = 6;

/** What stands between up and down: a trunk whose links are not all there. */
export function stateOf(trunk) {
  if (!trunk.up) return "down";
  return trunk.links.length < trunk.links_wanted ? "partial" : "up";
}

/** Draws into `frame`. `figures(trunk)` gives `{ sent, received, rtt }` in bytes per second and microseconds, or null. */
export function draw(frame, view, figures) {
  const width = Math.max(280, frame.clientWidth || 600);
  const plan = width < 640 ? below(view, width) : beside(view, width);
  const size = { viewBox: `0 0 ${width} ${plan.height}`, width, height: plan.height };
  const picture = svg("svg", { ...size, role: "img", "aria-labelledby": "map-name map-words" });
  const up = view.trunks.filter((trunk) => trunk.up).length;
  picture.append(svg("title", { id: "map-name" }, `Site ${view.site} and the sites it is joined to`));
  picture.append(svg("desc", { id: "map-words" }, `${up} of ${many(view.trunks.length, "trunk")} up`));
  const lines = svg("g");
  const boxes = svg("g");
  picture.append(lines, boxes);

  drawOwn(boxes, view, plan.own);
  for (const { site, x, y, width, mirrored } of plan.others) {
    boxes.append(siteBox(site.name, x, y, width, tall(site), ""));
    site.gateways.forEach((name, at) => {
      const end = { x: mirrored ? x + width : x, y: y + HEAD + ROW * at + 11 };
      const anchor = mirrored ? "end" : "start";
      const textX = mirrored ? end.x - 18 : end.x + 18;
      boxes.append(label(name, textX, end.y + 4, "gateway", anchor, width - 30));
      const trunk = view.trunks.find((trunk) => trunk.site === site.name && trunk.gateway === name);
      if (!trunk) return;
      const state = stateOf(trunk);
      const now = figures(trunk);
      lines.append(line(trunk, state, now, plan.way(end, mirrored)));
      boxes.append(mark(state, end.x, end.y));
      // At its end, not on its line: lines cross, and what is on them would too.
      const place = { class: `flow ${state}`, x: textX, y: end.y + 21, "text-anchor": anchor };
      boxes.append(svg("text", place, flow(trunk, state, now)));
    });
  }
  frame.replaceChildren(picture);
}

const ownSite = (view) => view.sites.find((site) => site.name === view.site) ?? { name: view.site, gateways: [view.gateway] };
const otherSites = (view) => view.sites.filter((site) => site.name !== view.site);
const tall = (site) => HEAD + ROW * site.gateways.length;

/** The own site in the middle of two columns, or left of the only other one. */
function beside(view, width) {
  const others = otherSites(view);
  const both = others.length > 1;
  const [box, ownBox] = [Math.min(250, width * 0.36), 168];
  const used = both ? width : Math.min(width, 760);
  const from = (width - used) / 2;
  const ownTall = HEAD + OWN_ROW * ownSite(view).gateways.length;
  const columns = [others.filter((_, at) => !both || at % 2 === 0), others.filter((_, at) => both && at % 2 === 1)];
  const sum = (sites) => sites.reduce((total, site) => total + tall(site) + GAP, -GAP);
  const height = Math.max(ownTall, ...columns.map(sum)) + 2 * MARGIN;
  const own = { x: both ? (width - ownBox) / 2 : from + MARGIN, y: (height - ownTall) / 2, width: ownBox, height: ownTall };
  const placed = columns.flatMap((sites, column) => {
    let y = (height - sum(sites)) / 2;
    return sites.map((site) => {
      const place = { site, x: column ? MARGIN : from + used - MARGIN - box, y, width: box, mirrored: column === 1 };
      y += tall(site) + GAP;
      return place;
    });
  });
  const y0 = own.y + HEAD + OWN_ROW * Math.max(0, ownSite(view).gateways.indexOf(view.gateway)) + 9;
  const way = (end, mirrored) => {
    const x0 = mirrored ? own.x : own.x + own.width;
    const reach = (end.x - x0) * 0.45;
    return `M${x0} ${y0}C${x0 + reach} ${y0} ${end.x - reach} ${end.y} ${end.x} ${end.y}`;
  };
  return { height, own, others: placed, way };
}

/** The own site on top, the others below it, further right. */
function below(view, width) {
  const ownTall = HEAD + OWN_ROW * ownSite(view).gateways.length;
  const own = { x: MARGIN, y: MARGIN, width: width - 2 * MARGIN, height: ownTall };
  // A lane for each line, the first for the last, so that none crosses another; many share the last.
  const lanes = Math.min(view.trunks.length, 7);
  const indent = 30 + 8 * lanes;
  let y = own.y + ownTall + GAP;
  const others = otherSites(view).map((site) => {
    const place = { site, x: indent, y, width: width - indent - MARGIN, mirrored: false };
    y += tall(site) + GAP;
    return place;
  });
  let drawn = 0;
  const way = (end) => {
    const x0 = MARGIN + 14 + 8 * Math.max(0, lanes - 1 - drawn);
    drawn += 1;
    return `M${x0} ${own.y + ownTall}V${end.y - 9}Q${x0} ${end.y} ${x0 + 9} ${end.y}H${end.x}`;
  };
  return { height: y - GAP + MARGIN, own, others, way };
}

function drawOwn(boxes, view, own) {
  boxes.append(siteBox(view.site, own.x, own.y, own.width, own.height, "own"));
  ownSite(view).gateways.forEach((name, at) => {
    const here = name === view.gateway;
    const y = own.y + HEAD + OWN_ROW * at + 13;
    boxes.append(label(here ? `${name} (this one)` : name, own.x + own.width / 2, y, here ? "here" : "other", "middle", own.width - 20));
  });
}

function line(trunk, state, { sent, received, rtt }, way) {
  const mbits = (((sent ?? 0) + (received ?? 0)) * 8) / 1e6;
  const links = `${trunk.links.length} of ${many(trunk.links_wanted, "link")}`;
  const words = state === "down" ? trunk.problem
    : `${trunk.site} ${trunk.gateway}: up, ${links}, sends ${rate(sent)}, receives ${rate(received)}, round trip ${roundTrip(rtt)}`;
  const attributes = {
    class: `trunk ${state}`, d: way, "stroke-width": (2 + 2 * Math.log10(1 + mbits)).toFixed(1),
    "data-trunk": `${trunk.site}/${trunk.gateway}`, "data-state": state,
    "data-sent": trunk.sent, "data-received": trunk.received,
  };
  return svg("path", attributes, svg("title", {}, words));
}

function flow(trunk, state, { sent, received, rtt }) {
  if (state === "down") return "down";
  const missing = state === "partial" ? ` · ${trunk.links.length}/${trunk.links_wanted}` : "";
  return `↑ ${shortRate(sent)}  ↓ ${shortRate(received)} · ${roundTrip(rtt)}${missing}`;
}

/** A trunk's end: plain, with an exclamation mark, or with a cross. */
function mark(state, x, y) {
  const group = svg("g", { class: `mark ${state}`, transform: `translate(${x} ${y})` }, svg("circle", { r: 7 }));
  if (state === "down") group.append(svg("path", { d: "M-2.5 -2.5L2.5 2.5M2.5 -2.5L-2.5 2.5" }));
  if (state === "partial") group.append(svg("path", { d: "M0 -3.4V0.4M0 3.2V3.3" }));
  return group;
}

function siteBox(name, x, y, width, height, kind) {
  const group = svg("g", { class: `site ${kind}`, "data-site": name }, svg("title", {}, `site ${name}`));
  group.append(svg("rect", { x, y, width, height, rx: 9 }));
  group.append(label(name, x + width / 2, y + 20, "name", "middle", width - 16));
  return group;
}

/** A text cut to what fits; about 8 pixels a letter. */
function label(words, x, y, kind, anchor, room) {
  const most = Math.max(3, Math.floor(room / 8));
  const node = svg("text", { class: kind, x, y, "text-anchor": anchor });
  node.append(words.length > most ? `${words.slice(0, most - 1)}…` : words);
  if (words.length > most) node.append(svg("title", {}, words));
  return node;
}
