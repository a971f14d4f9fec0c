/* What the portal's pages do by themselves; each works without. */
"use strict";

(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const remembered = () => { try { return localStorage.getItem("theme"); } catch { return null; } };

  // Before the first paint, which is why this file stands in the head.
  function wear() {
    root.dataset.theme = remembered() || (dark.matches ? "dark" : "light");
  }
  wear();
  dark.addEventListener("change", wear);

  function toggleTheme() {
    const wanted = root.dataset.theme === "dark" ? "light" : "dark";
    try {
      // What the system wears anyway is not worth remembering: then it is followed again.
      if ((wanted === "dark") === dark.matches) localStorage.removeItem("theme");
      else localStorage.setItem("theme", wanted);
    } catch { /* Storage may be forbidden. */ }
    root.dataset.theme = wanted;
  }

  // -- Times: in the reader's zone, with the exact instant on hover --------------------------------
  const full = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
  const day = new Intl.DateTimeFormat(undefined, { dateStyle: "medium" });
  const distance = new Intl.RelativeTimeFormat(undefined, { numeric: "auto" });
  const units = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];

  function ago(at) {
    const seconds = (at - Date.now()) / 1000;
    if (Math.abs(seconds) > 30 * 86400) return day.format(at);
    const [unit, size] = units.find(([, length]) => Math.abs(seconds) >= length) || units[3];
    return distance.format(Math.trunc(seconds / size), unit);
  }

  function showTimes(within) {
    for (const time of within.querySelectorAll("time[datetime]")) {
      const at = new Date(time.dateTime);
      if (isNaN(at)) continue;
      time.title = time.dateTime;
      time.textContent = time.dataset.style === "ago" ? ago(at) : full.format(at);
    }
  }

  // -- Copying ------------------------------------------------------------------------------------
  function copyBySelection(source) {
    const range = document.createRange();
    range.selectNodeContents(source);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    return document.execCommand("copy");
  }

  async function copy(button) {
    const source = button.dataset.copy
      ? document.querySelector(button.dataset.copy)
      : button.parentElement.querySelector("pre, code");
    let done = false;
    try {
      await navigator.clipboard.writeText(source.textContent);
      done = true;
    } catch {
      // Plain http has no clipboard, except on this very machine.
      done = copyBySelection(source);
    }
    const label = button.dataset.label || (button.dataset.label = button.textContent);
    button.textContent = done ? "Copied" : "Press Ctrl+C";
    setTimeout(() => { button.textContent = label; }, 2000);
  }

  // -- Live parts: <div data-live-url="..." data-live-seconds="5"> ----------------------------------
  function isBusy(part) {
    const selected = getSelection();
    const chosen = !selected.isCollapsed && part.contains(selected.anchorNode);
    const typing = part.contains(document.activeElement) && document.activeElement.matches("input, select, textarea");
    return document.hidden || chosen || typing || part.querySelector(".confirm[open], dialog[open]");
  }

  function put(part, html) {
    if (part.liveText === html) return;
    part.liveText = html;
    const open = [...part.querySelectorAll("details[open][id]")].map((details) => details.id);
    const focused = part.contains(document.activeElement) ? document.activeElement.id : "";
    const above = part.getBoundingClientRect().bottom < 0;
    const height = part.offsetHeight;
    part.innerHTML = html;
    for (const id of open) { const details = document.getElementById(id); if (details) details.open = true; }
    if (focused && document.getElementById(focused)) document.getElementById(focused).focus({ preventScroll: true });
    begin(part);
    // What changes above the reader must not move what is being read.
    if (above) scrollBy(0, part.offsetHeight - height);
  }

  async function poll(part) {
    const again = () => setTimeout(poll, 1000 * (part.dataset.liveSeconds || 5), part);
    if (!part.isConnected) return;
    if (isBusy(part)) { again(); return; }
    try {
      const answer = await fetch(part.dataset.liveUrl, { headers: { "X-Live": "1" }, redirect: "manual" });
      if (answer.ok) {
        const html = await answer.text();
        if (!isBusy(part)) put(part, html);
      } else if (answer.status < 500) {
        // Signed out, or gone: asking again would not help.
        part.classList.add("stale");
        return;
      }
      part.classList.remove("stale");
    } catch { part.classList.add("stale"); }
    if (!part.querySelector("[data-live-stop]")) again();
  }

  // -- Beginning ------------------------------------------------------------------------------------
  function begin(within) {
    showTimes(within);
    for (const button of within.querySelectorAll("[data-copy], [data-theme-toggle]")) button.hidden = false;
    for (const part of within.querySelectorAll("[data-live-url]")) {
      setTimeout(poll, 1000 * (part.dataset.liveSeconds || 5), part);
    }
  }

  document.addEventListener("DOMContentLoaded", () => {
    begin(document);
    // On a phone the navigation is a line that may be longer than the screen.
    const side = document.querySelector(".side");
    const lit = side && side.querySelector("[aria-current]");
    if (lit) side.scrollLeft = lit.offsetLeft - (side.clientWidth - lit.offsetWidth) / 2;
    for (const zone of document.querySelectorAll("[data-zone]")) {
      zone.textContent = `Times are in ${Intl.DateTimeFormat().resolvedOptions().timeZone}`;
    }
    setInterval(showTimes, 30000, document);
  });

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button && "copy" in button.dataset) copy(button);
    if (button && "themeToggle" in button.dataset) toggleTheme();
    for (const menu of document.querySelectorAll("details.menu[open]")) {
      if (!menu.contains(event.target)) menu.open = false;
    }
  });

  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const open of document.querySelectorAll("details.menu[open], details.confirm[open]")) {
      open.open = false;
      open.querySelector("summary").focus();
    }
  });
})();
