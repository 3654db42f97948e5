"""Chromium, of Debian's package, and Playwright, which drives it, of PyPI's."""

from __future__ import annotations

import shutil
import sys
from typing import Any

from integration.jvm import REPO
from integration.peers import debian
from integration.peers.fetching import emptied, has, keep, run

ROOT = REPO / "build" / "peers" / "browser"
_CHROMIUM, _DRIVER = ROOT / "chromium", ROOT / "playwright"
_PACKAGE = "chromium"
_PLAYWRIGHT = "playwright>=1.50,<2"


def fetch() -> None:
    """Fetch both, unless they are there. A Chromium of the machine will do.

    Raises: FetchError: one of them is out of reach.
    """
    if shutil.which("chromium") is None:
        debian.fetch(_PACKAGE, _CHROMIUM)
    if not has(_DRIVER, _PLAYWRIGHT):
        emptied(_DRIVER)
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(_DRIVER)]
        failed = f"pip cannot install {_PLAYWRIGHT}"
        run([*install, _PLAYWRIGHT], ROOT / "pip.log", failed)
        keep(_DRIVER, _PLAYWRIGHT)


def fetched() -> bool:
    """Return whether both are there."""
    return has(_DRIVER, _PLAYWRIGHT) and (
        shutil.which("chromium") is not None or has(_CHROMIUM, _PACKAGE)
    )


def program() -> tuple[str, dict[str, str]]:
    """Return the path of Chromium, and the variables that it needs."""
    found = shutil.which("chromium")
    if found is not None:
        return found, {}
    return str(_CHROMIUM / "root/usr/lib/chromium/chromium"), debian.libraries(_CHROMIUM)


def playwright() -> Any:
    """Return the module `playwright.sync_api`."""
    if str(_DRIVER) not in sys.path:
        sys.path.append(str(_DRIVER))
    from playwright import sync_api

    return sync_api
