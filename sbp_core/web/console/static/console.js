// Refreshing, keys, favourites, dialogs: every page works without them.
"use strict";

const REFRESH_MS = 3000;
const LIVE = "Live";
const FAVOURITES = "sbp-favourites";
const THEMES = { "": "Theme: system", light: "Theme: light", dark: "Theme: dark" };
const find = (selector, from = document) => from.querySelector(selector);
const findAll = (selector, from = document) => [...from.querySelectorAll(selector)];

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

// ---- Parts of the page that move: elements with an id and `data-refresh`.

let paused = false;
let failures = 0;

function say(text) {
  find("#live-state").textContent = text;
}

function replace(old, fresh) {
  if (old.innerHTML === fresh.innerHTML) return;
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
    const answer = await fetch(location.href, { headers: { "X-Refresh": "1" } });
    if (answer.redirected) return location.assign(answer.url);  // signed out
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (paused) return;
    const missing = parts.some((part) => !fresh.getElementById(part.id));
    // A page that failed, or that works again, is another page: all of it is replaced.
    for (const part of missing ? [find("main")] : parts) {
      replace(part, missing ? find("main", fresh) : fresh.getElementById(part.id));
    }
    showFavourites();
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

// ---- Favourite streams: id -> name.

function showFavourites() {
  const favourites = kept(FAVOURITES, {});
  for (const star of findAll("[data-favourite]")) {
    const isOne = star.dataset.favourite in favourites;
    star.hidden = false;
    star.setAttribute("aria-pressed", String(isOne));
    star.textContent = isOne ? "★" : "☆";
  }
  const list = find("#favourites");
  if (!list) return;
  const links = Object.entries(favourites).map(([id, name]) => {
    const item = document.createElement("li");
    const link = item.appendChild(document.createElement("a"));
    link.href = `/streams/${encodeURIComponent(id)}`;
    link.textContent = name;
    return item;
  });
  find("ul", list).replaceChildren(...links);
  list.hidden = !links.length;
}

function toggleFavourite(star) {
  const favourites = kept(FAVOURITES, {});
  const id = star.dataset.favourite;
  if (id in favourites) delete favourites[id];
  else favourites[id] = star.dataset.name;
  keep(FAVOURITES, favourites);
  showFavourites();
}

// ---- Questions: a link with `data-ask` leads to a page with a form; here it is shown in a dialog.

async function ask(link) {
  const answer = await fetch(link.href);
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const form = find("main form", fresh);
  if (!answer.ok || answer.redirected || !form) return location.assign(link.href);
  const dialog = find("#dialog");
  const heading = find("main h1", fresh);
  heading.id = "dialog-title";
  dialog.replaceChildren(heading, ...findAll("main [data-question]", fresh), form);
  for (const back of findAll("[data-back]", dialog)) {
    back.addEventListener("click", (event) => {
      event.preventDefault();
      dialog.close();
    });
  }
  dialog.showModal();
}

// ---- Keys

const PLACES = { o: "/", s: "/streams", g: "/groups", t: "/transactions", n: "/servers" };
let before = "";

function onKey(event) {
  const isTyping = event.target.matches?.("input, select, textarea, dialog *");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  const key = event.key;
  if (before === "g" && key in PLACES) location.assign(PLACES[key]);
  else if (key === "?") find("#help").showModal();
  else if (key === "p" && find("#pause:not([hidden])")) pause();
  else if (key === "/" && find("[type=search]")) {
    event.preventDefault();
    find("[type=search]").focus();
  }
  before = before === "g" ? "" : key;
}

document.addEventListener("DOMContentLoaded", () => {
  showTheme(theme);
  showFavourites();
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
  document.addEventListener("click", (event) => {
    const star = event.target.closest("[data-favourite]");
    const link = event.target.closest("a[data-ask]");
    if (star) toggleFavourite(star);
    if (link && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      ask(link);
    }
  });
  document.addEventListener("visibilitychange", refresh);
  setTimeout(goOn, REFRESH_MS);
});
