// Refreshing, times of the reader's zone, cards, columns, charts, searches, dialogs, keys.
// Every page works without them.
"use strict";

const REFRESH_MS = 3000;
const LIVE = "Live";
const FAVOURITES = "sbp-favourites";
const COLUMNS = "sbp-columns";
const THEMES = { "": "Theme: system", light: "Theme: light", dark: "Theme: dark" };
const SVG = "http://www.w3.org/2000/svg";
const find = (selector, from = document) => from.querySelector(selector);
const findAll = (selector, from = document) => [...from.querySelectorAll(selector)];

function make(name, parts = {}, ...content) {
  const made = Object.assign(document.createElement(name), parts);
  made.append(...content);
  return made;
}

// ---- What is kept in this browser; it may refuse to keep anything.

function kept(key, fallback) {
  try {
    return JSON.parse(localStorage.getItem(key)) ?? fallback;
  } catch {
    return fallback;
  }
}

function keep(key, value) {
  try {
    localStorage.setItem(key, JSON.stringify(value));
  } catch {
    // Private windows: it holds until the page is left.
  }
}

function showTheme(theme) {
  document.documentElement.toggleAttribute("data-theme", theme !== "");
  if (theme) document.documentElement.setAttribute("data-theme", theme);
  const button = find("#theme");
  if (button) button.textContent = THEMES[theme] ?? THEMES[""];
}

let theme = kept("sbp-theme", "");
showTheme(theme);  // before the page is drawn
document.documentElement.setAttribute("data-script", "");

// ---- What the script adds to a part of a page, before the part is shown.

function enhance(part) {
  for (const each of findAll("time[datetime]", part)) showLocal(each);
  for (const each of findAll("[data-at]", part)) showClock(each);
  for (const each of findAll("[data-zone]", part)) each.textContent = "your zone";
  for (const each of findAll("input[data-time]", part)) each.value = toLocal(each.value);
  for (const each of findAll("table", part)) labelCells(each);
  for (const each of findAll("[data-favourite]", part)) showStar(each);
}

const two = (number) => String(number).padStart(2, "0");
const day = (at) => `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
const clock = (at) => `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;

function showLocal(element) {
  const text = element.dateTime;
  const at = new Date(text.replace(/\.\d+/, ""));
  if (isNaN(at)) return;
  element.textContent = `${day(at)} ${clock(at)}${text.match(/\.\d+/)?.[0] ?? ""}`;
}

function showClock(element) {
  const text = clock(new Date(Number(element.dataset.at)));
  element.textContent = text.slice(0, element.textContent.length);
}

// A field for a position takes a time of the reader's zone; the server gets it in UTC.
function toLocal(text) {
  if (!/^\d{4}-\d\d-\d\dT[\d:]+Z$/.test(text)) return text;
  const at = new Date(text);
  return isNaN(at) ? text : `${day(at)}T${clock(at)}`;
}

function toUtc(text) {
  if (!/^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d)?$/.test(text.trim())) return text;
  const at = new Date(text.trim());
  return isNaN(at) ? text : at.toISOString().replace(".000", "");
}

// On a narrow page, a row is a card: each cell says its heading, and is still a cell to a reader.
function labelCells(table) {
  const headings = findAll("thead th", table).map((each) => each.textContent.replace(/ [▲▼]$/, ""));
  const hidden = kept(COLUMNS, {})[table.dataset.columns] ?? [];
  const roles = { TABLE: "table", THEAD: "rowgroup", TBODY: "rowgroup", TR: "row", TD: "cell" };
  for (const each of [table, ...findAll("thead, tbody, tr, td, th", table)]) {
    const scope = each.scope === "col" ? "columnheader" : "rowheader";
    each.setAttribute("role", roles[each.tagName] ?? scope);
  }
  for (const row of findAll("tr", table)) {
    if (find("td[colspan]", row)) continue;
    [...row.cells].forEach((cell, index) => {
      if (cell.tagName === "TD") cell.dataset.label = headings[index] ?? "";
      cell.hidden = index > 0 && hidden.includes(headings[index]);
    });
  }
}

// ---- Columns that a reader leaves out, by table. The chooser stays when its table is refreshed.

function showChoosers() {
  for (const table of findAll("table[data-columns]")) {
    const name = table.dataset.columns;
    const place = table.closest("[data-refresh], [data-search], .scroll");
    if (find(`[data-chooser="${name}"]`) || !place) continue;
    const list = make("div", { className: "choices" });
    const chooser = make("details", { className: "chooser" }, make("summary", {}, "Columns"), list);
    chooser.dataset.chooser = name;
    chooser.addEventListener("toggle", () => list.replaceChildren(...choices(name)));
    place.before(chooser);
  }
}

function choices(name) {
  const table = find(`table[data-columns="${name}"]`);
  const headings = findAll("thead th", table).slice(1);
  const hidden = kept(COLUMNS, {})[name] ?? [];
  return headings.map((heading) => {
    const title = heading.textContent.replace(/ [▲▼]$/, "");
    const box = make("input", { type: "checkbox", checked: !hidden.includes(title) });
    box.addEventListener("change", () => {
      const all = kept(COLUMNS, {});
      const others = (all[name] ?? []).filter((each) => each !== title);
      keep(COLUMNS, { ...all, [name]: box.checked ? others : [...others, title] });
      findAll(`table[data-columns="${name}"]`).forEach(labelCells);
    });
    return make("label", {}, box, ` ${title}`);
  });
}

// ---- Parts of the page that move: elements with an id and `data-refresh`.

let paused = false;
let failures = 0;

function say(text) {
  find("#live-state").textContent = text;
}

async function load(address, options) {
  const answer = await fetch(address, options);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  enhance(page);
  return { answer, page };
}

function replace(old, fresh) {
  if (old.innerHTML === fresh.innerHTML || find(".cursor", old)) return;
  const focused = document.activeElement;
  if (old.contains(focused) && focused.matches("input, select, textarea")) return;
  const place = old.contains(focused) ? focused.id || focused.getAttribute("href") : null;
  old.replaceWith(fresh);
  if (place === null) return;
  const again = [...findAll("a, button, [id]", fresh)];
  again.find((each) => each.id === place || each.getAttribute("href") === place)?.focus();
}

async function refresh() {
  if (document.hidden || paused || find("dialog[open]")) return;
  const parts = findAll("[data-refresh]");
  if (!parts.length) return;
  try {
    const { answer, page } = await load(location.href, { headers: { "X-Refresh": "1" } });
    if (answer.redirected) return location.assign(answer.url);  // signed out
    if (paused) return;
    const missing = parts.some((part) => !page.getElementById(part.id));
    // A page that failed, or that works again, is another page: all of it is replaced.
    for (const part of missing ? [find("main")] : parts) {
      replace(part, missing ? find("main", page) : page.getElementById(part.id));
    }
    showChoosers();
    failures = 0;
    say(answer.ok ? LIVE : "Not live: the cluster does not answer as asked");
  } catch {
    failures += 1;
    say("Not live: the console does not answer; it is asked again");
  }
}

async function goOn() {
  await refresh();
  setTimeout(goOn, REFRESH_MS * Math.min(1 + failures, 10));
}

function pause() {
  paused = !paused;
  const button = find("#pause");
  button.setAttribute("aria-pressed", String(paused));
  say(paused ? "Paused" : LIVE);
  if (!paused) refresh();
}

// ---- A search goes on to the end of the stream, or until it has as many records as it is to find.

async function searchOn() {
  const box = find("[data-search]");
  let link = box && find("[data-search-on]", box);
  const rows = () => findAll("tbody tr:not(.none)", box).length;
  if (!link || rows() >= Number(box.dataset.search)) return;
  const { start, last } = box.dataset;
  const bar = make("progress", { max: Number(last) - Number(start) });
  bar.setAttribute("aria-label", "Searched part of the stream");
  const text = make("span");
  const stop = make("button", { type: "button", onclick: () => (stop.disabled = true) }, "Stop");
  box.prepend(make("div", { className: "progress" }, bar, text, stop));
  const show = (end, word) => {
    bar.value = Number(end) - Number(start);
    const found = `${rows()} found`;
    text.textContent = `${word} offsets ${start} to ${end} of ${last}, exclusive: ${found}`;
  };
  show(box.dataset.end, "Searched");
  while (link && !stop.disabled && rows() < Number(box.dataset.search)) {
    const { answer, page } = await load(link.href);
    const more = find("[data-search]", page);
    if (!answer.ok || !more) break;
    join(box, more);
    link = find("[data-search-on]", box);
    show(more.dataset.end, "Searched");
  }
  stop.remove();
  text.setAttribute("role", "status");
  text.textContent += link ? ". Search on from there below." : ". That is the end.";
}

// Add what another step of a search found to the tables, and take over its links to go on.
function join(box, more) {
  const headings = (table) => table && find("thead", table).textContent;
  const fresh = find("table", more);
  const tables = findAll("table", box);
  const old = tables.at(-1);
  if (find("tbody tr:not(.none)", fresh)) {
    if (find(".none", old)) old.replaceWith(fresh);
    else if (headings(old) === headings(fresh)) find("tbody", old).append(...find("tbody", fresh).rows);
    else old.after(fresh);
  }
  for (const fault of findAll(":scope > .notice", more)) find(".scroll", box).before(fault);
  const links = find("nav", box);
  const saved = findAll("[download]", links);
  const found = findAll("tbody tr:not(.none)", box).length;
  links.replaceChildren(...find("nav", more).children);
  const first = saved.length ? saved : findAll("[download]", links);
  findAll("[download]", links).forEach((each) => each.remove());
  for (const each of first) {
    const address = new URL(each.href);
    address.searchParams.set("count", Math.min(found, Number(box.dataset.search)));
    each.href = address;
    links.append(each);
  }
  labelCells(find("table", box));
}

// ---- Charts: the values under the pointer, or at the place that the arrow keys lead to.

function points(path) {
  const places = path.getAttribute("d").match(/[\d.]+ [\d.]+/g) ?? [];
  return places.map((each) => each.split(" ").map(Number));
}

function showValues(chart, x) {
  const paths = findAll("path[data-values]", chart);
  if (!paths.length) return;
  const nearest = (path) => {
    const distances = points(path).map((each) => Math.abs(each[0] - x));
    return distances.indexOf(Math.min(...distances));
  };
  const at = points(paths[0])[nearest(paths[0])][0];
  const line = find(".cursor", chart) ?? chart.appendChild(document.createElementNS(SVG, "line"));
  line.setAttribute("class", "cursor");
  for (const [name, value] of [["x1", at], ["x2", at], ["y1", 10], ["y2", 148]]) {
    line.setAttribute(name, value);
  }
  const times = findAll("[data-at]", chart).map((each) => Number(each.dataset.at));
  const [first, last] = [times[0], times.at(-1)];
  const left = Number(chart.dataset.left);
  const width = chart.viewBox.baseVal.width;
  const time = new Date(first + ((last - first) * (at - left)) / (width - left));
  const figure = chart.closest("figure");
  const tip = find(".tip", figure) ?? figure.appendChild(make("div", { className: "tip" }));
  tip.setAttribute("role", "status");
  const values = paths.map((path) => {
    const value = path.dataset.values.split("|")[nearest(path)];
    return make("div", {}, `${path.dataset.name}: `, make("strong", {}, value));
  });
  tip.replaceChildren(make("div", { className: "quiet" }, `${day(time)} ${clock(time)}`), ...values);
  tip.title = `${time.toISOString().slice(0, 19).replace("T", " ")} UTC`;
  const share = at / width;
  tip.style.insetInlineStart = share < 0.5 ? `${share * 100 + 2}%` : "auto";
  tip.style.insetInlineEnd = share < 0.5 ? "auto" : `${(1 - share) * 100 + 2}%`;
  chart.dataset.x = at;
}

function hideValues(chart) {
  find(".cursor", chart)?.remove();
  find(".tip", chart.closest("figure"))?.remove();
  delete chart.dataset.x;
}

function onPointer(event) {
  const chart = event.target.closest?.("[data-chart]");
  for (const each of findAll("[data-chart][data-x]")) {
    if (each !== chart && each !== document.activeElement) hideValues(each);
  }
  if (!chart) return;
  const box = chart.getBoundingClientRect();
  showValues(chart, ((event.clientX - box.left) / box.width) * chart.viewBox.baseVal.width);
}

function moveAlong(chart, key) {
  const places = points(find("path[data-values]", chart)).map((each) => each[0]);
  const now = places.indexOf(Number(chart.dataset.x ?? places.at(-1)));
  const next = "x" in chart.dataset ? now + (key === "ArrowLeft" ? -1 : 1) : places.length - 1;
  showValues(chart, places[Math.min(Math.max(next, 0), places.length - 1)]);
}

// ---- Favourite streams: id -> name.

function showStar(star) {
  const isOne = star.dataset.favourite in kept(FAVOURITES, {});
  star.hidden = false;
  star.setAttribute("aria-pressed", String(isOne));
  star.textContent = isOne ? "★" : "☆";
}

function showFavourites() {
  findAll("[data-favourite]").forEach(showStar);
  const list = find("#favourites");
  if (!list) return;
  const links = Object.entries(kept(FAVOURITES, {})).map(([id, name]) => {
    const href = `/streams/${encodeURIComponent(id)}`;
    return make("li", {}, make("a", { href }, name));
  });
  find("ul", list).replaceChildren(...links);
  list.hidden = !links.length;
}

function toggleFavourite(star) {
  const { [star.dataset.favourite]: name, ...others } = kept(FAVOURITES, {});
  const added = { ...others, [star.dataset.favourite]: star.dataset.name };
  keep(FAVOURITES, name === undefined ? added : others);
  showFavourites();
}

// ---- Dialogs: a link with `data-dialog` leads to a page; here parts of the page are in a dialog.

async function openDialog(link) {
  const { answer, page } = await load(link.href);
  const content = findAll("main [data-in-dialog], main form[action]", page);
  if (!answer.ok || answer.redirected || !content.length) return location.assign(link.href);
  const dialog = find("#dialog");
  const heading = find("main h1", page);
  findAll("button", heading).forEach((each) => each.remove());
  heading.id = "dialog-title";
  const close = make("form", { method: "dialog", className: "actions" }, make("button", {}, "Close"));
  dialog.replaceChildren(heading, ...content, ...(find("[data-back]", content.at(-1)) ? [] : [close]));
  for (const back of findAll("[data-back]", dialog)) {
    back.addEventListener("click", (event) => {
      event.preventDefault();
      dialog.close();
    });
  }
  if (!dialog.open) dialog.showModal();
}

// ---- Keys

let before = "";

function onKey(event) {
  const chart = event.target.closest?.("[data-chart]");
  if (chart && ["ArrowLeft", "ArrowRight"].includes(event.key)) {
    event.preventDefault();
    return moveAlong(chart, event.key);
  }
  if (event.key === "Escape") findAll("[data-chart][data-x]").forEach(hideValues);
  const isTyping = event.target.matches?.("input, select, textarea, dialog *");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  const key = event.key;
  const page = before === "g" && /^[a-z]$/.test(key) ? find(`nav a[data-key="${key}"]`) : null;
  if (page) location.assign(page.href);
  else if (key === "?") find("#help").showModal();
  else if (key === "p" && find("#pause:not([hidden])")) pause();
  else if (key === "/" && find("[type=search]")) {
    event.preventDefault();
    find("[type=search]").focus();
  }
  before = before === "g" ? "" : key;
}

function onClick(event) {
  const star = event.target.closest("[data-favourite]");
  const cell = getSelection().isCollapsed ? event.target.closest(".records td") : null;
  const link = event.target.closest("a[data-dialog]") ?? (cell && find("a", cell.parentElement));
  if (star) toggleFavourite(star);
  if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
    event.preventDefault();
    openDialog(link);
  }
}

document.addEventListener("DOMContentLoaded", () => {
  showTheme(theme);
  enhance(document);
  showFavourites();
  showChoosers();
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  find("#zone").textContent = `Times are of your zone, ${zone}; a pointer on one shows it in UTC.`;
  for (const each of findAll("[data-needs-script]")) each.hidden = false;
  find("#pause").hidden = !find("[data-refresh]");
  find("#pause").addEventListener("click", pause);
  find("#show-help").addEventListener("click", () => find("#help").showModal());
  find("#theme").addEventListener("click", () => {
    const names = Object.keys(THEMES);
    theme = names[(names.indexOf(theme) + 1) % names.length];
    keep("sbp-theme", theme);
    showTheme(theme);
  });
  document.addEventListener("keydown", onKey);
  document.addEventListener("click", onClick);
  document.addEventListener("submit", (event) => {
    for (const each of findAll("input[data-time]", event.target)) each.value = toUtc(each.value);
  });
  document.addEventListener("pointermove", onPointer);
  document.addEventListener("pointerdown", onPointer);
  document.addEventListener("focusout", (event) => {
    if (event.target.matches?.("[data-chart]")) hideValues(event.target);
  });
  document.addEventListener("visibilitychange", refresh);
  setTimeout(goOn, REFRESH_MS);
  searchOn();
});
