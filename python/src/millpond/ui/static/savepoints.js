// The pages of what could be done: rescale, verify; and of savepoints.
import { bar, button, bytes, count, el, facts, note, option, quote, table, time } from "./draw.js";

// ---- rescale ------------------------------------------------------------------------------------

export function rescale(place, get, given, failed) {
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

// ---- problems -----------------------------------------------------------------------------------

export function verify(place, get, given, failed) {
  const command = `millpond ${place.kind === "savepoint" ? "savepoint" : "checkpoint"} verify ${quote(place.path)}`;
  const seen = el("div");
  const load = async () => {
    if (place.kind === "savepoint") return;
    const q = await get("query");
    seen.replaceChildren(...q.problems.map((p) => el("div", { class: "error" }, p)),
      ...(q.problems.length ? [] : [note("Logs, manifests and headers of changelogs can be read.")]));
  };
  return { load, node: el("div", {}, seen, el("p", {}, "Reads every byte back, which may take long. The same as:"), el("pre", {}, command),
    ...button("Read everything back", async () => {
      const r = await get("verify");
      return el("div", {}, el("p", { class: r.ok ? "good" : "bad" }, r.ok ? "Nothing is wrong." : `${count(r.problems.length)} problems`),
        facts(Object.entries(r.checked).map(([name, n]) => [name.replaceAll("_", " "), name.endsWith("bytes") ? bytes(n) : count(n)])),
        r.problems.length ? table([["Kind", (p) => p.kind], ["File", (p) => p.file, "path"], ["What", (p) => p.message, "path"], ["What helps", (p) => p.hint, "path"]],
          r.problems, { "aria-label": "Problems" }) : undefined);
    }, failed)) };
}

// ---- savepoints of a query ----------------------------------------------------------------------

export function saved(place, get) {
  const node = el("div");
  return { node, load: async () => {
    const { savepoints } = await get("savepoints");
    node.replaceChildren(el("h2", {}, "Savepoints"),
      note("Those among the places that this server shows. Shared: their SSTs that this query has, too; a savepoint beside it need not copy them."),
      savepoints.length ? table([["Path", (s) => el("a", { href: `#/p/${s.id}` }, s.path), "path"], ["Batch", (s) => count(s.batch), "n"],
        ["Made", (s) => time(s.created_ms)], ["Form", (s) => s.format], ["Size", (s) => bytes(s.size_bytes), "n"],
        ["SSTs", (s) => bytes(s.sst_bytes), "n"], ["Shared", (s) => bytes(s.shared_bytes), "n"],
        ["", (s) => el("span", {}, bar(s.sst_bytes - s.shared_bytes, s.sst_bytes), bar(s.shared_bytes, s.sst_bytes, 180, "shared"))],
      ], savepoints, { "aria-label": "Savepoints" }) : note("None is shown."),
      el("h2", {}, "To make one"), el("pre", {}, `millpond savepoint create ${quote(place.path)} SAVEPOINT`));
  } };
}

// ---- a savepoint --------------------------------------------------------------------------------

export function contents(place, get, given, failed, job) {
  const node = el("div");
  return { node, load: async () => {
    const s = await get("saved");
    const command = `millpond savepoint plan ${quote(place.path)} ${option("--job", job || "job.py")}`;
    node.replaceChildren(
      facts([["Batch", count(s.batch)], ["Form", s.format], ["Made", time(s.created_ms)], ["by", s.created_by], ["Query", s.query_id ?? "none"],
        ["Partitions", count(s.partitions)], ["Key groups", count(s.max_parallelism)], ["Files", count(s.files)], ["Size", bytes(s.size_bytes)]]),
      el("h2", {}, "Operators"),
      table([["Operator", (o) => count(o.operator), "n"], ["Name", (o) => o.name], ["Stores", (o) => count(o.stores.length), "n"]], s.operators, { "aria-label": "Operators" }),
      el("h2", {}, "Shared files"),
      s.shared.length ? table([["With", (o) => el("a", { href: `#/p/${o.id}` }, o.path), "path"], ["SSTs of the same name and size", (o) => bytes(o.bytes), "n"],
        ["Of all its SSTs", (o) => `${((100 * o.bytes) / s.sst_bytes).toFixed(0)} %`, "n"]], s.shared, { "aria-label": "Shared files" })
        : note("No other place that is shown has a file of it."),
      el("h2", {}, "What a job would do with it"), el("pre", {}, command),
      ...(job ? button("Ask the job", () => asked(get), failed) : [note("Start `millpond ui` with --job job.py to ask here. It runs the job, in a JVM, and starts no query.")]),
      el("h2", {}, "To start from it"), el("pre", {}, `millpond savepoint restore ${quote(place.path)} NEW_CHECKPOINT`));
  } };
}

async function asked(get) {
  const r = await get("jobplan");
  return el("div", {}, el("p", { class: r.ok ? "good" : "bad" }, r.ok ? "Spark would start the job with this state." : "Spark would refuse the job with this state."),
    ...[...r.problems, ...r.warnings].map((w) => el("div", { class: "error" }, w)),
    table([["Operator", (o) => count(o.operator), "n"], ["Name", (o) => o.name], ["Saved as", (o) => count(o.saved_as), "n"],
      ["What becomes of it", (o) => o.verdict], ["Why", (o) => [o.reason || o.why, ...o.warnings].join(" "), "path"],
      ["Columns that differ", (o) => o.columns.map((c) => `${c.part} ${c.column}: ${c.saved ?? "–"} → ${c.job ?? "–"}`).join("; ") || "none", "path"],
    ], r.operators, { "aria-label": "What the job would do" }));
}
