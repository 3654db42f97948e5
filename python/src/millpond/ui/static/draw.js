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

export const option = (name, value) => `${name}${value.startsWith("-") ? "=" : " "}${quote(value)}`;
export const quote = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\"'\"'")}'`);
export const sum = (values) => values.reduce((a, b) => a + b, 0);
export const note = (text) => el("p", { class: "note" }, text);

/** A button that asks for more, and the place of the answer. */
export function button(text, run, failed) {
  const out = el("div", { "aria-live": "polite" });
  const made = el("button", { type: "button", on: { click: async () => {
    made.disabled = true;
    delete out.dataset.ready;
    out.replaceChildren(note("Working…"));
    try { out.replaceChildren(await run()); }
    catch (error) { out.replaceChildren(failed(error)); }
    made.disabled = false;
    out.dataset.ready = "yes";
  } } }, text);
  return [made, out];
}

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const drawn = new Set();
const redraw = () => drawn.forEach((chart) => chart.node.isConnected ? chart.draw() : drawn.delete(chart));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
let resizing;
addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(redraw, 100); });

// Steps of an axis: whole numbers, or powers of two for bytes, so that its labels are round.
const WHOLE = Array.from({ length: 48 }, (_, i) => [1, 2, 5][i % 3] * 10 ** Math.floor(i / 3));
const BINARY = Array.from({ length: 53 }, (_, i) => 2 ** i);

/** A time of an axis: as short as the span of the axis allows. */
function clock(seconds, span) {
  const text = new Date(seconds * 1000).toISOString();
  if (span > 2 * 86400) return text.slice(5, 10) + " " + text.slice(11, 16);
  return text.slice(11, span > 1200 ? 16 : 19);
}

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
      // Where no pointer is, the legend tells the newest values.
      const newest = (u) => { if (u.cursor.idx === null || u.cursor.idx === undefined) u.setLegend({ idx: u.data[0].length - 1 }, false); };
      plot = new uPlot({
        width: Math.max(200, space.clientWidth || 320), height: 170,
        legend: { live: true },
        hooks: { ready: [newest], setData: [newest], setCursor: [newest] },
        tzDate: (s) => uPlot.tzDate(new Date(s * 1000), "UTC"), // as all times here
        series: [{ value: (_, s) => (s ? time(s * 1000) : "–") }, ...names.map((name, i) => ({
          label: name, stroke: css(`--s${i % 6}`), width: 1.5, points: { show: data[0].length < 40, size: 4 },
          value: (_, v) => (v === null || v === undefined ? "–" : shown(v)),
        }))],
        axes: [
          { ...axis, space: 80, values: (u, ticks) => ticks.map((s) => clock(s, u.scales.x.max - u.scales.x.min)) },
          { ...axis, incrs: shown === bytes ? BINARY : WHOLE, values: (_, ticks) => ticks.map((v) => shown(v).replace(".0 ", " ")),
            size: (_, labels) => 22 + 7 * Math.max(3, ...(labels ?? []).map((l) => l.length)) },
        ],
        scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      }, data, space);
      plot.root.setAttribute("role", "img");
      plot.root.setAttribute("aria-label", `${title}, over time`);
    },
  };
  drawn.add(made);
  return made;
}

/** How many keys a key group must exceed to be hot: four times the mean, and more than chance
 * explains. By chance about `mean` keys lie in a key group, give or take the root of it. */
export const hotAbove = (mean) => Math.max(4 * mean, mean + 5 * Math.sqrt(mean) + 3);

/** A bar of `part` out of `whole`, next to a number that tells the same. */
export const bar = (part, whole, width = 180, kind = "") =>
  el("span", { class: `bar ${kind}`, style: `width:${whole ? (width * part) / whole : 0}px`, "aria-hidden": "true" });

/** A heat map: a row a partition, a column a key group of it. Arrow keys move, a line tells. */
export function heatmap() {
  const told = el("p", { class: "note", role: "status" });
  const canvas = el("canvas", { class: "heat", tabindex: "0", role: "application" });
  let groups = [], mean = 0, rows = 0, columns = 1, size = [1, 2], at = null;
  const tell = () => {
    if (!at) {
      told.textContent = "A row a partition, a column a key group of it: the fuller, the darker. Red is a hot one."
        + " Move over a cell, or focus the map and use the arrow keys.";
      return;
    }
    const keys = groups[at[0]]?.[at[1]];
    told.textContent = `Partition ${at[0]}, key group ${at[0] + at[1] * rows}: ${count(keys)} keys`
      + (mean > 0 && keys !== undefined ? `, ${(keys / mean).toFixed(2)} times the mean` : "");
  };
  const made = {
    node: el("div", {}, el("div", { class: "wide" }, canvas), told),
    update(found) {
      groups = found;
      const full = groups.flatMap((g) => g ?? []);
      mean = full.length ? full.reduce((a, b) => a + b, 0) / full.length : 0;
      rows = groups.length;
      columns = Math.max(1, ...groups.map((g) => (g ? g.length : 0)));
      size = [Math.max(1, Math.min(18, Math.floor(1100 / columns))), Math.max(2, Math.min(18, Math.floor(900 / rows)))];
      canvas.setAttribute("aria-label", `Live keys of ${rows} partitions, ${columns} key groups each`);
      made.draw();
      tell();
    },
    draw() {
      const most = hotAbove(mean);
      const top = Math.min(most, Math.max(1, ...groups.map((g) => (g ? Math.max(0, ...g) : 0))));
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
    move((at?.[0] ?? 0) + step[0], (at?.[1] ?? 0) + step[1]);
  });
  drawn.add(made);
  return made;
}
