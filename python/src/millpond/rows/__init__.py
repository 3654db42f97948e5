"""Rows of Spark's state as Arrow, and back: the bytes of `UnsafeRow`s in bulk, with numpy. Needs the extra `tools`."""

import importlib.util

from millpond.errors import UnsupportedError


def require_tools(*, load: bool = True) -> None:
    """Raise UnsupportedError (UNSUPPORTED) unless the packages of the extra `tools` are installed.

    Args:
        load: False: they are needed in another process, and loading them takes a while; say only whether they are there.
    """
    try:
        if not load:
            for name in ("numpy", "pyarrow"):
                if importlib.util.find_spec(name) is None:
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            return
        import numpy  # noqa: F401 - here and not above: this package is imported to parse schemas too
        import pyarrow  # noqa: F401
    except ImportError as e:
        raise UnsupportedError(
            f"state as tables needs the package {e.name}, which is not installed",
            hint="Run `python -m pip install 'millpond[tools]'` in the environment of this command.",
        ) from e
