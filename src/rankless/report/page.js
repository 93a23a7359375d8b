"use strict";
// Show the values under the pointer in every chart with embedded points.
for (const plot of document.querySelectorAll(".plot")) {
  const source = plot.querySelector("script"), svg = plot.querySelector("svg");
  if (!source) continue;
  const {box: [left, top, width, height], range: [x0, x1], lines} = JSON.parse(source.textContent);
  const tip = document.createElement("div");
  const cursor = document.createElementNS(svg.namespaceURI, "line");
  tip.className = "tip";
  tip.hidden = true;
  for (const [name, value] of [["class", "cursor"], ["y1", top], ["y2", top + height], ["visibility", "hidden"]])
    cursor.setAttribute(name, value);
  svg.append(cursor);
  plot.append(tip);
  const nearest = (points, x) => points.reduce((a, b) => Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a);
  const written = (value) => Math.abs(value) >= 1e4 ? Math.round(value).toLocaleString("en") : +value.toPrecision(4);
  svg.addEventListener("pointermove", (event) => {
    const frame = svg.getBoundingClientRect(), scale = frame.width / svg.viewBox.baseVal.width;
    const x = x0 + ((event.clientX - frame.left) / scale - left) / width * (x1 - x0);
    const all = lines.map((line) => nearest(line.points, x));
    const at = nearest(all, x)[0], pixel = left + (at - x0) / (x1 - x0) * width;
    cursor.setAttribute("x1", pixel);
    cursor.setAttribute("x2", pixel);
    cursor.setAttribute("visibility", "visible");
    const rows = lines.map((line, place) => {
      const row = document.createElement("div");
      row.className = line.color === null ? "" : `c${line.color % 8}`;
      row.textContent = `${line.name} ${written(all[place][1])}`;
      return row;
    });
    const head = document.createElement("b");
    const named = lines.find((line) => line.labels);
    head.textContent = named ? named.labels[named.points.findIndex((point) => point[0] === at)] : written(at);
    tip.replaceChildren(head, ...rows.slice(0, 12));
    tip.hidden = false;
    const where = pixel * scale;
    tip.style.left = where > frame.width / 2 ? "auto" : `${where + 10}px`;
    tip.style.right = where > frame.width / 2 ? `${frame.width - where + 10}px` : "auto";
  });
  svg.addEventListener("pointerleave", () => {
    tip.hidden = true;
    cursor.setAttribute("visibility", "hidden");
  });
}
// Sort a table by a column when its title is clicked.
for (const table of document.querySelectorAll(".sortable")) {
  const body = table.tBodies[0];
  table.tHead.addEventListener("click", ({target: {cellIndex: at}}) => {
    if (at === undefined) return;
    const falling = table.dataset.by !== String(at);
    table.dataset.by = falling ? at : "";
    const value = (row) => row.cells[at].querySelector("data")?.value ?? row.cells[at].textContent;
    const rows = [...body.rows].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      return isNaN(x) || isNaN(y) ? String(x).localeCompare(y) : y - x;
    });
    body.replaceChildren(...(falling ? rows : rows.reverse()));
  });
}
