"""Rows of Spark's state as Arrow, and back: the bytes of `UnsafeRow`s in bulk, with numpy. Needs the extra `tools`."""

from millpond.errors import UnsupportedError


def require_tools() -> None:
    """Raise UnsupportedError (UNSUPPORTED) unless the packages of the extra `tools` are installed."""
    try:
        import numpy  # noqa: F401 - here and not above: this package is imported to parse schemas too
        import pyarrow  # noqa: F401
    except ImportError as e:
        raise UnsupportedError(
            f"state as tables needs the package {e.name}, which is not installed",
            hint="Run `python -m pip install 'millpond[tools]'` in the environment of this command.",
        ) from e
