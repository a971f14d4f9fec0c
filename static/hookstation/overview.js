// Fetches the live part of the first page again and again, until somebody wants it to stand still.
(() => {
  const EVERY_MS = 5000;
  const KEY = "hookstation-live";
  const part = document.getElementById("hs-live");
  const button = document.getElementById("hs-live-button");
  const state = document.getElementById("hs-state");
  let timer = 0;

  const isLive = () => localStorage.getItem(KEY) !== "off";

  function show() {
    button.setAttribute("aria-pressed", String(isLive()));
    button.classList.toggle("hs-good", isLive());
    button.classList.toggle("hs-calm", !isLive());
    button.textContent = isLive() ? "Live" : "Paused";
  }

  // What was open stays open, and who stood on a figure still stands on it.
  function replace(html) {
    const open = [...part.querySelectorAll("details[open]")].map((each) => each.id);
    const focus = part.contains(document.activeElement) ? document.activeElement.id : "";
    const scrolled = [...part.querySelectorAll(".hs-scroll")].map((each) => each.scrollLeft);
    part.innerHTML = html;
    // console.js puts the times of what is new into the viewer's zone.
    part.dispatchEvent(new CustomEvent("htmx:load", { bubbles: true }));
    open.forEach((id) => document.getElementById(id)?.setAttribute("open", ""));
    part.querySelectorAll(".hs-scroll").forEach((each, place) => {
      each.scrollLeft = scrolled[place] ?? 0;
    });
    if (focus) document.getElementById(focus)?.focus({ preventScroll: true });
  }

  async function refresh() {
    if (isLive() && !document.hidden) {
      try {
        const answer = await fetch(part.dataset.source, { redirect: "error" });
        if (!answer.ok) throw new Error(String(answer.status));
        const html = await answer.text();
        if (isLive()) replace(html);
        state.textContent = "";
      } catch {
        state.textContent = "The broker does not respond; these figures are outdated. Retrying.";
      }
    }
    timer = setTimeout(refresh, EVERY_MS);
  }

  button.hidden = false;
  button.addEventListener("click", () => {
    localStorage.setItem(KEY, isLive() ? "off" : "on");
    show();
    clearTimeout(timer);
    refresh();
  });
  show();
  timer = setTimeout(refresh, EVERY_MS);
})();
