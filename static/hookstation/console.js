/* Additions to Unfold's scripts: times in the viewer's time zone, and keyboard shortcuts.
   The console also works without scripts: every button and link then has the same effect. */

"use strict";

(() => {
  const KEYS = [
    ["/", "search this list; on a page without a list, search everything"],
    ["Ctrl K", "search everything: ids, channels, consumers, producers, pages"],
    ["j  k", "next row, previous row"],
    ["x", "select the row"],
    ["Enter", "open the row"],
    ["r", "replay the delivery in the row, or the open one"],
    ["Esc", "close the dialog"],
    ["?", "show these keys"],
  ];
  const ROWS = "#result_list tr.data-row, .hs-table tbody tr";

  // -- Times -------------------------------------------------------------------------------------

  /** Show times in the viewer's time zone; the tooltip has the exact time in UTC. */
  function showOwnTimes(within) {
    for (const time of within.querySelectorAll("time[datetime]:not([title])")) {
      const instant = new Date(time.dateTime);
      if (Number.isNaN(instant.getTime())) continue;
      const fraction = /\.\d+/.exec(time.textContent)?.[0] ?? "";
      time.title = `${time.dateTime.replace("T", " ").replace(/\+00:00$|Z$/, "")} UTC`;
      time.textContent = ownTime(instant) + fraction;
    }
  }

  function ownTime(instant) {
    const two = (number) => String(number).padStart(2, "0");
    const day = [instant.getFullYear(), two(instant.getMonth() + 1), two(instant.getDate())];
    const clock = [instant.getHours(), instant.getMinutes(), instant.getSeconds()].map(two);
    return `${day.join("-")} ${clock.join(":")}`;
  }

  // -- Keys --------------------------------------------------------------------------------------

  /** The row that has the focus: it is moved with j and k, so that Enter and the tab key go on. */
  const focusedRow = () => document.activeElement?.closest(ROWS) ?? null;
  const linkOf = (row) => row.querySelector("th a, a.hs-id, a");

  function move(step) {
    const rows = [...document.querySelectorAll(ROWS)].filter(linkOf);
    const place = rows.indexOf(focusedRow());
    const next = rows[place < 0 ? 0 : Math.min(rows.length - 1, Math.max(0, place + step))];
    if (!next) return;
    linkOf(next).focus();
    next.scrollIntoView({ block: "nearest" });
  }

  /** What `data-key` names in the row that has the focus, else on the page but in no row. */
  function press(key) {
    const row = focusedRow();
    const named = [...(row ?? document).querySelectorAll(`[data-key="${key}"]`)];
    (row ? named[0] : named.find((button) => !button.closest(ROWS)))?.click();
  }

  const ACTIONS = {
    j: () => move(1),
    k: () => move(-1),
    x: () => focusedRow()?.querySelector("input.action-select")?.click(),
    r: () => press("r"),
    "?": help,
    // Lists have a listener of their own.
    "/": () => document.getElementById("searchbar") ?? dispatchEvent(new Event("opencommand")),
  };

  function isTyping(element) {
    return element?.matches("input:not([type=checkbox]), textarea, select, [contenteditable=true]");
  }

  document.addEventListener("keydown", (event) => {
    const action = Object.hasOwn(ACTIONS, event.key) ? ACTIONS[event.key] : null;
    const held = event.ctrlKey || event.metaKey || event.altKey;
    if (!action || held || isTyping(event.target) || document.querySelector("dialog[open]")) return;
    if (event.key !== "/" || !document.getElementById("searchbar")) event.preventDefault();
    action();
  });

  function help() {
    const dialog = document.createElement("dialog");
    dialog.className = "hs-keys";
    dialog.setAttribute("aria-label", "Keys");
    const list = document.createElement("dl");
    for (const [key, meaning] of KEYS) {
      for (const [tag, text] of [["dt", key], ["dd", meaning]]) {
        list.append(Object.assign(document.createElement(tag), { textContent: text }));
      }
    }
    const close = Object.assign(document.createElement("button"), { textContent: "Close" });
    close.className = "hs-button";
    close.addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => dialog.remove());
    dialog.append(list, close);
    document.body.append(dialog);
    dialog.showModal();
  }

  // -- Asking ------------------------------------------------------------------------------------

  /** A button with `data-asks` asks that first, whether it is clicked or its key is pressed. */
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-asks]");
    if (button && !confirm(button.dataset.asks)) event.preventDefault();
  }, true);

  // -- Copying -----------------------------------------------------------------------------------

  /** A button with `data-copy` copies the text of the element that it names. */
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const source = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(source.textContent);
      button.textContent = "Copied";
    } catch {
      // Without a safe connection browsers have no clipboard: then it is there to be copied by hand.
      getSelection().selectAllChildren(source);
      button.textContent = "Selected: press Ctrl C";
    }
  });

  // -- Names -------------------------------------------------------------------------------------

  /** The boxes that Unfold makes of selections say what is chosen, but not for which field. */
  function nameBoxes(within) {
    for (const select of within.querySelectorAll("select.select2-hidden-accessible")) {
      const label = select.labels?.[0];
      const parts = select.nextElementSibling?.querySelectorAll("[role]") ?? [];
      if (!label) continue;
      label.id ||= `${select.id}_label`;
      for (const part of parts) {
        const chosen = part.role === "combobox" ? ` select2-${select.id}-container` : "";
        if (part.role !== "presentation") part.setAttribute("aria-labelledby", label.id + chosen);
      }
    }
  }

  // -- Tabs --------------------------------------------------------------------------------------

  /** Unfold puts tabs away when it measures before all is laid out, and takes back one of them each
      time that the window changes its size. */
  function fetchTabsBack() {
    const count = document.getElementById("tabs-dropdown")?.childElementCount ?? 0;
    for (let turn = 0; turn < count; turn += 1) dispatchEvent(new Event("resize"));
  }

  addEventListener("load", fetchTabsBack);
  document.addEventListener("DOMContentLoaded", () => showOwnTimes(document));
  // Behind Unfold in jQuery's line, which makes the boxes there.
  addEventListener("load", () => window.django?.jQuery?.(() => nameBoxes(document)));
  document.addEventListener("htmx:load", (event) => {
    showOwnTimes(event.target);
    nameBoxes(event.target);
  });
})();
