// Long tables: a click on a heading sorts the rows, the next one the other way round.
(() => {
  const number = text => {
    const plain = text.replace(/[\u2212]/g, "-").replace(/[,\s]/g, "");
    const found = plain.match(/^[^\d-]?(-?\d+(\.\d+)?(e[-+]?\d+)?)(%|±.*)?[^\d-]?$/);
    return found ? Number(found[1]) : null;
  };
  const compare = (a, b) => {
    const [x, y] = [number(a), number(b)];
    if (x !== null && y !== null) return x - y;
    if ((x === null) !== (y === null) && (a === "" || b === "")) return a === "" ? 1 : -1;
    return a.localeCompare(b, undefined, {numeric: true});
  };
  for (const table of document.querySelectorAll("table[data-sorted]")) {
    const body = table.tBodies[0];
    const headings = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
    headings.forEach((heading, place) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => {
        const down = heading.getAttribute("aria-sort") === "ascending";
        headings.forEach(other => other.removeAttribute("aria-sort"));
        heading.setAttribute("aria-sort", down ? "descending" : "ascending");
        const text = row => row.cells[place].textContent.trim();
        const rows = [...body.rows].sort((a, b) => compare(text(a), text(b)));
        body.append(...(down ? rows.reverse() : rows));
      });
    });
  }
})();
