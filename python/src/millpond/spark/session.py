"""Switches Millpond on in a Spark session, and says why if it is too late for that.

Three settings do it: the jar, the class of the provider, and an extension of the planner. Without
the extension Spark allows transformWithState with its own provider only. The jar takes effect when
the JVM starts, the extension when the session starts. So `configure` refuses a session that already
runs without them. Functions import pyspark themselves, because most commands do without it.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millpond import _shim, config
from millpond._jvm import java, running_class
from millpond.errors import ErrorKind, InvalidInputError, UnsupportedError
from millpond.spark.metadata import PROVIDER_KEY
from millpond.spark.properties import parse_properties
from millpond.storage.given import Given
from millpond.storage.settings import HandedOver, storage_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROVIDER_CLASS = "org.apache.spark.sql.millpond.MillpondStateStoreProvider"
EXTENSION_CLASS = "org.apache.spark.sql.millpond.MillpondExtension"
_EXTENSIONS_KEY = "spark.sql.extensions"
_JARS_KEY = "spark.jars"
_DRIVER_PYTHON = "agent.driverPython"
_ACCESS = "org.apache.spark.sql.millpond.agent.StorageAccess"
_JSON = "org.apache.spark.sql.millpond.base.Json"

log = logging.getLogger(__name__)


def jar() -> str:
    """Return the absolute path of the shim's jar for the Spark that a session would start.

    Raises: UnsupportedError: SHIM_MISSING; SHIM_VERSION_MISMATCH: the package was built for another
        Spark.
    """
    return str(_shim.find_jar())


def configure(
    builder: SparkSession.Builder,
    options: Mapping[str, object] | None = None,
    /,
    **named_options: object,
) -> SparkSession.Builder:
    """Set `builder` to keep streaming state in Millpond, and return it. Starts nothing.

    It keeps the jars and extensions that the builder, PYSPARK_SUBMIT_ARGS or spark-defaults.conf
    set. The jar of another Millpond, or for another Spark, is left out, with a warning in the log:
    its classes would come first. A second call changes nothing.

    Args:
        builder: `SparkSession.builder` of classic Spark, before `getOrCreate`.
        options: Millpond's options by short or full name, `{"gc.graceMs": 60_000}`.
        named_options: the same as keywords: `maxParallelism=1024` or `max_parallelism=1024`,
            `gc_grace_ms=60_000`.
    Raises:
        InvalidInputError: an option is unknown, misspelt in its prefix or out of bounds;
            EXTENSION_MISSING: a session without the extension runs.
        UnsupportedError: SHIM_MISSING: a JVM without the jar runs, or PYSPARK_SUBMIT_ARGS names
            other jars; SHIM_VERSION_MISMATCH: the package was built for another Spark, or
            PYSPARK_SUBMIT_ARGS names the jar of another Millpond; UNSUPPORTED: the builder is one
            of Spark Connect.
    """
    present = _options_of(builder)
    _refuse_connect(builder, present)
    own = {key: value for key, value in present.items() if key.startswith(config.PREFIX)}
    given = {
        **dict(options or {}),
        **{_option_name(name): value for name, value in named_options.items()},
    }
    config.refuse_near(present)
    config.resolve({**own, **given})
    path = jar()
    running = _refuse_late(path)
    inherited = _submit_settings(path) if running is None else running
    for key, value in given.items():
        if value is not None:
            name = config.PREFIX + key.removeprefix(config.PREFIX)
            builder = builder.config(name, config.setting_text(value))
    driver_python = config.PREFIX + _DRIVER_PYTHON
    if (
        driver_python not in {**inherited, **present}
        and not {_DRIVER_PYTHON, driver_python} & given.keys()
    ):
        builder = builder.config(driver_python, sys.executable)
    if running is None or _JARS_KEY in present:
        # A running JVM has the jar already, perhaps at a path of the cluster.
        jars = present.get(_JARS_KEY, inherited.get(_JARS_KEY, ""))
        builder = builder.config(_JARS_KEY, _with_jar(jars, path))
    extensions = present.get(_EXTENSIONS_KEY, inherited.get(_EXTENSIONS_KEY, ""))
    builder = builder.config(_EXTENSIONS_KEY, _appended(extensions, EXTENSION_CLASS))
    return builder.config(PROVIDER_KEY, PROVIDER_CLASS)


def conf_lines(master: str | None = None) -> list[str]:
    """Return the lines of a spark-defaults.conf that switch Millpond on.

    Comments among them say what the user must still decide.

    Args:
        master: the value of `--master` (`local[4]`, `spark://host:7077`, `yarn`, `k8s://…`); None:
            local.
    Raises: UnsupportedError: as for `jar`.
    """
    settings = {_JARS_KEY: jar(), PROVIDER_KEY: PROVIDER_CLASS, _EXTENSIONS_KEY: EXTENSION_CLASS}
    notes: list[str] = []
    if master is None or master.split("[")[0] == "local":
        settings[config.PREFIX + _DRIVER_PYTHON] = sys.executable
    elif master.startswith("k8s"):
        settings[_JARS_KEY] = "local://" + settings[_JARS_KEY]
        notes.append(
            "# The jar's path is the one inside the image: run `millpond conf --master k8s://...`"
            " there."
        )
    else:
        notes.append("# millpond must be installed for this Python on every executor:")
        notes.append(f"# spark.pyspark.python {sys.executable}")
    width = max(map(len, settings)) + 1
    return [f"{key:<{width}}{value}" for key, value in settings.items()] + notes


def running_option(name: str) -> str | None:
    """Return Millpond's option `name` in this process's session.

    None if the option is not set, or if no session runs.
    """
    if "pyspark" not in sys.modules:
        return None
    from pyspark.sql import SparkSession  # start-up time

    spark = SparkSession.getActiveSession()
    return None if spark is None else spark.conf.get(config.PREFIX + name, None)


def given_by_session(session: Any, options: Mapping[str, object] | None = None) -> Given:
    """Return how the agents of a session reach their storages.

    Args:
        session: of the JVM, in which the shim is.
        options: of Millpond, by name; None: those that the session has.
    Raises: InvalidInputError: UNKNOWN_OPTION, INVALID_OPTION.
    """
    if options is None:
        conf = session.conf()
        names = [name for name in config.BY_NAME if name.startswith("storage.")]
        named = {name: conf.get(config.PREFIX + name, None) for name in names}
        options = {name: value for name, value in named.items() if value is not None}
    hadoop = HandedOver()
    access, json_objects = running_class(_ACCESS), running_class(_JSON)
    if access is not None:
        found = json_objects.obj()
        access.hand(found, session.sessionState().newHadoopConf())
        hadoop = HandedOver(json.loads(found.toString()).get("hadoop", {}))
    return Given(storage_settings(config.resolve(options), hadoop), dict(options))


def start(builder: SparkSession.Builder) -> SparkSession:
    """Return the session that `builder` makes.

    Raises:
        UnsupportedError: UNSUPPORTED: there is no java.
        InvalidInputError: INVALID_ARGUMENT: Spark does not start with the settings.
    """
    # Start-up time.
    from pyspark import SparkContext

    from millpond.spark.user_code import reason_in

    if SparkContext._jvm is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        java()  # without one pyspark tells nothing of it
    try:
        return builder.getOrCreate()
    except Exception as e:  # py4j's, pyspark's, or of a process that does not start
        raise InvalidInputError(
            f"Spark does not start: {reason_in(str(e))}",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint=(
                "Correct the settings that it has: those of --conf, spark-defaults.conf and"
                " PYSPARK_SUBMIT_ARGS."
            ),
        ) from e


def plain_session(settings: Mapping[str, str]) -> Any:
    """Return the Spark session whose executors a command uses. It needs no jar.

    It is the one that runs, or else a new one with `settings`.

    Raises: UnsupportedError: pyspark is not installed; as `start`.
    """
    try:
        from pyspark.sql import SparkSession  # start-up time
    except ImportError as e:
        raise UnsupportedError(
            "--engine spark needs pyspark, which is not installed",
            kind=ErrorKind.UNSUPPORTED,
            hint="Run `python -m pip install pyspark` in the environment of this command.",
        ) from e
    builder = SparkSession.Builder().appName("millpond")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = start(builder)
    if (session.sparkContext.master or "").startswith(
        "local"
    ) and "PYSPARK_PYTHON" not in os.environ:
        # Its workers would run the first python3 on the path. That one may not have Millpond.
        session.sparkContext.pythonExec = sys.executable
    return session


def _options_of(builder: SparkSession.Builder) -> dict[str, str]:
    # The builder has no public way to read its settings. To set spark.jars without reading it would
    # drop the user's jars.
    present = getattr(builder, "_options", None)
    if not isinstance(present, dict) or not callable(getattr(builder, "config", None)):
        raise InvalidInputError(
            f"millpond.configure takes SparkSession.builder, not {type(builder).__name__}",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint="spark = millpond.configure(SparkSession.builder).getOrCreate()",
        )
    return {str(key): str(value) for key, value in present.items()}


def _refuse_connect(builder: SparkSession.Builder, present: Mapping[str, str]) -> None:
    remote = (
        type(builder).__module__.startswith("pyspark.sql.connect")
        or "spark.remote" in present
        or bool({"SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"} & os.environ.keys())
        or present.get("spark.api.mode", os.environ.get("SPARK_API_MODE", "")).lower() == "connect"
    )
    if remote:
        raise UnsupportedError(
            "a Spark Connect client cannot give the server a jar: Millpond is switched on where the"
            " server starts",
            hint=(
                "start the server with the settings that `millpond conf` prints there; the client"
                " then needs nothing"
            ),
        )


def _refuse_late(jar_path: str) -> dict[str, str] | None:
    """Return the settings of the JVM that already runs; None if none runs.

    Raises:
        UnsupportedError: SHIM_MISSING: it runs without the jar, and it is too late to add it.
        InvalidInputError: EXTENSION_MISSING: its session runs without the extension.
    """
    if "pyspark" not in sys.modules and "PYSPARK_GATEWAY_PORT" not in os.environ:
        return None
    from pyspark import SparkConf, SparkContext  # start-up time

    if "PYSPARK_GATEWAY_PORT" in os.environ:
        # spark-submit started the JVM before this script. This connects to it, and starts nothing.
        SparkContext._ensure_initialized()
    jvm: Any = SparkContext._jvm
    if jvm is None:
        return None
    if not jvm.org.apache.spark.util.Utils.classIsLoadable(PROVIDER_CLASS):
        raise UnsupportedError(
            "a JVM without the Millpond jar runs already in this process, and a running JVM takes"
            f" no more jars: {jar_path}",
            kind=ErrorKind.SHIM_MISSING,
            hint=(
                "restart the Python process (in a notebook: the kernel), and call"
                " millpond.configure before the first Spark session: a stopped session leaves its"
                " JVM running; with spark-submit or a shell add"
                f" `--jars {jar_path} --conf {_EXTENSIONS_KEY}={EXTENSION_CLASS}`"
            ),
        )
    context = SparkContext._active_spark_context
    settings = dict((SparkConf(_jvm=jvm) if context is None else context.getConf()).getAll())
    if context is not None and EXTENSION_CLASS not in _entries(settings.get(_EXTENSIONS_KEY, "")):
        raise InvalidInputError(
            f"the running Spark session was started without {_EXTENSIONS_KEY}={EXTENSION_CLASS}",
            kind=ErrorKind.EXTENSION_MISSING,
            hint=(
                "restart the Python process (in a notebook: the kernel), or stop the session"
                " (spark.stop()), and call millpond.configure before the next one; or start it with"
                f" `--conf {_EXTENSIONS_KEY}={EXTENSION_CLASS}`"
            ),
        )
    return settings


def _submit_settings(jar_path: str) -> dict[str, str]:
    """Return the settings that spark-submit will read when pyspark starts it.

    They come from spark-defaults.conf and PYSPARK_SUBMIT_ARGS. The arguments win.

    Raises: UnsupportedError: the arguments, which win over the builder, name jars without
        Millpond's: SHIM_MISSING; or with another one of Millpond's: SHIM_VERSION_MISMATCH.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--jars")
    parser.add_argument("--conf", "-c", action="append", default=[])
    parser.add_argument("--properties-file")
    parser.add_argument("--load-spark-defaults", action="store_true")
    arguments, _ = parser.parse_known_args(shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "")))
    confs = dict(text.split("=", 1) for text in arguments.conf if "=" in text)
    jars = arguments.jars or confs.get(_JARS_KEY)
    if others := _other_shims(jars or "", jar_path):
        raise UnsupportedError(
            "PYSPARK_SUBMIT_ARGS wins over the builder, and names the jar of another Millpond:"
            f" {', '.join(others)}",
            kind=ErrorKind.SHIM_VERSION_MISMATCH,
            hint=f"in PYSPARK_SUBMIT_ARGS, name {jar_path} instead of {', '.join(others)}",
        )
    if jars is not None and not _names_jar(jars, jar_path):
        raise UnsupportedError(
            f"PYSPARK_SUBMIT_ARGS names jars ({jars}) but not Millpond's, and wins over the"
            " builder",
            kind=ErrorKind.SHIM_MISSING,
            hint=f"add {jar_path} to the jars in PYSPARK_SUBMIT_ARGS",
        )
    if jars is not None:
        confs[_JARS_KEY] = jars
    files = [Path(arguments.properties_file)] if arguments.properties_file else []
    if not files or arguments.load_spark_defaults:
        files.insert(0, _defaults_file())
    return {name: value for file in files for name, value in _read_properties(file).items()} | confs


def _defaults_file() -> Path:
    conf_dir = os.environ.get("SPARK_CONF_DIR")
    spark = _shim.running_spark_jars()
    if conf_dir or spark is None:
        return Path(conf_dir or ".") / "spark-defaults.conf"
    return spark.directory.parent / "conf" / "spark-defaults.conf"


def _read_properties(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    return parse_properties(path.read_text(encoding="utf-8", errors="replace"))


def _option_name(keyword: str) -> str:
    """Return the option that a keyword means; the keyword itself if there is none.

    `gc_grace_ms` and `gcGraceMs` mean `gc.graceMs`.
    """
    bare = keyword.replace("_", "").lower()
    return next((name for name in config.BY_NAME if name.replace(".", "").lower() == bare), keyword)


def _entries(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",") if entry.strip()]


def _appended(text: str, entry: str) -> str:
    entries = _entries(text)
    return ",".join(entries if entry in entries else [*entries, entry])


def _with_jar(jars: str, jar_path: str) -> str:
    """Return a list of jars with the shim's, and no other of Millpond's."""
    others = _other_shims(jars, jar_path)
    for other in others:
        log.warning("%s names another Millpond's jar, which is left out: %s", _JARS_KEY, other)
    kept = ",".join(entry for entry in _entries(jars) if entry not in others)
    return kept if _names_jar(kept, jar_path) else _appended(kept, jar_path)


def _other_shims(jars: str, jar_path: str) -> list[str]:
    """Return the jars of other versions of Millpond, or for other versions of Spark."""
    return [
        entry
        for entry in _entries(jars)
        if Path(entry).match(_shim.JAR_PATTERN) and not _names_jar(entry, jar_path)
    ]


def _names_jar(jars: str, jar_path: str) -> bool:
    """Return whether a list of jars has the shim. Compares names: a cluster copies it elsewhere."""
    return any(entry.rsplit("/", 1)[-1] == Path(jar_path).name for entry in _entries(jars))
