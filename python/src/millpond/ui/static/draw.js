// Elements, numbers and charts. All text goes in as text, never as markup.

export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") for (const [event, run] of Object.entries(value)) made.addEventListener(event, run);
    else if (value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((c) => c !== undefined && c !== null));
  return made;
}

export const count = (n) => (n === null || n === undefined || n < 0 ? "–" : n.toLocaleString("en-US"));

export function bytes(n) {
  if (n === null || n === undefined) return "–";
  let value = n;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (Math.abs(value) < 1024) return unit === "B" ? `${value} B` : `${value.toFixed(1)} ${unit}`;
    value /= 1024;
  }
  return `${value.toFixed(1)} TiB`;
}

export const time = (ms) => (ms ? new Date(ms).toISOString().replace("T", " ").slice(0, 19) + " UTC" : "–");
export const dollars = (n) => (n < 0.01 && n > 0 ? `$${n.toPrecision(2)}` : `$${n.toFixed(2)}`);

/** A table. Columns: [head, cell of a row, "n" for numbers or "path"]. */
export function table(columns, rows, attributes = {}) {
  return el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": attributes["aria-label"] ?? "Table" },
    el("table", attributes,
      el("thead", {}, el("tr", {}, columns.map(([head, , kind]) => el("th", { class: kind, scope: "col" }, head)))),
      el("tbody", {}, rows.map((row) =>
        el("tr", {}, columns.map(([, cell, kind]) => el("td", { class: kind }, cell(row) ?? "–")))))));
}

export function facts(pairs) {
  return el("dl", { class: "facts" }, pairs.filter(([, value]) => value !== undefined).map(([name, value]) =>
    el("div", {}, el("dt", {}, name), el("dd", {}, value ?? "–"))));
}

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const drawn = new Set();
const redraw = () => drawn.forEach((chart) => chart.node.isConnected ? chart.draw() : drawn.delete(chart));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
let resizing;
addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(redraw, 100); });

/** A chart over time. Series: [name, values]. `update` replaces the data. */
export function chart(title, shown) {
  const space = el("div");
  const node = el("figure", { class: "chart", style: "margin:0" }, el("h3", {}, title), space);
  let plot, data, names;
  const made = {
    node,
    update(times, series) {
      data = [times.map((ms) => ms / 1000), ...series.map(([, values]) => values)];
      const same = names && names.join() === series.map(([name]) => name).join();
      names = series.map(([name]) => name);
      if (plot && same) plot.setData(data);
      else made.draw();
    },
    draw() {
      if (!data) return;
      plot?.destroy();
      const axis = { stroke: css("--soft"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line") } };
      plot = new uPlot({
        width: Math.max(200, space.clientWidth || 320), height: 170,
        legend: { live: true },
        tzDate: (s) => uPlot.tzDate(new Date(s * 1000), "UTC"), // as all times here
        series: [{ value: (_, s) => (s ? time(s * 1000) : "–") }, ...names.map((name, i) => ({
          label: name, stroke: css(`--s${i % 6}`), width: 1.5, points: { show: data[0].length < 40, size: 4 },
          value: (_, v) => (v === null || v === undefined ? "–" : shown(v)),
        }))],
        axes: [axis, { ...axis, size: 64, values: (_, ticks) => ticks.map(shown) }],
        scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      }, data, space);
      plot.root.setAttribute("role", "img");
      plot.root.setAttribute("aria-label", `${title}, over time`);
    },
  };
  drawn.add(made);
  return made;
}

/** A heat map: a row a partition, a column a key group of it. Arrow keys move, a line tells. */
export function heatmap(groups, mean) {
  const full = groups.flatMap((g) => g ?? []);
  // Where most key groups are empty, few keys lie apart by chance, and none is hot.
  const most = full.filter((n) => n).length > full.length / 2 ? 4 * mean : Infinity;
  const top = Math.min(most, Math.max(1, ...groups.map((g) => (g ? Math.max(0, ...g) : 0))));
  const rows = groups.length;
  const columns = Math.max(1, ...groups.map((g) => (g ? g.length : 0)));
  const told = el("p", { class: "note", role: "status" }, "A row a partition, a column a key group of it; the fuller, the darker; more than four times"
    + " the mean is red. Move over a cell, or focus the map and use the arrow keys.");
  const canvas = el("canvas", { class: "heat", tabindex: "0", role: "application",
    "aria-label": `Live keys of ${rows} partitions, ${columns} key groups each` });
  let at = [0, 0];
  const size = [Math.max(1, Math.min(18, Math.floor(1100 / columns))), Math.max(2, Math.min(18, Math.floor(900 / rows)))];
  const tell = () => {
    const keys = groups[at[0]]?.[at[1]];
    told.textContent = `Partition ${at[0]}, key group ${at[0] + at[1] * rows}: ${count(keys)} keys`
      + (mean > 0 && keys !== undefined ? `, ${(keys / mean).toFixed(2)} times the mean` : "");
  };
  const made = {
    node: el("div", {}, el("div", { class: "wide" }, canvas), told),
    draw() {
      canvas.width = columns * size[0];
      canvas.height = rows * size[1];
      const pen = canvas.getContext("2d");
      const hot = css("--hot"), cool = css("--s0"), none = css("--panel");
      groups.forEach((of, row) => Array.from({ length: columns }, (_, column) => {
        const keys = of ? of[column] ?? 0 : 0;
        pen.globalAlpha = 1;
        pen.fillStyle = none;
        pen.fillRect(column * size[0], row * size[1], size[0], size[1]);
        if (!keys) return;
        pen.fillStyle = keys > most ? hot : cool;
        pen.globalAlpha = keys > most ? 1 : 0.15 + 0.85 * Math.min(1, keys / top);
        pen.fillRect(column * size[0], row * size[1], Math.max(1, size[0] - 1), Math.max(1, size[1] - 1));
      }));
    },
  };
  const move = (row, column) => {
    at = [Math.min(rows - 1, Math.max(0, row)), Math.min(columns - 1, Math.max(0, column))];
    tell();
  };
  canvas.addEventListener("mousemove", (e) => {
    const scale = canvas.width / canvas.clientWidth;
    move(Math.floor((e.offsetY * scale) / size[1]), Math.floor((e.offsetX * scale) / size[0]));
  });
  canvas.addEventListener("keydown", (e) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[e.key];
    if (!step) return;
    e.preventDefault();
    move(at[0] + step[0], at[1] + step[1]);
  });
  drawn.add(made);
  made.draw();
  return made.node;
}
