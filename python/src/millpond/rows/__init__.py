"""Rows of Spark's state to Arrow and back: the bytes of many `UnsafeRow`s at once, with numpy.

Also Spark's Avro encoding and Spark's hash of rows. The rooms above call it. It imports
`spark.types` and the errors. It needs the extra `tools`.
"""

import importlib.util

from millpond.errors import UnsupportedError


def require_tools(*, load: bool = True) -> None:
    """Raise UnsupportedError (UNSUPPORTED) unless the packages of the extra `tools` are installed.

    Args:
        load: False: only look whether they are there. To load them takes a while, and only another
            process needs them.
    """
    try:
        if not load:
            for name in ("numpy", "pyarrow"):
                if importlib.util.find_spec(name) is None:
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            return
        # Imported here: commands without these packages import this room too.
        import numpy  # noqa: F401
        import pyarrow  # noqa: F401
    except ImportError as e:
        raise UnsupportedError(
            f"state as tables needs the package {e.name}, which is not installed",
            hint=(
                "Run `python -m pip install 'millpond[tools]'` in the environment of this command."
            ),
        ) from e
