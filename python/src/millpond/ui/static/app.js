// Which page is shown, and when it is fetched anew.
import { el } from "./draw.js";
import * as pages from "./pages.js";

const main = document.getElementById("main");
const where = document.getElementById("where");
const live = document.getElementById("live");
let shown = null; // {key, page}
let known = { places: [], job: "" }; // what the server found; asked anew for the list of places
let batch; // the last one of the query that is shown

export async function ask(path) {
  const answer = await fetch(path, { headers: { Accept: "application/json" } });
  const body = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(body.error.message), body.error);
  return body;
}

function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [kind, place, tab] = path.split("/");
  return { place: kind === "p" ? place : undefined, tab, given: new URLSearchParams(query) };
}

const say = (text, state) => { live.textContent = text; live.className = state ?? ""; };

function failed(error) {
  const kind = error.code ? `${error.code}: ` : "";
  return el("div", { class: "error", role: "alert" }, el("strong", {}, kind + error.message),
    error.hint ? el("p", {}, error.hint) : undefined);
}

async function show() {
  const { place, tab, given } = route();
  const key = location.hash;
  delete main.dataset.ready;
  try {
    if (!known.places.some((p) => p.id === place)) known = await ask("api/places");
    const { places, job } = known, found = places.find((p) => p.id === place);
    let page;
    if (!place) page = pages.index(places, ask);
    else if (!found) throw Object.assign(new Error("no such place"), { hint: "It may have been deleted." });
    else page = pages.of(found, tab, given, ask, failed, job);
    if (location.hash !== key) return; // somebody went on meanwhile
    where.textContent = found ? found.path : "";
    document.title = found ? `${found.path} – Millpond` : "Millpond";
    main.replaceChildren(page.node);
    shown = { key, page, place: found };
    batch = undefined;
    say("");
    await page.load?.();
    main.dataset.ready = key; // tests wait for it
  } catch (error) {
    main.replaceChildren(failed(error));
  }
}

// Every second one small question; the page itself only if there is a new batch.
async function beat() {
  try {
    const now = shown;
    if (document.hidden || now?.place?.kind !== "query") return;
    const pulse = await ask(`api/${now.place.id}/pulse`);
    if (now !== shown) return;
    const news = batch !== undefined && pulse.batch !== batch;
    batch = pulse.batch;
    say(batch === null ? "no batch committed" : `batch ${batch}`, "on");
    live.dataset.batch = batch;
    // what the driver keeps of a batch comes a second after it
    if (news || now.again > 0) {
      now.again = news ? 3 : now.again - 1;
      await now.page.refresh?.();
    }
  } catch (error) {
    say(error.code ? error.message : `the server does not answer: ${error.message}`, "off");
  } finally {
    setTimeout(beat, 1000);
  }
}

addEventListener("hashchange", () => { show(); main.focus({ preventScroll: true }); });
show();
setTimeout(beat, 1000);
