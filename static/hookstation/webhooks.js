/* An address is judged while it is typed, and boxes are ticked together; both work without. */
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  for (const input of document.querySelectorAll("input[data-check]")) {
    const place = document.querySelector("[data-check-url]");
    if (!place) continue;
    let waiting;
    let asked = "";
    input.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(async () => {
        const url = input.value.trim();
        if (url === asked) return;
        asked = url;
        if (!url) { place.replaceChildren(); return; }
        try {
          const answer = await fetch(`${place.dataset.checkUrl}?${new URLSearchParams({ url })}`);
          // A slower answer to an earlier text says nothing about this one.
          if (answer.ok && url === asked) place.innerHTML = await answer.text();
        } catch { /* It is checked again when the form is sent. */ }
      }, 400);
    });
  }
  // On a phone the tab that one is on may lie behind the edge.
  const here = document.querySelector(".tabs [aria-current]");
  if (here) here.parentElement.scrollLeft = here.offsetLeft - 40;
  for (const all of document.querySelectorAll("input[data-all]")) {
    const boxes = [...document.querySelectorAll(`input[name="${all.dataset.all}"]`)];
    all.parentElement.hidden = false;
    all.addEventListener("change", () => { for (const box of boxes) box.checked = all.checked; });
  }
});
