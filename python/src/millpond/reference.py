"""Writes the tables of options, errors and events: JSON for the jar, Markdown for `docs/reference`.

The shim reads the tables from its jar, so nothing is declared twice. The build runs this module
before the package is installed. So it imports nothing but the standard library and the tables.
"""

from __future__ import annotations

import json
import textwrap

from millpond.config import (
    OPTIONS,
    PREFIX,
    SPARK_SETTINGS,
    SPARKS_ROCKSDB,
    default_text,
    number_text,
)
from millpond.errors import ERRORS, REMOVED
from millpond.events import EVENTS, FIELDS, STORE_FIELDS

_WIDTH = 100
_OPTIONS_HEAD = f"""\
# Configuration

Generated from `python/src/millpond/config/table.py` and `sparks.py`; do not edit.
`millpond options` prints the table of options.

Every option below goes under `{PREFIX}`, in the session
(`spark.conf.set`), in `spark-defaults.conf` or with `--conf`. Sizes take the suffixes k, m, g, t
(powers of 1024). An unknown option stops the query with `MILLPOND_UNKNOWN_OPTION`, a value out of
its bounds stops it with `MILLPOND_INVALID_OPTION` (see [errors](errors.md)).

| Option | Type | Default | Bounds | Meaning |
|---|---|---|---|---|
"""
_OPTIONS_FOOT = """
Millpond also heeds these settings of Spark: `spark.sql.streaming.minBatchesToRetain`,
`spark.sql.streaming.stateStore.minDeltasForSnapshot`,
`spark.sql.streaming.stateStore.maintenanceInterval`,
`spark.sql.streaming.stateStore.checkpointFormatVersion`,
`spark.sql.streaming.stateStore.encodingFormat`,
`spark.sql.streaming.stateStore.formatValidation.enabled`,
`spark.sql.streaming.stateStore.commitValidation.enabled`,
`spark.sql.streaming.stateStore.coordinatorReportSnapshotUploadLag`,
`spark.sql.streaming.stateStore.forceSnapshotUploadOnLag`,
`spark.sql.streaming.stateStore.unloadOnCommit`, `spark.sql.shuffle.partitions`.

`spark.sql.streaming.stateStore.rowChecksum.enabled` changes nothing. With it Spark's own stores
check each row. Millpond always checks each block: every block of a changelog and of an SST carries
a CRC-32 or CRC-32C, and every read checks it. `restore.verifyChecksums` adds the CRC-32 of whole
SSTs. If a block is damaged, Millpond restores from an older snapshot and a longer chain, or fails
with `MILLPOND_CHANGELOG_DAMAGED` or `MILLPOND_SST_DAMAGED`, which names the file. Rows in memory
carry no sum.
"""
_SETTINGS_HEAD = """
## Settings of Spark's stores

These do nothing on Millpond. When a run of a query begins, the driver's log names those that the
session sets, once, and what to set instead; never their values. It does not name one whose option
of Millpond is set, too, or by which nothing is lost. This needs the session extension.

| Setting of Spark | Option of Millpond | Meaning |
|---|---|---|
"""
_SETTINGS_FOOT = f"""\
| all others below `{SPARKS_ROCKSDB}` | none | Millpond sets up its RocksDB itself. |
"""
_ERRORS_HEAD = """\
# Errors

Generated from `python/src/millpond/errors/table.py`; do not edit. `millpond errors` prints the
same table.

Every error is a `MillpondError` with `kind` and `hint`. The class says what the caller does about
it, the kind says what happened. A kind is never renamed. In the JVM the same error is a
`SparkException` whose condition is `MILLPOND_<KIND>`.

"""
_EVENTS_HEAD = """\
# Events

Generated from `python/src/millpond/events/table.py`; do not edit.

One line in the log for each thing that somebody may ask about at night: `event=<name>`, then its
fields, each `name=value`. A value that is more than a plain word is quoted as in JSON. No line
has credentials or rows of the state. To find the events of one query: `grep 'event=.*run_id=<id>'`
in the executors' logs.

The shim's lines go to Spark's log, logger `org.apache.spark.sql.millpond.events`: stderr of the
executor, on a cluster. Some shells of Spark log warnings only; this line in `log4j2.properties`
shows all events: `logger.millpond.name=org.apache.spark.sql.millpond.events`, with
`logger.millpond.level=info` below it. With `spark.log.structuredLogging.enabled=true` each line is
JSON, and the fields are in its `context`. The agent's lines go to the same stderr, logger
`millpond.events`; the environment variable `MILLPOND_LOG` of the executor sets their level.

"""


def options_json() -> str:
    """Return the table as JSON.

    `{"prefix", "options": [{name, type, default, minimum, maximum, choices, doc}]}`.
    """
    options = [
        {
            "name": o.name,
            "type": o.type,
            "default": o.default,
            "minimum": o.minimum,
            "maximum": o.maximum,
            "choices": list(o.choices),
            "doc": o.doc,
        }
        for o in OPTIONS
    ]
    return json.dumps({"prefix": PREFIX, "options": options}, indent=1) + "\n"


def options_markdown() -> str:
    """Return the text of `docs/reference/configuration.md`."""
    rows = []
    for o in OPTIONS:
        if o.choices:
            bounds = ", ".join(f"`{c}`" for c in o.choices)
        elif o.minimum is not None and o.maximum is not None:
            bounds = f"{number_text(o, o.minimum)} to {number_text(o, o.maximum)}"
        else:
            bounds = ""
        rows.append(f"| `{o.name}` | {o.type} | {default_text(o)} | {bounds} | {o.doc} |\n")
    settings = []
    for s in SPARK_SETTINGS:
        option = "none" if s.option is None else f"`{s.option}`"
        settings.append(f"| `{s.name}` | {option} | {s.doc} |\n")
    return (
        f"{_OPTIONS_HEAD}{''.join(rows)}{_OPTIONS_FOOT}"
        f"{_SETTINGS_HEAD}{''.join(settings)}{_SETTINGS_FOOT}"
    )


def sparks_json() -> str:
    """Return the settings of Spark's stores as JSON.

    `{"below", "settings": [{name, instead, always}]}`: `instead` is an option's full name, or null.
    Any other setting below `below` has no option.
    """
    settings = [{"name": s.name, "instead": s.instead, "always": s.always} for s in SPARK_SETTINGS]
    return json.dumps({"below": SPARKS_ROCKSDB, "settings": settings}, indent=1) + "\n"


def errors_json() -> str:
    """Return the table as JSON, sorted by kind: `{kind: {"class", "meaning", "hint"}}`."""
    table = {
        kind.value: {"class": info.error_class.__name__, "meaning": info.meaning, "hint": info.hint}
        for kind, info in ERRORS.items()
    }
    return json.dumps(table, indent=1, sort_keys=True) + "\n"


def _prose(text: str) -> str:
    """Escape `<` outside of code, where Markdown would take it for HTML."""
    parts = text.split("`")
    return "`".join(part if i % 2 else part.replace("<", "&lt;") for i, part in enumerate(parts))


def errors_markdown() -> str:
    """Return the text of `docs/reference/errors.md`."""
    gone = "; ".join(f"`{kind}` {now}" for kind, now in REMOVED.items())
    lines = [
        *textwrap.wrap(f"Gone since the first version: {gone}.", _WIDTH, break_on_hyphens=False),
        "",
        "## Classes",
        "",
        "| Class | What the caller does |",
        "|---|---|",
    ]
    for cls in dict.fromkeys(
        [*sorted({i.error_class for i in ERRORS.values()}, key=lambda c: c.__name__)]
    ):
        what = " ".join((cls.__doc__ or "").split())
        lines.append(f"| `{cls.__name__}` | {what} |")
    lines += ["", "## Kinds", "", "| Kind | Class | Meaning | Hint |", "|---|---|---|---|"]
    for kind, info in ERRORS.items():
        lines.append(
            f"| `{kind.value}` | `{info.error_class.__name__}` | {_prose(info.meaning)} |"
            f" {_prose(info.hint)} |"
        )
    return _ERRORS_HEAD + "\n".join(lines) + "\n"


def events_json() -> str:
    """Return the table as JSON: `{event: {"by", "level", "fields"}}`, with a store's fields."""
    table = {
        name: {
            "by": info.by,
            "level": info.level,
            "fields": [*(STORE_FIELDS if info.store else ()), *info.fields],
        }
        for name, info in EVENTS.items()
    }
    return json.dumps(table, indent=1) + "\n"


def events_markdown() -> str:
    """Return the text of `docs/reference/events.md`."""
    lines = ["## Fields", "", "| Field | Meaning |", "|---|---|"]
    lines += [f"| `{name}` | {_prose(meaning)} |" for name, meaning in FIELDS.items()]
    common = ", ".join(f"`{name}`" for name in STORE_FIELDS)
    lines += [
        "",
        "## Names",
        "",
        *textwrap.wrap(
            f"Those about a store begin with {common}. Those of a whole executor do not:"
            f" {_of_executors()}.",
            _WIDTH,
            break_on_hyphens=False,
        ),
        "",
        "| Event | Level | By | Its own fields | When | What to do |",
        "|---|---|---|---|---|---|",
    ]
    for name, info in EVENTS.items():
        fields = ", ".join(f"`{field}`" for field in info.fields)
        lines.append(
            f"| `{name}` | {info.level} | {info.by} | {fields} | {_prose(info.when)} |"
            f" {_prose(info.then)} |"
        )
    return _EVENTS_HEAD + "\n".join(lines) + "\n"


def _of_executors() -> str:
    return ", ".join(f"`{name}`" for name, info in EVENTS.items() if not info.store)
