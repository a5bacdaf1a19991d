// Sorts a table by a click on a heading, and says where a table goes on beyond its edge. The page is whole without it.
"use strict";
(() => {
  const NUMBER = /[-+]?(\d+\.?\d*(e[-+]?\d+)?|∞)/i;

  // What a cell is sorted by: a number, a text, or null where nothing was measured.
  const value = (cell, numeric) => {
    const text = (cell.dataset.v ?? cell.textContent).trim();
    if (!numeric) return text;
    const found = text.replace(/−/g, "-").replace(/,/g, "").match(NUMBER);
    return found ? Number(found[0].replace("∞", "Infinity")) : null;
  };

  const order = (a, b) => typeof a === "string" ? a.localeCompare(b, undefined, {numeric: true}) : a - b;

  const sort = (table, heading, rows) => {
    const headings = [...heading.parentNode.children];
    const numeric = heading.classList.contains("num"), column = headings.indexOf(heading);
    const first = heading.dataset.first ?? (numeric ? "descending" : "ascending");
    const second = first === "ascending" ? "descending" : "ascending";
    const next = {none: first, [first]: second, [second]: "none"}[heading.getAttribute("aria-sort")];
    headings.forEach(h => h.hasAttribute("aria-sort") && h.setAttribute("aria-sort", "none"));
    heading.setAttribute("aria-sort", next);
    const sign = next === "ascending" ? 1 : -1;
    const keyed = rows.map(row => [value(row.cells[column], numeric), row]);
    if (next !== "none") keyed.sort(([a], [b]) => (a === null) - (b === null) || (a === null ? 0 : sign * order(a, b)));
    table.tBodies[0].append(...keyed.map(([, row]) => row));
  };

  for (const table of document.querySelectorAll("table")) {
    const rows = [...table.tBodies[0].rows];
    if (rows.length < 2) continue;
    for (const heading of table.tHead.rows[0].cells) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      heading.append(button);
      heading.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => sort(table, heading, rows));
    }
  }

  for (const box of document.querySelectorAll(".scroll")) {
    const hint = document.createElement("p");
    hint.className = "more";
    hint.textContent = "scroll →";
    hint.hidden = true;
    hint.setAttribute("aria-hidden", "true");
    box.before(hint);
    const look = () => {
      const rest = box.scrollWidth - box.clientWidth;
      hint.hidden = rest <= 1 || box.scrollLeft >= rest - 1;
      if (rest > 1) box.tabIndex = 0; else box.removeAttribute("tabindex");
    };
    box.addEventListener("scroll", look, {passive: true});
    new ResizeObserver(look).observe(box);
    look();
  }
})();
