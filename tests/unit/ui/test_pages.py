"""What a page shows while its query changes: the pages' own code, in node."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

NODE = shutil.which("node")
STATIC = Path("python/src/millpond/ui/static")
pytestmark = pytest.mark.skipif(NODE is None, reason="node is not there; make peer-browser runs it")

_SCRIPT = """
import "./dom.mjs";
const { of } = await import("./pages.js");
const answers = %s;
const ask = async () => {
  const next = answers.shift();
  if (next.code) throw Object.assign(new Error(next.message), next);
  return next;
};
const failed = (error) => {
  const made = document.createElement("p");
  made.textContent = `${error.code}: ${error.message}`;
  return made;
};
const page = of({ id: "1", kind: "query" }, %s, new URLSearchParams(), ask, failed, "");
const shown = [];
for (let run = page.load; answers.length; run = page.refresh) {
  await run();
  shown.push(page.node.textContent);
}
console.log(JSON.stringify(shown));
"""
_WRONG = {"code": "STORAGE_UNAVAILABLE", "message": "no answer"}


def shown(tmp_path: Path, tab: str, *answers: object) -> list[str]:
    """Return what a page shows after each answer of the server: the first loads it."""
    for path in (*STATIC.glob("*.js"), Path("tests/unit/ui/dom.mjs")):
        shutil.copy(path, tmp_path)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "run.js").write_text(_SCRIPT % (json.dumps(answers), json.dumps(tab)))
    assert NODE is not None
    done = subprocess.run(
        [NODE, "run.js"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found


def groups(*stores: tuple[str, list[list[int] | None]]) -> dict[str, object]:
    return {
        "stores": [
            {"operator": 0, "name": name, "store": "default", "groups": of} for name, of in stores
        ]
    }


def test_an_error_of_one_look_goes_with_the_next(tmp_path: Path) -> None:
    """The page stood still with the error until somebody loaded it anew."""
    counts = groups(("count", [[1, 2], [3, 4]]))
    first, wrong, after = shown(tmp_path, "groups", counts, _WRONG, counts)
    assert "Live keys\n10" in first and "STORAGE_UNAVAILABLE" not in first
    assert "STORAGE_UNAVAILABLE: no answer" in wrong and "Live keys\n10" in wrong
    assert after == first
    wrong, after = shown(tmp_path, "groups", _WRONG, counts)
    assert "STORAGE_UNAVAILABLE" in wrong and "By bytes" not in wrong
    assert after == first


def test_stores_come_and_go(tmp_path: Path) -> None:
    """A page that was open before the first batch said for ever that there is no state. A store of
    before a change of the job stayed.
    """
    none, counts, unknown, again, other = shown(
        tmp_path,
        "groups",
        groups(),
        groups(("count", [[1, 2], [3, 4]])),
        groups(("count", [None, None])),
        groups(("count", [[5], [6]])),
        groups(("dedupe", [[7]])),
    )
    assert "No state was written yet." in none
    assert "No state was written yet." not in counts and "Live keys\n10" in counts
    assert "No file tells the keys" in unknown and "Live keys" not in unknown
    assert "No file tells the keys" not in again and "Live keys\n11" in again
    assert "dedupe" in other and "count" not in other
