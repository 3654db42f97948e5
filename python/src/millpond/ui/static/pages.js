// The pages: each returns {node, load, refresh}.
import { bar, button, bytes, chart, count, el, facts, heatmap, hotAbove, note, sum, table, time } from "./draw.js";
import { files, storage } from "./files.js";
import { contents, rescale, saved, verify } from "./savepoints.js";

const TABS = {
  query: [["batches", "Batches"], ["stores", "Stores"], ["groups", "Key groups"], ["files", "Snapshots"],
    ["storage", "Storage"], ["savepoints", "Savepoints"], ["plan", "Rescale"], ["verify", "Problems"]],
  savepoint: [["contents", "Contents"], ["verify", "Problems"]],
};
const PAGES = { batches, stores, groups, files, storage, savepoints: saved, plan: rescale, verify, contents };

export function index(places, ask) {
  const link = (p) => el("a", { href: `#/p/${p.id}` }, p.path);
  const rows = (kind) => places.filter((p) => p.kind === kind);
  const glances = {};
  const shown = (text) => (p) => { // a cell that is filled when the place has answered
    const cell = el("span", {}, "…");
    (glances[p.id] ??= []).push((found, error) => {
      cell.textContent = found ? text(found) : "";
      if (error && text === what) cell.replaceChildren(el("span", { class: "bad" }, error.message));
    });
    return cell;
  };
  const what = (g) => (g.running === undefined ? time(g.created_ms) : g.running ? "running" : "stopped");
  const batch = (g) => count(g.batch);
  const part = (title, kind, more) => rows(kind).length ? [el("h2", {}, title),
    table([["Path", kind === "unreadable" ? (p) => p.path : link, "path"], ...more], rows(kind), { "aria-label": title })] : [];
  const node = el("div", {}, el("h1", {}, "Queries and savepoints"),
    places.length ? undefined : note("Nothing was found."),
    ...part("Queries", "query", [["State", shown(what)], ["Last batch", shown(batch), "n"]]),
    ...part("Savepoints", "savepoint", [["Made", shown(what)], ["Of batch", shown(batch), "n"], ["Form", shown((g) => g.format)],
      ["Size", shown((g) => bytes(g.size_bytes)), "n"]]),
    ...part("Cannot be shown", "unreadable", [["Why", (p) => `${p.code}: ${p.problem}`, "path"], ["What helps", (p) => p.hint, "path"]]));
  const load = () => Promise.all(places.filter((p) => glances[p.id]).map(async (p) => {
    let found, error;
    try { found = await ask(`api/${p.id}/glance`); }
    catch (wrong) { error = wrong; }
    glances[p.id].forEach((fill) => fill(found, error));
  }));
  return { node, load };
}

export function of(place, tab, given, ask, failed, job) {
  if (place.kind === "unreadable") return { node: failed({ code: place.code, message: place.problem, hint: place.hint }) };
  const tabs = TABS[place.kind];
  const name = tabs.some(([id]) => id === tab) ? tab : tabs[0][0];
  const body = el("div"), wrong = el("div");
  const get = (what, arguments_ = {}) => ask(`api/${place.id}/${what}?${new URLSearchParams(arguments_)}`);
  const node = el("div", {},
    el("nav", { class: "tabs", "aria-label": "Views" }, tabs.map(([id, text]) =>
      el("a", { href: `#/p/${place.id}/${id}`, "aria-current": id === name ? "page" : undefined }, text))),
    body);
  const page = PAGES[name](place, get, given, failed, job);
  body.append(wrong, page.node);
  let loaded = false;
  // What goes wrong stands above what the page showed before, until the next look succeeds.
  const careful = (run) => run && (async () => {
    const held = node.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    page.node.hidden = false; // charts are drawn as wide as their place
    try { await run(); loaded = true; wrong.replaceChildren(); }
    catch (error) { page.node.hidden = !loaded; wrong.replaceChildren(failed(error)); }
    // What was drawn anew has lost the focus.
    if (held && document.activeElement === document.body) node.querySelector(`a[href="${CSS.escape(held)}"]`)?.focus();
  });
  return { node, load: careful(page.load), refresh: careful(page.refresh) };
}

// ---- batches ------------------------------------------------------------------------------------

const metric = (x, name) => sum(x.operators.map((o) => o.metrics[name] ?? 0));
const added = (x, name) => sum(x.operators.map((o) => o[name]));

// What the driver moved between executors, the newest first.
function moved(b) {
  const moves = b.flatMap((x) => x.moves.map((m) => ({ ...m, batch: x.batch, at_ms: x.at_ms }))).slice(-50).reverse();
  if (!moves.length) return [];
  return [el("h2", {}, "Stores that moved between executors"), table([
    ["Before batch", (m) => count(m.batch), "n"], ["Began", (m) => time(m.at_ms)], ["Operators", (m) => m.operators.join("+")],
    ["Partition", (m) => count(m.partition), "n"], ["From", (m) => m.source], ["To", (m) => m.target], ["Why", (m) => m.reason],
  ], moves, { id: "moves", "aria-label": "Stores that moved between executors" })];
}

function batches(place, get) {
  const head = el("div"), problems = el("div"), last = el("div");
  const of1 = (x, name) => x.operators.find((o, i) => `${i} ${o.name}` === name);
  const names = (b) => [...new Set(b.flatMap((x) => x.operators.map((o, i) => `${i} ${o.name}`)))];
  const charts = [
    [chart("Duration of a batch, ms", count), (b) => [["batch", b.map((x) => x.duration_ms)],
      ["commit of state, summed over tasks", b.map((x) => added(x, "commit_ms"))],
      ["planning", b.map((x) => x.phases.queryPlanning ?? null)],
      ["logs", b.map((x) => (x.phases.walCommit ?? 0) + (x.phases.commitOffsets ?? 0))]]],
    [chart("Rows in a batch", count), (b) => [["read", b.map((x) => x.input_rows)],
      ["state rows updated", b.map((x) => added(x, "rows_updated"))],
      ["removed", b.map((x) => added(x, "rows_removed"))], ["late", b.map((x) => added(x, "rows_late"))]]],
    [chart("Rows of state", count), (b) => names(b).map((n) => [n, b.map((x) => of1(x, n)?.rows ?? null)])],
    [chart("Memory of state", bytes), (b) => names(b).map((n) => [n, b.map((x) => of1(x, n)?.memory_bytes ?? null)])],
    [chart("Snapshots and restores, ms summed over stores", count), (b) => [
      ["snapshots", b.map((x) => metric(x, "millpondSnapshotMs"))], ["restores", b.map((x) => metric(x, "millpondRestoreMs"))]]],
    [chart("Written to storage", bytes), (b) => [["changelogs", b.map((x) => metric(x, "millpondChangelogBytes"))],
      ["new in snapshots", b.map((x) => metric(x, "millpondSnapshotNewBytes"))],
      ["shared by snapshots", b.map((x) => metric(x, "millpondSnapshotReusedBytes"))]]],
  ];
  let known = [];
  const draw = (found) => {
    node.querySelector(".charts").hidden = !known.length;
    problems.replaceChildren(...found.problems.map((p) => el("div", { class: "error" }, p)));
    if (!known.length) {
      head.replaceChildren(note("No batch is kept yet. The driver writes one a second"
        + " after it ended; batches of before this version of Millpond, and with history.batches=0, are not there."));
      return;
    }
    const b = known, newest = b[b.length - 1];
    head.replaceChildren(facts([["Last batch", count(newest.batch)], ["began", time(newest.at_ms)],
      ["took", `${count(newest.duration_ms)} ms`], ["rows read", count(newest.input_rows)],
      ["rows of state", count(added(newest, "rows"))],
      ["watermark", newest.watermark ?? "none"], ["run", newest.run_id.slice(0, 8)]]));
    charts.forEach(([made, series]) => made.update(b.map((x) => x.at_ms), series(b)));
    last.replaceChildren(el("h2", {}, "Operators, in the last batch"), table([
      ["Operator", (o) => `${newest.operators.indexOf(o)} ${o.name}`], ["Partitions", (o) => count(o.partitions), "n"],
      ["Stores", (o) => count(o.stores), "n"], ["Rows", (o) => count(o.rows), "n"], ["Updated", (o) => count(o.rows_updated), "n"],
      ["Removed", (o) => count(o.rows_removed), "n"], ["Late", (o) => count(o.rows_late), "n"],
      ["Memory", (o) => bytes(o.memory_bytes), "n"], ["Updates ms", (o) => count(o.update_ms), "n"],
      ["Removals ms", (o) => count(o.removal_ms), "n"], ["Commit ms", (o) => count(o.commit_ms), "n"],
    ], newest.operators, { id: "operators", "aria-label": "Operators, in the last batch" }),
    note("Times are summed over tasks."), el("h2", {}, "The last batches"), table([
      ["Batch", (x) => count(x.batch), "n"], ["Began", (x) => time(x.at_ms)], ["Run", (x) => x.run_id.slice(0, 8)],
      ["ms", (x) => count(x.duration_ms), "n"], ["Read", (x) => count(x.input_rows), "n"],
      ["State", (x) => count(added(x, "rows")), "n"], ["Updated", (x) => count(added(x, "rows_updated")), "n"],
      ["Late", (x) => count(added(x, "rows_late")), "n"], ["Commit ms", (x) => count(added(x, "commit_ms")), "n"],
      ["Snapshots", (x) => count(metric(x, "millpondSnapshotCount")), "n"], ["Restores ms", (x) => count(metric(x, "millpondRestoreMs")), "n"],
      ["Slowest phase", (x) => Object.entries(x.phases).filter(([n]) => n !== "triggerExecution")
        .sort((a, c) => c[1] - a[1]).slice(0, 1).map(([n, ms]) => `${n} ${count(ms)} ms`).join()],
    ], b.slice(-20).reverse(), { id: "last-batches", "aria-label": "The last batches" }), ...moved(b));
  };
  const node = el("div", {}, head, problems, el("div", { class: "charts" }, charts.map(([c]) => c.node)), last);
  const load = async () => {
    const found = await get("history", { last: 1000 });
    known = found.batches;
    draw(found);
  };
  const refresh = async () => {
    const found = await get("history", { last: 50 });
    const name = (x) => `${x.run_id} ${x.batch}`, old = new Set(known.map(name));
    // A hidden tab asks for nothing: there may be more since the last one that it knows.
    if (found.batches.length && !old.has(name(found.batches[0]))) return load();
    known = [...known, ...found.batches.filter((x) => !old.has(name(x)))].slice(-1000);
    draw(found);
  };
  return { node, load, refresh };
}

// ---- stores -------------------------------------------------------------------------------------

const gone = (q) => (q.rescaling
  ? "Those that are gone are none of the last committed batch: of the rescale that has not come to its end, or gone by one before."
  : "Those that are gone went by a rescale. Their files go with the last version that needs them.");

function stores(place, get) {
  const node = el("div");
  const load = async () => {
    const q = await get("query");
    const span = (a, b) => (a === null ? "none" : `${count(a)} to ${count(b)}`);
    node.replaceChildren(
      facts([["Query", q.query_id ?? "none"],
        ["Running", q.running.length ? q.running.map((r) => `on ${r.host}, process ${r.pid}`).join("; ") : "no"],
        ["Committed", span(q.first_committed_batch, q.last_committed_batch)],
        ["Begun", span(q.first_offset_batch, q.last_offset_batch)],
        ["Partitions", count(q.partitions)], ["Key groups", count(q.max_parallelism)],
        ["Spark checkpoint format", count(q.spark_checkpoint_format)], ["Backend", q.backend ?? "of the session"],
        ["Asked for", q.asked_partitions === null ? undefined : `${q.asked_partitions} partitions`]]),
      ...q.problems.map((p) => el("div", { class: "error" }, p)),
      ...q.operators.flatMap((o) => [el("h2", {}, `Operator ${o.operator}: ${o.name ?? "no metadata"}`),
        table([
          ["Partition", (s) => count(s.partition) + (s.removed ? " (gone)" : ""), "n"],
          ["Store", (s) => el("a", { href: `#/p/${place.id}/files?${new URLSearchParams({ operator: s.operator, partition: s.partition, store: s.name })}` }, s.name)],
          ["Keys", (s) => count(s.keys), "n"], ["Versions", (s) => span(s.oldest_version, s.newest_version), "n"],
          ["Changelogs", (s) => count(s.changelogs), "n"], ["their size", (s) => bytes(s.changelog_bytes), "n"],
          ["Snapshots", (s) => count(s.snapshots.length), "n"],
          ["the newest", (s) => (s.snapshots.length ? count(s.snapshots[s.snapshots.length - 1].version) : "none"), "n"],
          ["SSTs", (s) => count(s.sst_files), "n"], ["their size", (s) => bytes(s.sst_bytes), "n"],
          ["Rescale", (s) => (s.scalable === false ? `no: ${s.unscalable_reason}` : "")],
        ], o.stores, { "aria-label": `Stores of operator ${o.operator}` }),
        ...(o.stores.some((s) => s.removed) ? [note(gone(q))] : [])]));
    if (!q.operators.length) node.append(note("No state was written yet."));
  };
  return { node, load, refresh: load };
}

// ---- key groups ---------------------------------------------------------------------------------

function groups(place, get, given, failed) {
  const body = el("div"), parts = new Map();
  const part = (s) => {
    const map = heatmap(), head = el("div"), more = el("div"), none = note("No file tells the keys of its key groups.");
    const full = el("div", {}, head, map.node, el("details", {}, el("summary", {}, "The fullest key groups and partitions"), more));
    return { map, head, more, none, full, node: el("section", {}, el("h2", {}, `Operator ${s.operator} ${s.name}, store ${s.store}`), none, full) };
  };
  const update = (at, s) => {
    const cells = s.groups.flatMap((g) => g ?? []), mean = sum(cells) / cells.length;
    at.none.hidden = cells.length > 0;
    at.full.hidden = !cells.length;
    if (!cells.length) return;
    const n = s.groups.length, unknown = new Set(s.unknown);
    const loads = s.groups.map((g, p) => ({ p, keys: sum(g ?? []) })).filter((l) => !unknown.has(l.p)).sort((a, b) => b.keys - a.keys);
    const average = sum(cells) / loads.length, times = (keys, of) => (of ? (keys / of).toFixed(2) : "–");
    const fullest = s.groups.flatMap((g, p) => (g ?? []).map((keys, i) => ({ group: p + i * n, p, keys }))).sort((a, b) => b.keys - a.keys);
    const hot = fullest.filter((g) => g.keys > hotAbove(mean));
    at.head.replaceChildren(facts([["Live keys", (unknown.size ? "at least " : "") + count(sum(cells))], ["Partitions", count(n)],
      ["Key groups with keys", `${count(cells.filter((k) => k).length)} of ${count(cells.length)}`],
      ["Fullest partition", average ? `${loads[0].p}, ${times(loads[0].keys, average)} times the mean` : "–"],
      ["Hot key groups", hot.length ? `${count(hot.length)}; the fullest is ${hot[0].group}, ${times(hot[0].keys, mean)} times the mean` : "none"]]),
    ...(unknown.size ? [note(`The keys of partition${unknown.size > 1 ? "s" : ""} ${s.unknown.join(", ")} are not known, and no mean has them. If files are damaged, the page Problems names them.`)] : []),
    note("Hot: more than four times the mean, and more than chance explains."));
    at.map.update(s.groups);
    at.more.replaceChildren(
      table([["Key group", (g) => count(g.group), "n"], ["Partition", (g) => count(g.p), "n"], ["Keys", (g) => count(g.keys), "n"],
        ["Times the mean", (g) => times(g.keys, mean), "n"], ["", (g) => bar(g.keys, fullest[0].keys)],
      ], fullest.slice(0, 10).filter((g) => g.keys), { "aria-label": "The fullest key groups" }),
      table([["Partition", (l) => count(l.p), "n"], ["Keys", (l) => count(l.keys), "n"], ["Times the mean", (l) => times(l.keys, average), "n"],
        ["", (l) => bar(l.keys, loads[0].keys)]], loads.slice(0, 10), { "aria-label": "The fullest partitions" }));
  };
  const load = async () => {
    const { stores } = await get("groups");
    const of1 = (s) => {
      const name = `${s.operator} ${s.name} ${s.store}`;
      if (!parts.has(name)) parts.set(name, part(s));
      return parts.get(name);
    };
    const nodes = stores.length ? stores.map((s) => of1(s).node) : [note("No state was written yet.")];
    // A batch takes the focus from no map. The first one brings stores, a changed job others.
    if (nodes.length !== body.childNodes.length || nodes.some((n, i) => n !== body.childNodes[i])) body.replaceChildren(...nodes);
    stores.forEach((s) => update(of1(s), s));
  };
  const skew = button("Read all rows", async () => {
    const s = await get("skew");
    return table([["Operator", (o) => `${o.operator} ${o.name}`], ["Fullest partition", (o) => `${o.fullest} times the mean`],
      ["Hot key groups", (o) => o.hot.join(", ") || "none"], ["Suggested", (o) => count(o.suggested), "n"], ["Why", (o) => o.why, "path"]],
    s.operators, { "aria-label": "Skew by bytes" });
  }, failed);
  return { node: el("div", {}, body, el("h2", {}, "By bytes"), note("Reads all rows, as `millpond checkpoint skew` does."), ...skew), load, refresh: load };
}
