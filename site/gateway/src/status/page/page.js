// The page: asks the gateway once a second what it shows, and shows it. Rates are differences between two answers, by the
// gateway's own clock, so that a slow browser or tunnel does not change them.

import { draw as drawGraph, SPAN_MS } from "/graph.js";
import { draw as drawMap, stateOf } from "/map.js";
import { bytes, duration, element, grouped, many, rate, roundTrip } from "/words.js";

const PERIOD_MS = 1000;
const PATIENCE_MS = 3000;

const part = (id) => document.getElementById(id);
/** Two answers, the last and the one before. */
let last = null;
let before = null;
/** By trunk: what it carried, at which times. */
const histories = new Map();
let answered = null;

async function poll() {
  try {
    const answer = await fetch("/view.json", { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
    if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
    take(await answer.json());
    answered = new Date();
    setState("live", "");
  } catch (error) {
    console.warn("no answer:", error.message);
    const since = answered ? ` since ${answered.toLocaleTimeString()}. What is shown is from then` : "";
    setState("stale", `The gateway has not answered${since}. Trying again each second.`);
  }
}

function setState(state, words) {
  document.body.dataset.state = state;
  const banner = part("banner");
  // Only what changes is read aloud.
  if (banner.textContent !== words) banner.textContent = words;
  banner.hidden = !words;
}

function take(view) {
  if (last && view.version !== last.version) return location.reload();
  if (last && (view.uptime_ms < last.uptime_ms || view.gateway !== last.gateway || view.site !== last.site)) {
    // It was started anew, or a tunnel leads elsewhere now: what was counted before is not comparable.
    last = null;
    before = null;
    histories.clear();
  }
  // Asked so soon that the gateway shows what it had gathered.
  if (last && view.uptime_ms === last.uptime_ms) return;
  before = last;
  last = view;
  remember(view);
  show(view);
}

// ---- rates

const trunkKey = (trunk) => `${trunk.site}/${trunk.gateway}`;
const linkKey = (trunk, link) => `${trunkKey(trunk)}/${link.index}`;
const jobName = (job) => job.job.toString(16).padStart(8, "0");

/** What grew per second between the two answers, or null where that cannot be said. */
function grown(now, then) {
  if (!before || then === undefined || now < then) return null;
  return ((now - then) * 1000) / (last.uptime_ms - before.uptime_ms);
}

const oldTrunk = (trunk) => before?.trunks.find((old) => trunkKey(old) === trunkKey(trunk));
const oldLink = (trunk, link) => oldTrunk(trunk)?.links.find((old) => old.index === link.index && old.up_ms <= link.up_ms);
const oldJob = (job) => before?.jobs.find((old) => old.job === job.job);

function figures(trunk) {
  const old = oldTrunk(trunk);
  const trips = trunk.links.map((link) => link.rtt_us).filter((trip) => trip > 0);
  return {
    sent: grown(trunk.sent, old?.sent),
    received: grown(trunk.received, old?.received),
    rtt: trips.length ? trips.reduce((sum, trip) => sum + trip, 0) / trips.length : null,
  };
}

function remember(view) {
  for (const trunk of view.trunks) {
    const key = trunkKey(trunk);
    const history = histories.get(key) ?? [];
    histories.set(key, history);
    const { sent, received, rtt } = figures(trunk);
    history.push({ time: view.uptime_ms, sent, received, rtt });
    // One more than is shown, so that the line reaches the edge.
    while (history.length > 2 && history[1].time < view.uptime_ms - SPAN_MS) history.shift();
  }
}

// ---- what is shown

function show(view) {
  document.title = `${view.site} ${view.gateway} – Landbridge`;
  text("site", view.site);
  text("gateway", view.gateway);
  text("version", view.version);
  text("uptime", duration(view.uptime_ms));
  text("fingerprint", view.fingerprint);
  showTiles(view);
  showMemory(view.memory);
  showMap(view);
  showTrunks(view);
  showLinks(view);
  showJobs(view);
  showTotals(view);
}

function showTiles(view) {
  const sum = (pick) => view.trunks.reduce((total, trunk) => total + (pick(trunk) ?? 0), 0);
  text("rate-sent", before ? rate(sum((trunk) => figures(trunk).sent)) : "–");
  text("rate-received", before ? rate(sum((trunk) => figures(trunk).received)) : "–");
  text("all-sent", `${bytes(sum((trunk) => trunk.sent))} in all`);
  text("all-received", `${bytes(sum((trunk) => trunk.received))} in all`);
  const up = view.trunks.filter((trunk) => trunk.up).length;
  text("trunks-up", `${up} of ${view.trunks.length}`);
  part("trunks-up").dataset.state = up < view.trunks.length ? "down" : "up";
  text("links-up", `${sum((trunk) => trunk.links.length)} of ${many(sum((trunk) => trunk.links_wanted), "link")}`);
  text("jobs-open", view.jobs.length);
  const ranks = view.jobs.flatMap((job) => job.ranks).reduce((total, site) => total + site.ranks, 0);
  text("ranks-open", many(ranks, "rank"));
}

function showMemory(memory) {
  const share = (count) => `${Math.min(100, (100 * count) / Math.max(1, memory.limit)).toFixed(2)}%`;
  part("memory-now").style.width = share(memory.held);
  part("memory-granted").style.width = share(memory.granted);
  part("memory-peak").style.left = share(memory.high_water);
  const bar = part("memory");
  bar.setAttribute("aria-valuemax", memory.limit);
  bar.setAttribute("aria-valuenow", memory.held);
  bar.setAttribute("aria-valuetext", `${bytes(memory.held)} of ${bytes(memory.limit)}`);
  text("memory-held", `${bytes(memory.held)} of ${bytes(memory.limit)}`);
  text("memory-words", `${bytes(memory.high_water)} at most so far · ${bytes(memory.granted)} promised to jobs`);
}

function showMap(view) {
  drawMap(part("map"), view, figures);
  const problems = view.trunks.filter((trunk) => !trunk.up);
  keyed(part("problems"), problems, trunkKey, () => element("li"), (item, trunk) => {
    item.dataset.trunk = trunkKey(trunk);
    put(item, `Down: ${trunk.problem}`);
  });
  if (view.sites.length < 2) put(part("map"), "The sites file has no other site yet.");
}

function showTrunks(view) {
  part("of-trunks").hidden = !view.trunks.length;
  keyed(part("trunks"), view.trunks, trunkKey, newTrunk, (card, trunk) => {
    const state = stateOf(trunk);
    const now = figures(trunk);
    card.dataset.state = state;
    const field = (name) => card.querySelector(`[data-field="${name}"]`);
    put(field("name"), `${trunk.site} ${trunk.gateway}`);
    put(field("state"), { up: "up", partial: "links missing", down: "down" }[state]);
    field("state").className = `pill ${state}`;
    const dials = trunk.dials ? "dialled from here" : "dialled from there";
    const losses = trunk.losses ? ` · ${many(trunk.losses, "link")} lost so far` : "";
    put(field("words"), `${trunk.links.length} of ${many(trunk.links_wanted, "link")} · ${dials}${losses}`);
    put(field("problem"), trunk.problem);
    put(field("sent"), rate(now.sent));
    put(field("received"), rate(now.received));
    put(field("rtt"), roundTrip(now.rtt));
    const history = histories.get(trunkKey(trunk)) ?? [];
    const times = history.map((sample) => sample.time);
    const bits = (sample, name) => (sample[name] === null ? null : sample[name] * 8);
    const line = (name, filled) => ({ name, filled, values: history.map((sample) => bits(sample, name)) });
    const trips = { name: "rtt", filled: true, values: history.map((sample) => sample.rtt) };
    const about = `${trunk.site} ${trunk.gateway}`;
    // 100 kbit/s and a tenth of a millisecond: less than that is drawn as next to nothing.
    drawGraph(field("rates"), `${about}: sent and received, two minutes`, times, [line("sent", true), line("received")], axisRate, 100_000);
    drawGraph(field("trips"), `${about}: round trip, two minutes`, times, [trips], axisTrip, 100);
  });
}

const axisRate = (value) => rate(value / 8).replace(/\.0+ /, " ").replace(/(\.[1-9])0 /, "$1 ");
const axisTrip = (value) => `${Number((value / 1000).toPrecision(2))} ms`;

function newTrunk(key) {
  const field = (tag, name, kind = "") => element(tag, { "data-field": name, class: kind });
  const figure = (kind, words, name) => element("span", { class: `series ${kind}` }, `${words} `, field("b", name));
  return element(
    "article",
    { class: "card", "data-trunk": key },
    element("div", { class: "title" }, field("h3", "name"), field("span", "state", "pill")),
    field("p", "words", "quiet"),
    field("p", "problem", "problem"),
    element("p", { class: "legend" }, figure("sent", "sent", "sent"), figure("received", "received", "received")),
    field("div", "rates"),
    element("p", { class: "legend" }, figure("rtt", "round trip", "rtt")),
    field("div", "trips"),
  );
}

function showLinks(view) {
  const links = view.trunks.flatMap((trunk) => trunk.links.map((link) => ({ trunk, link })));
  const key = ({ trunk, link }) => linkKey(trunk, link);
  rows("links", links, key, "No link is up.", ({ trunk, link }) => {
    const old = oldLink(trunk, link);
    return [
      `${trunk.site} ${trunk.gateway}`,
      link.index,
      link.address,
      [rate(grown(link.sent, old?.sent)), bytes(link.sent)],
      [rate(grown(link.received, old?.received)), bytes(link.received)],
      roundTrip(link.rtt_us || null),
      grouped(link.retransmissions),
      bytes(link.queued),
      duration(link.up_ms),
    ];
  });
}

function showJobs(view) {
  rows("jobs", view.jobs, jobName, "No job is open at this gateway.", (job) => {
    const old = oldJob(job);
    const flow = (name) => [rate(grown(job.traffic[name], old?.traffic[name])), bytes(job.traffic[name])];
    return [
      [jobName(job), `from ${job.home}`],
      job.ranks.map((site) => `${site.site}: ${many(site.ranks, "rank")}`).join(", "),
      job.members,
      flow("sent"),
      flow("received"),
      flow("local"),
      bytes(job.queued),
      bytes(job.window),
      [job.leads ? "leads" : "lets pass", job.closing ? "closing" : ""],
    ];
  });
}

function showTotals(view) {
  const totals = view.totals;
  const shown = [
    ["Frames relayed", grouped(totals.frames)],
    ["Bytes relayed", bytes(totals.bytes)],
    ["Undeliverable frames", grouped(totals.undeliverable)],
    ["Connections refused", grouped(totals.refused)],
    ["Connections that broke the rules", grouped(totals.violations)],
    ["Connections not admitted yet, now", grouped(totals.unadmitted)],
  ];
  const fresh = () => element("div", {}, element("dt"), element("dd"));
  keyed(part("totals"), shown, ([name]) => name, fresh, (entry, [name, value]) => {
    put(entry.firstChild, name);
    put(entry.lastChild, value);
  });
}

// ---- elements that stay while what they show changes, so that text can be selected

function text(id, words) {
  put(part(id), words);
}

function put(node, words) {
  if (node.textContent !== String(words)) node.textContent = words;
}

/** Makes the children of `frame` one for each item, in their order. */
function keyed(frame, items, key, fresh, update) {
  const known = new Map([...frame.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, at) => {
    const name = String(key(item));
    let child = known.get(name);
    if (!child) {
      child = fresh(name);
      child.dataset.key = name;
    }
    known.delete(name);
    if (frame.children[at] !== child) frame.insertBefore(child, frame.children[at] ?? null);
    update(child, item);
  });
  known.forEach((child) => child.remove());
}

/** The body of a table: a cell is a text, or a text and a smaller one below. */
function rows(id, items, key, none, cells) {
  const table = part(id);
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  if (!items.length) {
    const cell = element("td", { colspan: heads.length, class: "quiet", role: "cell" }, none);
    return body.replaceChildren(element("tr", { role: "row", "data-key": "" }, cell));
  }
  const fresh = () => {
    // The roles are what a phone's layout, which is none of a table, would take away.
    const cell = (head) => element("td", { role: "cell", class: head.className, "data-label": head.textContent }, element("span"), element("small"));
    return element("tr", { role: "row" }, ...heads.map(cell));
  };
  keyed(body, items, key, fresh, (row, item) => {
    cells(item).forEach((shown, at) => {
      const [main, small] = Array.isArray(shown) ? shown : [shown, ""];
      put(row.cells[at].firstChild, main);
      put(row.cells[at].lastChild, small);
    });
  });
}

// ---- begin

window.addEventListener("resize", () => last && show(last));
for (;;) {
  const next = performance.now() + PERIOD_MS;
  await poll();
  await new Promise((done) => setTimeout(done, Math.max(0, next - performance.now())));
}
