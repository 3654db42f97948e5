// The pages of files: of one store, and of all by kind with what they cost.
import { bar, bytes, chart, count, dollars, el, facts, note, sum, table, time } from "./draw.js";

const allStores = (query) => query.operators.flatMap((o) => o.stores.map((s) => ({ ...s, operatorName: o.name })));

// ---- files of a store ---------------------------------------------------------------------------

export function files(place, get, given) {
  const body = el("div"), choice = el("div"), node = el("div", {}, choice, body);
  const id = (s) => `${s.operator}/${s.partition}/${s.name}`;
  let offered = "";
  const offer = (all, wanted) => {
    if (offered === all.map(id).join()) return; // nobody's open list is closed by a batch
    offered = all.map(id).join();
    const select = el("select", { on: { change: () => {
      const s = all.find((x) => id(x) === select.value);
      location.hash = `#/p/${place.id}/files?${new URLSearchParams({ operator: s.operator, partition: s.partition, store: s.name })}`;
    } } }, all.map((s) => el("option", { value: id(s), selected: id(s) === wanted },
      `operator ${s.operator} ${s.operatorName ?? ""}, partition ${s.partition}, store ${s.name}`)));
    choice.replaceChildren(el("label", {}, "Store", select));
  };
  const load = async () => {
    const all = allStores(await get("query"));
    if (!all.length) return body.replaceChildren(note("No state was written yet."));
    const wanted = `${given.get("operator") ?? all[0].operator}/${given.get("partition") ?? all[0].partition}/${given.get("store") ?? all[0].name}`;
    offer(all, wanted);
    const [operator, partition, store] = wanted.split("/");
    const f = await get("store", { operator, partition, store });
    const shots = f.manifests.map(([version, vid, keys, at, own, shared]) => ({ version, vid, keys, at, own, shared }));
    const most = Math.max(1, ...shots.map((s) => s.own + s.shared));
    const shown = shots.slice(-20).map((s) => s.version);
    const fates = { lost: "bad", committed: "good" };
    body.replaceChildren(
      ...f.problems.map((p) => el("div", { class: "error" }, p)),
      el("h2", {}, "Snapshots"),
      note("A snapshot uploads the SSTs that are new. The others are shared: it names those that the snapshot before it named."),
      shots.length ? table([["Version", (s) => count(s.version), "n"], ["Made", (s) => time(s.at)], ["Keys", (s) => count(s.keys), "n"],
        ["New", (s) => bytes(s.own), "n"], ["Shared with the one before", (s) => bytes(s.shared), "n"],
        ["New and shared", (s) => el("span", {}, bar(s.own, most), bar(s.shared, most, 180, "shared"))],
      ], shots, { "aria-label": "Snapshots" }) : note("None yet."),
      el("h2", {}, "SSTs, and the snapshots that name them"),
      f.ssts.length ? table([["SST", (s) => s.name.slice(0, 8)], ["Size", (s) => bytes(s.bytes), "n"],
        ["Snapshots", (s) => (s.snapshots.length ? `${s.snapshots[0]} to ${s.snapshots[s.snapshots.length - 1]}` : "none: not yet, or not any more")],
        ...shown.map((v) => [String(v), (s) => (s.snapshots.includes(v) ? "■" : "")])],
      f.ssts, { class: "grid", "aria-label": "SSTs by snapshot" }) : note("None."),
      el("h2", {}, "Lineage"),
      note("Each attempt to write a version has its own changelog in Spark checkpoint format 2. One is committed; the others lost."),
      table([["Version", (a) => count(a.version), "n"], ["Attempt", (a) => a.id || "in the file"], ["Size", (a) => bytes(a.bytes), "n"],
        ["Written", (a) => time(a.written_ms)], ["Fate", (a) => el("span", { class: fates[a.fate] ?? "" }, a.fate)],
      ], f.attempts.slice().reverse(), { "aria-label": "Changelogs" }));
  };
  return { node, load, refresh: load };
}

// ---- storage ------------------------------------------------------------------------------------

const REQUESTS = { put: "millpondStoragePutRequests", get: "millpondStorageGetRequests", list: "millpondStorageListRequests", delete: "millpondStorageDeleteRequests" };
const PRICES = [["put", "1,000 PUT", 0.005], ["get", "1,000 GET", 0.0004], ["list", "1,000 LIST", 0.005], ["delete", "1,000 DELETE", 0], ["month", "1 GiB, a month", 0.023]];

export function storage(place, get) {
  const top = el("div"), kept = el("div"), cost = el("div");
  const metric = (x, name) => sum(x.operators.map((o) => o.metrics[name] ?? 0));
  const charts = el("div", { class: "charts" }), none = note("No batch is kept.");
  const now = chart("Files that are there, by when they were written", bytes);
  const grow = chart("Bytes written since the first batch shown", bytes);
  const requests = chart("Requests to the storage in a batch", count);
  charts.append(now.node, grow.node, requests.node);
  let b = [], total = 0;
  const inputs = Object.fromEntries(PRICES.map(([name, , value]) =>
    [name, el("input", { type: "number", min: 0, step: "any", value, name, on: { input: () => reckon() } })]));
  const reckon = () => {
    const price = (name) => Number(inputs[name].value) || 0;
    const used = Object.entries(REQUESTS).map(([name, of1]) => [name, sum(b.map((x) => metric(x, of1)))]);
    const span = b.length > 1 ? (b[b.length - 1].at_ms - b[0].at_ms) / 86400000 : 0;
    const spent = sum(used.map(([name, n]) => (n * price(name)) / 1000));
    cost.replaceChildren(...(sum(used.map(([, n]) => n)) ? [] : [note("No request was counted in these batches: the state is on a file system, or no batch is kept.")]),
      facts([...used.map(([name, n]) => [`${name.toUpperCase()} requests`, count(n)]),
        ["for these batches", dollars(spent)], ["a day at this rate", span > 0 ? dollars(spent / span) : "–"],
        ["to keep the files, a month", dollars((price("month") * total) / 2 ** 30)]]));
  };
  const kinds = (s, all) => {
    const of = (name) => sum(all.map((x) => x[name]));
    const newest = of("newest_bytes");
    top.replaceChildren(
      facts([["In all", bytes(total)], ["Files", count(sum(s.kinds.map((k) => k.files)))], ["Stores", count(all.length)]]),
      table([["Kind", (k) => k.kind], ["Files", (k) => count(k.files), "n"], ["Size", (k) => bytes(k.bytes), "n"], ["", (k) => bar(k.bytes, total, 240)]],
        s.kinds.filter((k) => k.files), { "aria-label": "Storage by kind" }),
      note(`Of the SSTs the newest snapshots name ${bytes(newest)}, only older ones ${bytes(of("sst_bytes") - of("unreferenced_bytes") - newest)},`
        + ` none, or none yet, ${bytes(of("unreferenced_bytes"))}.`));
  };
  const retention = (q) => {
    const first = q.first_committed_batch, last = q.last_committed_batch;
    kept.replaceChildren(el("h2", {}, "Retention"),
      facts([["Batches in the commit log", last === null ? "none" : `${count(first)} to ${count(last)}: ${count(last - first + 1)}`]]),
      table([["Operator", (o) => `${o.operator} ${o.name ?? ""}`],
        ["Versions that all its stores have files of", (o) => range(there(o), q.first_partitions)],
        ["Snapshots of a store", (o) => fewest(there(o).map((x) => x.snapshots.length)), "n"],
        ["Oldest snapshot", (o) => time(o.stores.flatMap((x) => x.snapshots.map((m) => m.created_ms)).sort((a, c) => a - c)[0])]],
      q.operators, { "aria-label": "Retention" }),
      note("spark.sql.streaming.minBatchesToRetain of the session says how many batches are kept; `millpond savepoint create` keeps one for good."));
  };
  const there = (o) => o.stores.filter((x) => !x.removed);
  // Partitions that a rescale made have no older versions: those of before it have them.
  const range = (stores, first) => {
    const of = stores.filter((x) => x.oldest_version !== null);
    const oldest = of.filter((x) => first === null || x.partition < first).map((x) => x.oldest_version);
    return oldest.length ? `${count(Math.max(...oldest))} to ${count(Math.min(...of.map((x) => x.newest_version)))}` : "none";
  };
  const fewest = (n) => (n.length ? (Math.min(...n) === Math.max(...n) ? count(n[0]) : `${count(Math.min(...n))} to ${count(Math.max(...n))}`) : "–");
  const load = async () => {
    const [q, h, s] = [await get("query"), await get("history", { last: 1000 }), await get("storage")];
    b = h.batches;
    total = sum(s.kinds.map((k) => k.bytes));
    kinds(s, allStores(q));
    retention(q);
    let written = 0;
    now.update(s.written.map(([at]) => at), [["files", s.written.map(([, size]) => size)]]);
    [grow, requests].forEach((c) => { c.node.hidden = !b.length; });
    none.hidden = b.length > 0;
    if (b.length) {
      const growth = b.map((x) => (written += metric(x, "millpondChangelogBytes") + metric(x, "millpondSnapshotNewBytes")));
      grow.update(b.map((x) => x.at_ms), [["written", growth]]);
      requests.update(b.map((x) => x.at_ms), Object.entries(REQUESTS).map(([name, m]) => [name, b.map((x) => metric(x, m))]));
    }
    reckon();
  };
  const node = el("div", {}, top, kept, el("h2", {}, "Growth and requests"), charts, none, el("h2", {}, "What it costs"),
    note("Prices in dollars: enter yours. Requests are those of Millpond's own client."),
    el("form", { on: { submit: (e) => e.preventDefault() } }, PRICES.map(([name, text]) => el("label", {}, text, inputs[name]))), cost);
  return { node, load, refresh: load };
}
