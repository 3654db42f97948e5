// The pages: each returns {node, load, refresh}.
import { bytes, chart, count, dollars, el, facts, heatmap, table, time } from "./draw.js";

const TABS = {
  query: [["batches", "Batches"], ["stores", "Stores"], ["groups", "Key groups"], ["files", "Snapshots"],
    ["storage", "Storage"], ["plan", "Rescale"], ["verify", "Problems"]],
  savepoint: [["contents", "Contents"], ["verify", "Problems"]],
  unreadable: [["contents", "Contents"]],
};
const PAGES = { batches, stores, groups, files, storage, plan, verify, contents };
const sum = (values) => values.reduce((a, b) => a + b, 0);
const allStores = (query) => query.operators.flatMap((o) => o.stores.map((s) => ({ ...s, operatorName: o.name })));

export function index(places) {
  const link = (p) => el("a", { href: `#/p/${p.id}` }, p.path);
  const rows = (kind) => places.filter((p) => p.kind === kind);
  const part = (title, kind, more = []) => rows(kind).length ? [el("h2", {}, title),
    table([["Path", link, "path"], ...more], rows(kind), { "aria-label": title })] : [];
  return { node: el("div", {}, el("h1", {}, "Queries and savepoints"),
    places.length ? undefined : el("p", { class: "note" }, "Nothing was found."),
    ...part("Queries", "query"), ...part("Savepoints", "savepoint"),
    ...part("Cannot be shown", "unreadable", [["Why", (p) => p.problem, "path"]])) };
}

export function of(place, tab, given, ask, failed) {
  const tabs = TABS[place.kind];
  const name = tabs.some(([id]) => id === tab) ? tab : tabs[0][0];
  const body = el("div");
  const get = (what, arguments_ = {}) => ask(`/api/${place.id}/${what}?${new URLSearchParams(arguments_)}`);
  const node = el("div", {},
    el("nav", { class: "tabs", "aria-label": "Views" }, tabs.map(([id, text]) =>
      el("a", { href: `#/p/${place.id}/${id}`, "aria-current": id === name ? "page" : undefined }, text))),
    body);
  const page = PAGES[name](place, get, given, failed);
  body.append(page.node);
  const careful = (run) => run && (async () => {
    try { await run(); }
    catch (error) { page.node.replaceChildren(failed(error)); }
  });
  return { node, load: careful(page.load), refresh: careful(page.refresh) };
}

function button(text, run, failed) {
  const out = el("div", { "aria-live": "polite" });
  const made = el("button", { type: "button", on: { click: async () => {
    made.disabled = true;
    out.replaceChildren(el("p", { class: "note" }, "Working…"));
    try { out.replaceChildren(await run()); }
    catch (error) { out.replaceChildren(failed(error)); }
    made.disabled = false;
    out.dataset.ready = "yes";
  } } }, text);
  return [made, out];
}

// ---- batches ------------------------------------------------------------------------------------

function batches(place, get) {
  const head = el("div"), problems = el("div"), last = el("div");
  const charts = [
    [chart("Duration of a batch, ms", count), (b) => [["batch", b.map((x) => x.duration_ms)],
      ["commit of state, summed over tasks", b.map((x) => sum(x.operators.map((o) => o.commit_ms)))],
      ["planning", b.map((x) => x.phases.queryPlanning ?? null)],
      ["logs", b.map((x) => (x.phases.walCommit ?? 0) + (x.phases.commitOffsets ?? 0))]]],
    [chart("Rows in a batch", count), (b) => [["read", b.map((x) => x.input_rows)],
      ["state rows updated", b.map((x) => sum(x.operators.map((o) => o.rows_updated)))],
      ["removed", b.map((x) => sum(x.operators.map((o) => o.rows_removed)))],
      ["late", b.map((x) => sum(x.operators.map((o) => o.rows_late)))]]],
    [chart("Rows of state", count), (b) => names(b).map((n) => [n, b.map((x) => of1(x, n)?.rows ?? null)])],
    [chart("Memory of state", bytes), (b) => names(b).map((n) => [n, b.map((x) => of1(x, n)?.memory_bytes ?? null)])],
    [chart("Snapshots and restores", count), (b) => [["snapshots", metric(b, "millpondSnapshotCount")],
      ["snapshots, ms", metric(b, "millpondSnapshotMs")], ["restores, ms", metric(b, "millpondRestoreMs")]]],
    [chart("Written to storage", bytes), (b) => [["changelogs", metric(b, "millpondChangelogBytes")],
      ["new in snapshots", metric(b, "millpondSnapshotNewBytes")],
      ["shared by snapshots", metric(b, "millpondSnapshotReusedBytes")]]],
  ];
  const of1 = (x, name) => x.operators.find((o, i) => `${i} ${o.name}` === name);
  const names = (b) => [...new Set(b.flatMap((x) => x.operators.map((o, i) => `${i} ${o.name}`)))];
  const metric = (b, name) => b.map((x) => sum(x.operators.map((o) => o.metrics[name] ?? 0)));
  let known = [];
  const draw = (found) => {
    problems.replaceChildren(...found.problems.map((p) => el("div", { class: "error" }, p)));
    if (!known.length) {
      head.replaceChildren(el("p", { class: "note" }, "No batch is kept yet. The driver writes one a second"
        + " after it ended; batches of before this version of Millpond, and with history.batches=0, are not there."));
      return;
    }
    const b = known, newest = b[b.length - 1];
    head.replaceChildren(facts([["Last batch", count(newest.batch)], ["began", time(newest.at_ms)],
      ["took", `${count(newest.duration_ms)} ms`], ["rows read", count(newest.input_rows)],
      ["rows of state", count(sum(newest.operators.map((o) => o.rows)))],
      ["watermark", newest.watermark ?? "none"], ["run", newest.run_id.slice(0, 8)]]));
    charts.forEach(([made, series]) => made.update(b.map((x) => x.at_ms), series(b)));
    last.replaceChildren(el("h2", {}, "The last batches"), table([
      ["Batch", (x) => count(x.batch), "n"], ["Began", (x) => time(x.at_ms)], ["Run", (x) => x.run_id.slice(0, 8)],
      ["ms", (x) => count(x.duration_ms), "n"], ["Read", (x) => count(x.input_rows), "n"],
      ["State", (x) => count(sum(x.operators.map((o) => o.rows))), "n"],
      ["Updated", (x) => count(sum(x.operators.map((o) => o.rows_updated))), "n"],
      ["Late", (x) => count(sum(x.operators.map((o) => o.rows_late))), "n"],
      ["Slowest phase", (x) => Object.entries(x.phases).filter(([n]) => n !== "triggerExecution")
        .sort((a, c) => c[1] - a[1]).slice(0, 1).map(([n, ms]) => `${n} ${count(ms)} ms`).join()],
    ], b.slice(-20).reverse(), { id: "last-batches", "aria-label": "The last batches" }));
  };
  const node = el("div", {}, head, problems, el("div", { class: "charts" }, charts.map(([c]) => c.node)), last);
  return {
    node,
    load: async () => {
      const found = await get("history", { last: 1000 });
      known = found.batches;
      node.querySelector(".charts").hidden = !known.length;
      draw(found);
    },
    refresh: async () => {
      const found = await get("history", { last: 50 });
      const old = new Set(known.map((x) => `${x.run_id} ${x.batch}`));
      known = [...known, ...found.batches.filter((x) => !old.has(`${x.run_id} ${x.batch}`))].slice(-1000);
      node.querySelector(".charts").hidden = !known.length;
      draw(found);
    },
  };
}

// ---- stores -------------------------------------------------------------------------------------

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
          ["Partition", (s) => count(s.partition), "n"],
          ["Store", (s) => el("a", { href: `#/p/${place.id}/files?${new URLSearchParams({ operator: s.operator, partition: s.partition, store: s.name })}` }, s.name)],
          ["Keys", (s) => count(s.keys), "n"], ["Versions", (s) => span(s.oldest_version, s.newest_version), "n"],
          ["Changelogs", (s) => count(s.changelogs), "n"], ["Size", (s) => bytes(s.changelog_bytes), "n"],
          ["Snapshots", (s) => count(s.snapshots.length), "n"],
          ["Newest", (s) => (s.snapshots.length ? count(s.snapshots[s.snapshots.length - 1].version) : "none"), "n"],
          ["SSTs", (s) => count(s.sst_files), "n"], ["Size", (s) => bytes(s.sst_bytes), "n"],
          ["Rescale", (s) => (s.scalable === false ? `no: ${s.unscalable_reason}` : "")],
        ], o.stores, { "aria-label": `Stores of operator ${o.operator}` })]));
    if (!q.operators.length) node.append(el("p", { class: "note" }, "No state was written yet."));
  };
  return { node, load, refresh: load };
}

// ---- key groups ---------------------------------------------------------------------------------

function groups(place, get, given, failed) {
  const node = el("div");
  const load = async () => {
    const found = await get("groups");
    node.replaceChildren(...found.stores.flatMap((s) => {
      const known = s.groups.filter((g) => g);
      const title = el("h2", {}, `Operator ${s.operator} ${s.name}, store ${s.store}`);
      const cells = known.flat();
      if (!cells.length) return [title, el("p", { class: "note" }, "No file tells the keys of its key groups.")];
      const mean = sum(cells) / cells.length;
      const loads = s.groups.map((g) => (g ? sum(g) : 0));
      const fullest = loads.indexOf(Math.max(...loads));
      const average = sum(loads) / loads.length;
      const hottest = s.groups.flatMap((g, p) => (g ?? []).map((keys, i) => ({ group: p + i * s.groups.length, p, keys })))
        .sort((a, b) => b.keys - a.keys).slice(0, 10).filter((g) => g.keys > 0);
      return [title, facts([["Live keys", count(sum(cells))], ["Partitions", count(s.groups.length)],
        ["Key groups with keys", `${count(cells.filter((k) => k).length)} of ${count(cells.length)}`],
        ["Fullest partition", average ? `${fullest}, ${(loads[fullest] / average).toFixed(2)} times the mean` : "–"]]),
      heatmap(s.groups, mean),
      el("details", {}, el("summary", {}, "The fullest key groups"), table([
        ["Key group", (g) => count(g.group), "n"], ["Partition", (g) => count(g.p), "n"],
        ["Keys", (g) => count(g.keys), "n"], ["Times the mean", (g) => (g.keys / mean).toFixed(2), "n"],
      ], hottest, { "aria-label": "The fullest key groups" }))];
    }), el("h2", {}, "By bytes"), el("p", { class: "note" }, "Reads all rows, as `millpond checkpoint skew` does."),
    ...button("Read all rows", async () => {
      const s = await get("skew");
      return table([["Operator", (o) => `${o.operator} ${o.name}`], ["Fullest partition", (o) => `${o.fullest} times the mean`],
        ["Hot key groups", (o) => o.hot.join(", ") || "none"], ["Suggested", (o) => count(o.suggested), "n"], ["Why", (o) => o.why, "path"]],
      s.operators, { "aria-label": "Skew by bytes" });
    }, failed));
    if (!found.stores.length) node.prepend(el("p", { class: "note" }, "No state was written yet."));
  };
  return { node, load };
}

// ---- files of a store ---------------------------------------------------------------------------

function files(place, get, given) {
  const body = el("div"), choice = el("div"), node = el("div", {}, choice, body);
  const load = async () => {
    const all = allStores(await get("query"));
    if (!all.length) return body.replaceChildren(el("p", { class: "note" }, "No state was written yet."));
    const id = (s) => `${s.operator}/${s.partition}/${s.name}`;
    const wanted = `${given.get("operator") ?? all[0].operator}/${given.get("partition") ?? all[0].partition}/${given.get("store") ?? all[0].name}`;
    const select = el("select", { on: { change: () => {
      const s = all.find((x) => id(x) === select.value);
      location.hash = `#/p/${place.id}/files?${new URLSearchParams({ operator: s.operator, partition: s.partition, store: s.name })}`;
    } } }, all.map((s) => el("option", { value: id(s), selected: id(s) === wanted },
      `operator ${s.operator} ${s.operatorName ?? ""}, partition ${s.partition}, store ${s.name}`)));
    choice.replaceChildren(el("label", {}, "Store", select));
    const [operator, partition, store] = wanted.split("/");
    const f = await get("store", { operator, partition, store });
    const shots = f.manifests.map(([version, vid, keys, at, own, shared]) => ({ version, vid, keys, at, own, shared }));
    const most = Math.max(1, ...shots.map((s) => s.own + s.shared));
    const shown = shots.slice(-20).map((s) => s.version);
    body.replaceChildren(
      ...f.problems.map((p) => el("div", { class: "error" }, p)),
      el("h2", {}, "Snapshots"),
      shots.length ? table([["Version", (s) => count(s.version), "n"], ["Made", (s) => time(s.at)], ["Keys", (s) => count(s.keys), "n"],
        ["New", (s) => bytes(s.own), "n"], ["Shared with the one before", (s) => bytes(s.shared), "n"],
        ["", (s) => el("span", { "aria-hidden": "true" }, el("span", { class: "bar", style: `width:${(180 * s.own) / most}px` }),
          el("span", { class: "bar shared", style: `width:${(180 * s.shared) / most}px` }))],
      ], shots, { "aria-label": "Snapshots" }) : el("p", { class: "note" }, "None yet."),
      el("h2", {}, "SSTs, and the snapshots that name them"),
      f.ssts.length ? table([["SST", (s) => s.name.slice(0, 8)], ["Size", (s) => bytes(s.bytes), "n"],
        ["Snapshots", (s) => (s.snapshots.length ? `${s.snapshots[0]} to ${s.snapshots[s.snapshots.length - 1]}` : "none: not yet, or not any more")],
        ...shown.map((v) => [String(v), (s) => (s.snapshots.includes(v) ? "■" : "")])],
      f.ssts, { class: "grid", "aria-label": "SSTs by snapshot" }) : el("p", { class: "note" }, "None."),
      el("h2", {}, "Changelogs"),
      el("p", { class: "note" }, "Each attempt to write a version has its own file in Spark checkpoint format 2. One is committed; the others lost."),
      table([["Version", (a) => count(a.version), "n"], ["Attempt", (a) => a.id || "in the file"], ["Size", (a) => bytes(a.bytes), "n"],
        ["Written", (a) => time(a.written_ms)], ["Fate", (a) => el("span", { class: a.fate === "lost" ? "bad" : a.fate === "committed" ? "good" : "" }, a.fate)],
      ], f.attempts.slice().reverse(), { "aria-label": "Changelogs" }));
  };
  return { node, load, refresh: load };
}

// ---- storage ------------------------------------------------------------------------------------

function storage(place, get) {
  const node = el("div"), cost = el("div");
  const load = async () => {
    const [q, h] = [await get("query"), await get("history", { last: 1000 })];
    const all = allStores(q);
    const of = (name) => sum(all.map((s) => s[name]));
    const kinds = [["Changelogs", sum(all.map((s) => s.changelogs)), of("changelog_bytes")],
      ["SSTs that snapshots name", null, of("sst_bytes") - of("unreferenced_bytes")],
      ["SSTs that no snapshot names, or none yet", null, of("unreferenced_bytes")],
      ["All SSTs", of("sst_files"), of("sst_bytes")]];
    const total = of("changelog_bytes") + of("sst_bytes");
    const grow = chart("Bytes written since the first batch shown", bytes);
    const requests = chart("Requests to the storage in a batch", count);
    const b = h.batches, metric = (x, name) => sum(x.operators.map((o) => o.metrics[name] ?? 0));
    const names = { put: "millpondStoragePutRequests", get: "millpondStorageGetRequests", list: "millpondStorageListRequests", delete: "millpondStorageDeleteRequests" };
    const inputs = Object.entries({ put: 0.005, get: 0.0004, list: 0.005, delete: 0, month: 0.023 }).map(([name, value]) =>
      [name, el("input", { type: "number", min: 0, step: "any", value, name, on: { input: () => reckon() } })]);
    const reckon = () => {
      const price = Object.fromEntries(inputs.map(([name, input]) => [name, Number(input.value) || 0]));
      const used = Object.entries(names).map(([name, of1]) => [name, sum(b.map((x) => metric(x, of1)))]);
      const span = b.length > 1 ? (b[b.length - 1].at_ms - b[0].at_ms) / 86400000 : 0;
      const spent = sum(used.map(([name, n]) => (n * price[name]) / 1000));
      cost.replaceChildren(facts([...used.map(([name, n]) => [`${name.toUpperCase()} requests`, count(n)]),
        ["for these batches", dollars(spent)], ["a day at this rate", span > 0 ? dollars(spent / span) : "–"],
        ["to keep the files, a month", dollars((price.month * total) / 2 ** 30)]]));
    };
    const versions = all.filter((s) => s.oldest_version !== null);
    node.replaceChildren(
      facts([["In all", bytes(total)], ["Stores", count(all.length)],
        ["Versions kept", versions.length ? `${count(Math.min(...versions.map((s) => s.oldest_version)))} to ${count(Math.max(...versions.map((s) => s.newest_version)))}` : "none"]]),
      table([["Kind", (k) => k[0]], ["Files", (k) => count(k[1]), "n"], ["Size", (k) => bytes(k[2]), "n"],
        ["", (k) => el("span", { class: "bar", style: `width:${total ? (240 * k[2]) / total : 0}px`, "aria-hidden": "true" })]], kinds, { "aria-label": "Storage by kind" }),
      el("h2", {}, "Growth and requests"), el("div", { class: "charts" }, grow.node, requests.node),
      el("h2", {}, "What it costs"),
      el("p", { class: "note" }, "Dollars for a thousand requests of each kind, and for a GiB kept a month. Requests are those of Millpond's own client."),
      el("form", { on: { submit: (e) => e.preventDefault() } }, inputs.map(([name, input]) => el("label", {}, name, input))), cost);
    let written = 0;
    const growth = b.map((x) => (written += metric(x, "millpondChangelogBytes") + metric(x, "millpondSnapshotNewBytes")));
    if (b.length) {
      grow.update(b.map((x) => x.at_ms), [["written", growth]]);
      requests.update(b.map((x) => x.at_ms), Object.entries(names).map(([name, m]) => [name, b.map((x) => metric(x, m))]));
    } else node.querySelector(".charts").replaceChildren(el("p", { class: "note" }, "No batch is kept."));
    reckon();
  };
  return { node, load };
}

// ---- rescale ------------------------------------------------------------------------------------

function plan(place, get, given, failed) {
  const node = el("div");
  const load = async () => {
    const q = await get("query");
    const input = el("input", { type: "number", min: 1, max: 100000, value: (q.partitions ?? 1) * 2, id: "partitions" });
    node.replaceChildren(el("p", {}, `The state has ${count(q.partitions)} partitions and ${count(q.max_parallelism)} key groups.`
      + " This says what a rescale would do, and changes nothing. The query must be stopped for it."),
    el("form", { on: { submit: (e) => { e.preventDefault(); node.querySelector("button").click(); } } }, el("label", {}, "Partitions", input)),
    ...button("What would it do?", async () => {
      const r = await get("rescale", { partitions: input.value });
      return el("div", {}, facts([["Way", r.way === "composed" ? "new manifests name the old files" : "every row is written anew"],
        ["From", count(r.current)], ["To", count(r.partitions)], ["Key groups then", count(r.max_parallelism)], ["Stores", count(r.stores)],
        ["State", bytes(r.state_bytes)], ["Written", bytes(r.written_bytes)], ["Time", `${r.seconds.toFixed(1)} s, an estimate`],
        ["Numbers near it that move no row", r.near.join(", ") || "none"]]),
      ...r.warnings.map((w) => el("div", { class: "error" }, w)),
      el("pre", {}, `millpond rescale ${quote(place.path)} --partitions ${r.partitions}`));
    }, failed));
  };
  return { node, load };
}

const quote = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\"'\"'")}'`);

// ---- problems -----------------------------------------------------------------------------------

function verify(place, get, given, failed) {
  const command = `millpond ${place.kind === "savepoint" ? "savepoint" : "checkpoint"} verify ${quote(place.path)}`;
  return { node: el("div", {}, el("p", {}, "Reads every byte back, which may take long. The same as:"), el("pre", {}, command),
    ...button("Read everything back", async () => {
      const r = await get("verify");
      return el("div", {}, el("p", { class: r.ok ? "good" : "bad" }, r.ok ? "Nothing is wrong." : `${count(r.problems.length)} problems`),
        facts(Object.entries(r.checked).map(([name, n]) => [name.replaceAll("_", " "), name.endsWith("bytes") ? bytes(n) : count(n)])),
        r.problems.length ? table([["Kind", (p) => p.kind], ["File", (p) => p.file, "path"], ["What", (p) => p.message, "path"], ["What helps", (p) => p.hint, "path"]],
          r.problems, { "aria-label": "Problems" }) : undefined);
    }, failed)) };
}

// ---- savepoints ---------------------------------------------------------------------------------

function contents(place, get) {
  const node = el("div");
  return { node, load: async () => {
    const s = await get("saved");
    node.replaceChildren(
      facts([["Batch", count(s.batch)], ["Form", s.format], ["Made", time(s.created_ms)], ["by", s.created_by], ["Query", s.query_id ?? "none"],
        ["Partitions", count(s.partitions)], ["Key groups", count(s.max_parallelism)], ["Files", count(s.files)], ["Size", bytes(s.size_bytes)]]),
      el("h2", {}, "Operators"),
      table([["Operator", (o) => count(o.operator), "n"], ["Name", (o) => o.name], ["Stores", (o) => count(o.stores.length), "n"]], s.operators, { "aria-label": "Operators" }),
      el("h2", {}, "Shared files"),
      s.shared.length ? table([["With", (o) => el("a", { href: `#/p/${o.id}` }, o.path), "path"], ["SSTs of the same name and size", (o) => bytes(o.bytes), "n"],
        ["Of all its SSTs", (o) => `${((100 * o.bytes) / s.sst_bytes).toFixed(0)} %`, "n"]], s.shared, { "aria-label": "Shared files" })
        : el("p", { class: "note" }, "No other place that is shown has a file of it."),
      el("h2", {}, "To start from it"), el("pre", {}, `millpond savepoint plan ${quote(place.path)} --job job.py\nmillpond savepoint restore ${quote(place.path)} NEW_CHECKPOINT`));
  } };
}
