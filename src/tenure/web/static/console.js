// The console works without this file. With it: single keys, copy buttons, local times, selection counts, live updates.
"use strict";

// --- trusted types: the one way in which text becomes a page is htmx parsing an answer of this server. Everything else
// that would turn text into HTML, script or a script's address is refused by the browser.
const PARSERS = ["Document parseHTMLUnsafe", "DOMParser parseFromString"];
globalThis.trustedTypes?.createPolicy("default", { createHTML: (text, _, sink) => (PARSERS.includes(sink) ? text : null) });

const root = document.documentElement;
const at = (path) => (root.dataset.root || "") + path;
const say = (text) => { const line = document.getElementById("says"); if (line) line.textContent = text; };

// --- times: the server shows relative and UTC; only the browser knows its own zone. Words of an axis keep their form.
const localTimes = (within) => {
  if (root.dataset.times !== "local") return;
  within.querySelectorAll("time[datetime]").forEach((time) => {
    const moment = new Date(time.dateTime);
    if (Number.isNaN(moment.valueOf())) return;
    const isToday = Math.abs(Date.now() - moment) < 72e6;
    time.textContent = isToday ? moment.toLocaleTimeString("en-GB") : moment.toLocaleString("en-GB");
  });
  within.querySelectorAll("text[data-at]").forEach((text) => {
    const moment = new Date(text.dataset.at);
    const day = { day: "2-digit", month: "short" };
    const clock = { hour: "2-digit", minute: "2-digit", second: text.textContent.split(":").length > 2 ? "2-digit" : undefined };
    text.textContent = text.textContent.includes(":") ? moment.toLocaleTimeString("en-GB", clock) : moment.toLocaleDateString("en-GB", day);
  });
};

// Relative times go on between two answers: from the store's time, which the page carries, by the browser's own clock.
let storeTime = [Date.parse(root.dataset.now), performance.now()];
const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
const shortSpan = (seconds) => {
  if (seconds < 9.95) return `${seconds.toFixed(1)}\u00a0s`;
  const [unit, size] = UNITS.find(([, size]) => Math.round(seconds) >= size);
  return `${Math.floor(Math.round(seconds) / size)}\u00a0${unit}`;
};
const ago = (seconds) => (Math.abs(seconds) < 1 ? "now" : seconds < 0 ? `in\u00a0${shortSpan(-seconds)}` : `${shortSpan(seconds)}\u00a0ago`);
const tick = () => {
  if (root.dataset.times !== "relative" || document.hidden || !document.getElementById("stream")) return;
  const now = storeTime[0] + performance.now() - storeTime[1];
  document.querySelectorAll("time[data-ago]").forEach((time) => {
    const told = ago((now - Date.parse(time.dateTime)) / 1000);
    if (time.textContent !== told) time.textContent = told;
  });
};
setInterval(tick, 1000);

// --- copy
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    say("Copied");
  } catch {
    say("The browser does not allow copying here");
  }
});

// --- dialogs: a link to a confirm page opens the same form in a dialog where there is one
document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-dialog]");
  if (!opener || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const dialog = document.getElementById(opener.dataset.dialog);
  if (!dialog) return;
  event.preventDefault();
  dialog.showModal();
});
document.addEventListener("click", (event) => {
  const close = event.target.closest("[data-close]");
  if (close) { event.preventDefault(); close.closest("dialog")?.close(); }
});

// --- selection: how many are picked, and all on the page at once
const picked = () => {
  const boxes = [...document.querySelectorAll("input[name=pick]")];
  const count = boxes.filter((box) => box.checked).length;
  document.querySelectorAll("[data-picked]").forEach((place) => { place.textContent = String(count); });
  document.querySelectorAll("[data-needs-pick]").forEach((button) => { button.disabled = count === 0; });
};
document.addEventListener("change", (event) => {
  if (event.target.matches("[data-pick-all]")) {
    document.querySelectorAll("input[name=pick]").forEach((box) => { box.checked = event.target.checked; });
  }
  if (event.target.matches("[data-pick-all], input[name=pick]")) picked();
});

// --- keys: one at a time, never while typing, off by choice
const typing = (element) => element.closest?.("input:not([type=checkbox]), textarea, select, [contenteditable]");
const goes = { o: "/", j: "/jobs", d: "/dead-letters", f: "/workflows", a: "/approvals", b: "/bulk", e: "/agents", r: "/memory", n: "/memos", u: "/budgets", l: "/limits", q: "/queues", w: "/workers",
  s: "/schedules", g: "/gates", m: "/metrics", h: "/health" };
let waitsForPlace = false;

const rows = () => [...document.querySelectorAll("[data-row]")];
const move = (step) => {
  const all = rows();
  if (!all.length) return;
  const now = all.findIndex((row) => row.hasAttribute("aria-current"));
  const next = all[Math.min(Math.max(now + step, 0), all.length - 1)];
  all.forEach((row) => row.removeAttribute("aria-current"));
  next.setAttribute("aria-current", "true");
  next.scrollIntoView({ block: "nearest" });
};
const current = () => document.querySelector("[data-row][aria-current]") ?? rows()[0];

document.addEventListener("keydown", (event) => {
  if (root.dataset.keys === "off" || event.metaKey || event.ctrlKey || event.altKey) return;
  if (typing(event.target) || document.querySelector("dialog[open]")) return;
  if (waitsForPlace) {
    waitsForPlace = false;
    if (goes[event.key] !== undefined) { event.preventDefault(); location.assign(at(goes[event.key])); }
    return;
  }
  const acts = {
    "/": () => (document.querySelector("#filter") ?? document.querySelector(".find input"))?.focus(),
    "?": () => document.getElementById("all-keys")?.showModal(),
    ".": () => document.getElementById("live")?.click(),
    g: () => { waitsForPlace = true; setTimeout(() => { waitsForPlace = false; }, 1500); },
    j: () => move(1),
    k: () => move(-1),
    x: () => current()?.querySelector("input[name=pick]")?.click(),
    Enter: () => { if (event.target === document.body) current()?.querySelector("a[href]")?.click(); },
  };
  // Of what belongs to a row only that of the current one: no key acts on a row that was not chosen.
  const row = current();
  const own = [...document.querySelectorAll(`main [data-key="${CSS.escape(event.key)}"]`)]
    .find((one) => !one.closest("[data-row]") || one.closest("[data-row]") === row);
  if (acts[event.key]) { if (event.key !== "Enter") event.preventDefault(); acts[event.key](); }
  else if (own) { event.preventDefault(); own.click(); }
});

// --- live: what comes is a hint, and the page itself is asked again and morphed in place. A browser opens six connections
// to a host, so at most four tabs hold a stream (a lock each); the others ask every three seconds.
const STREAMS = 4;
let isLive = false;
const live = () => {
  const stream = document.getElementById("stream");
  if (!stream || isLive) return;
  isLive = true;
  const address = `${stream.getAttribute("hx-sse:connect")}&once=1`;
  let known = new URL(address, location.href).searchParams.get("seen") ?? "";
  const ask = async () => {
    if (document.hidden) return;
    try {
      const answer = await fetch(address, { headers: { Accept: "text/plain" } });
      const marker = answer.ok ? await answer.text() : known;
      if (marker !== known) stream.dispatchEvent(new CustomEvent("change", { bubbles: true }));
      known = marker;
    } catch { /* the server is away: the next round asks again */ }
  };
  const open = () => { htmx.trigger(stream, "tenure:stream"); return new Promise(() => {}); };
  const take = async (place) => {
    if (!navigator.locks || place >= STREAMS) { ask(); setTimeout(() => take(place), 3000); return; }
    await navigator.locks.request(`tenure-stream-${place}`, { ifAvailable: true }, (lock) => (lock ? open() : take(place + 1)));
  };
  take(0);
};
document.addEventListener("htmx:after:process", live);

// --- output of a running job: pieces come by the same stream, and the page that is asked for anew has them all
document.addEventListener("chunk", (event) => {
  const place = document.getElementById("output");
  if (!place) return;
  const piece = JSON.parse(event.detail.data);
  if (piece.offset <= Number(place.dataset.after)) return;
  place.dataset.after = String(piece.offset);
  const isAtEnd = place.scrollHeight - place.scrollTop - place.clientHeight < 40;
  if (piece.kind === "reset") { place.textContent = ""; say("Another attempt begins; the output starts anew"); }
  else if (piece.kind === "truncated") place.append("\n… the rest of this attempt is not kept\n");
  else place.append(piece.text);
  if (isAtEnd) place.scrollTop = place.scrollHeight;
});
// A change is kept until the page has been asked for anew: while an answer is on its way, or the page is in a person's
// hands (an open dialog, a field with focus, picked rows), it waits. htmx's own throttle would lose one that waits when
// the page is morphed.
let isStale = false;
let askedAt = 0;
const isBusy = () => {
  const main = document.getElementById("main");
  return document.hidden || document.querySelector("dialog[open]") || main.querySelector("input[name=pick]:checked")
    || main.querySelector("details[open]") || document.activeElement?.closest("main form, main [popover]");
};
const renew = () => {
  if (!isStale || Date.now() - askedAt < 1000 || isBusy()) return;
  isStale = false;
  askedAt = Date.now() + 15000; // until the answer is here, or is given up
  htmx.trigger("#main", "tenure:renew");
};
document.addEventListener("change", (event) => { if (event.target.id === "stream") { isStale = true; renew(); } });
document.addEventListener("htmx:finally:request", (event) => { if (event.target.id === "main") askedAt = Date.now(); });
document.addEventListener("htmx:error", (event) => { if (event.target.id === "main") isStale = true; });
setInterval(renew, 500);
const fresh = () => {
  storeTime = [Date.parse(document.getElementById("main")?.dataset.now ?? root.dataset.now), performance.now()];
  localTimes(document);
  picked();
  charts();
};
document.addEventListener("htmx:after:swap", fresh);

// --- charts: a table that says `data-chart` is drawn by uPlot beside it, from its own cells
const drawn = new WeakMap();
const charts = () => {
  if (typeof uPlot === "undefined") return;
  document.querySelectorAll("table[data-chart]").forEach((table) => {
    const place = document.getElementById(table.dataset.chart);
    const lines = [...table.tBodies[0].rows].reverse();
    if (!place || lines.length < 2) return;
    const heads = [...table.tHead.rows[0].cells].slice(1);
    const data = [lines.map((row) => Date.parse(row.cells[0].querySelector("time").dateTime) / 1000)];
    heads.forEach((_, place) => data.push(lines.map((row) => {
      const told = row.cells[place + 1].dataset.value;
      return told === undefined || told === "" ? null : Number(told);
    })));
    if (drawn.has(place)) { drawn.get(place).setData(data); return; }
    const zone = root.dataset.times === "local" ? undefined : "UTC";
    const days = data[0].at(-1) - data[0][0] > 90000;
    const clock = (moment) => new Date(moment * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", timeZone: zone });
    const day = (moment) => new Date(moment * 1000).toLocaleDateString("en-GB", { day: "2-digit", month: "short", timeZone: zone });
    const probe = document.createElement("span");
    table.append(probe);
    const ink = (tone) => { probe.className = tone; return getComputedStyle(probe).getPropertyValue("color"); };
    const axis = { stroke: ink("sub"), font: "11px sans-serif", grid: { stroke: ink("gridline"), width: 1 }, ticks: { show: false } };
    const points = { show: false };
    const series = heads.map((head) => ({ label: head.textContent.trim(), stroke: ink(`ink ${head.dataset.tone || "queued"}`), width: 1.5, points,
      dash: head.dataset.tone === "queued" ? [4, 3] : undefined, value: (_, rate) => (rate === null ? "" : `${rate.toFixed(2)} /s`) }));
    probe.remove();
    place.replaceChildren();
    const at = { label: "At", value: (_, moment) => (moment ? (days ? `${day(moment)} ${clock(moment)}` : clock(moment)) : "newest") };
    const made = new uPlot({ width: place.clientWidth || 640, height: 220, cursor: { points: { size: 6 } }, series: [at, ...series],
      axes: [{ ...axis, values: (_, moments) => moments.map(days ? day : clock) }, { ...axis, size: 44, values: (_, rates) => rates.map((rate, place) => (place === rates.length - 1 ? `${rate} /s` : String(rate))) }] }, data, place);
    drawn.set(place, made);
    new ResizeObserver(() => made.setSize({ width: place.clientWidth, height: 220 })).observe(place);
  });
};

document.addEventListener("DOMContentLoaded", fresh);
