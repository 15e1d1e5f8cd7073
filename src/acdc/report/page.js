"use strict";
(() => {
  const root = document.documentElement, button = document.getElementById("theme");
  const names = { auto: "system", light: "light", dark: "dark" };
  const kept = {
    get() { try { return localStorage.getItem("acdc-theme"); } catch { return null; } },
    set(value) { try { localStorage.setItem("acdc-theme", value); } catch { /* a file may not be allowed to */ } },
  };
  const show = (theme) => {
    if (theme === "auto") delete root.dataset.theme; else root.dataset.theme = theme;
    button.textContent = "Theme: " + names[theme];
    button.dataset.now = theme;
  };
  const first = kept.get();
  show(first in names ? first : "auto");
  button.hidden = false;
  button.addEventListener("click", () => {
    const order = Object.keys(names), next = order[(order.indexOf(button.dataset.now) + 1) % order.length];
    show(next);
    kept.set(next);
  });
  addEventListener("beforeprint", () => { for (const part of document.querySelectorAll("details")) part.open = true; });
  const units = { ms: 1e-3, s: 1, min: 60, h: 3600, days: 86400, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18 };
  const value = (row, column) => { // the mean of "93.8 ± 0.2", 7500 of "2 h 05 min", 1.2e6 of "1.2 MB"
    const text = row.cells[column].textContent.trim();
    const parts = [...text.split("±")[0].matchAll(/([\d.]+)(?: (ms|min|days|[sh]\b|[kMGTPE](?=B?\b)))?/g)];
    if (!/^[\d.]/.test(text)) return { text, number: NaN };
    const number = parts.reduce((sum, [, digits, unit]) => sum + parseFloat(digits) * (units[unit] ?? 1), 0);
    return { text, number };
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    table.querySelectorAll("thead th").forEach((head, column) => head.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      table.querySelectorAll("thead th").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows], words = !head.classList.contains("number");
      rows.sort((one, other) => {
        const a = value(one, column), b = value(other, column);
        if (words) return a.text.localeCompare(b.text, undefined, { numeric: true }) * (down ? -1 : 1);
        if (isNaN(a.number) || isNaN(b.number)) return isNaN(a.number) - isNaN(b.number);
        return (a.number - b.number) * (down ? -1 : 1);
      });
      table.tBodies[0].append(...rows);
    }));
  }
})();
