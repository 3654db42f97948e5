"""Web applications on this machine: a server on loopback, a token, errors as JSON.

`server.py` is the only module that imports starlette and uvicorn. The rooms above give it their
applications. It needs the extra `ui`.
"""

import importlib.util

from millpond.errors import UnsupportedError


def require_web() -> None:
    """Raise UnsupportedError (UNSUPPORTED) unless the packages of the extra `ui` are installed."""
    for name in ("starlette", "uvicorn"):
        if importlib.util.find_spec(name) is None:
            raise UnsupportedError(
                f"a server needs the package {name}, which is not installed",
                hint=(
                    "Run `python -m pip install 'millpond[ui]'` in the environment of this command."
                ),
            )
