"""Options below `spark.sql.streaming.stateStore.millpond.`: each declared once, with type, default, bounds and documentation.

The build writes `options_json()` into the jar, so the shim parses and checks the same table;
`docs/reference/configuration.md` is `options_markdown()`. Imports nothing but the standard library and `millpond.errors`,
because the build runs it before the package is installed.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from millpond.errors import ErrorKind, InvalidInputError

PREFIX = "spark.sql.streaming.stateStore.millpond."

OptionType = Literal["str", "int", "bytes", "bool", "float"]
OptionValue = str | int | float | bool | None

KIB, MIB, GIB, TIB = 1024, 1024**2, 1024**3, 1024**4
_MAX_MS = 7 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option. `name` is the short name, below `PREFIX`."""

    name: str
    type: OptionType
    default: OptionValue  # None: no value, `doc` says what happens then; sizes in bytes
    minimum: int | float | None = None  # inclusive
    maximum: int | float | None = None  # inclusive
    choices: tuple[str, ...] = ()
    doc: str

    @property
    def full_name(self) -> str:
        """The name under which Spark knows it."""
        return PREFIX + self.name


BACKENDS = ("rocksdb", "heap")
DEFAULT_BACKEND = "rocksdb"

OPTIONS: tuple[Option, ...] = (
    Option(
        name="agent.python",
        type="str",
        default=None,
        doc="Interpreter that runs the agent on the executors. Unset: the first that is set of spark.pyspark.python, "
        "the environment variable PYSPARK_PYTHON, `python3`. Python 3.11 or newer with millpond installed.",
    ),
    Option(
        name="agent.driverPython",
        type="str",
        default=None,
        doc="The same on the driver, which is the executor in local mode, and elsewhere tries the storage before a query starts. "
        "millpond.configure sets it to its own interpreter. Unset: as agent.python.",
    ),
    Option(
        name="agent.startTimeoutMs",
        type="int",
        default=60_000,
        minimum=1_000,
        maximum=_MAX_MS,
        doc="How long the agent may take from its start to its first answer.",
    ),
    Option(
        name="agent.callTimeoutMs",
        type="int",
        default=120_000,
        minimum=1_000,
        maximum=_MAX_MS,
        doc="How long the agent may take to answer. Work that takes longer, such as a restore of a large state, is answered as not done "
        "yet and asked for again: it may take any time.",
    ),
    Option(
        name="maxParallelism",
        type="int",
        default=None,
        minimum=1,
        maximum=65_536,
        doc="Number of key groups: the most partitions that the state can ever be rescaled to without rewriting it. A multiple of "
        "spark.sql.shuffle.partitions; fixed when the Spark checkpoint is born, until a rescale that writes every row anew. Unset: "
        "partitions x 128, less if that exceeds 65536.",
    ),
    Option(
        name="rescale.onRestart",
        type="bool",
        default=False,
        doc="Whether a query that is started with another spark.sql.shuffle.partitions than its state has is rescaled to it, before it "
        "reads its logs. False: it goes on with the old number, and the log says what to run. Needs the session extension; "
        "spark.sql.shuffle.partitions must be set explicitly.",
    ),
    Option(
        name="backend",
        type="str",
        default=None,
        choices=BACKENDS,
        doc="Where state lives between snapshots: rocksdb keeps in memory what was used lately and the rest on the local disk; heap keeps "
        "all of it in memory, and a store that outgrows memory.budget fails. Snapshots are the same: a job may change it at any restart. "
        "Unset: what the Spark checkpoint remembers from `savepoint restore --backend`, else rocksdb.",
    ),
    Option(
        name="memory.budget",
        type="bytes",
        default=None,
        minimum=64 * KIB,
        maximum=64 * TIB,
        doc="Memory of the memory tiers and write buffers of all stores of one executor. Unset: 30 % of its maximum heap.",
    ),
    Option(
        name="changelog.codec",
        type="str",
        default="zstd",
        choices=("lz4", "zstd", "none"),
        doc="Compression of changelogs: zstd at level 1 is smaller than lz4 and as fast on rows. Files written with another codec "
        "stay readable.",
    ),
    Option(
        name="commit.fsync",
        type="bool",
        default=True,
        doc="Whether a commit waits until its changelog is on the disk. False: a commit survives the death of every process, but "
        "not that of the machine.",
    ),
    Option(
        name="restore.verifyChecksums",
        type="bool",
        default=False,
        doc="Whether a restore checks the CRC-32 of every SST that it fetches (RocksDB checks every block that it reads in any case).",
    ),
    Option(
        name="restore.warmUp",
        type="bool",
        default=True,
        doc="Whether a store reads its snapshot into the memory tier, as far as memory.budget allows, after a restore.",
    ),
    Option(
        name="numKeys.exact",
        type="bool",
        default=True,
        doc="Whether numRowsTotal is exact. False saves a look-up for blind writes to keys not in memory, and reports an estimate.",
    ),
    Option(
        name="snapshot.compression",
        type="str",
        default="lz4",
        choices=("lz4", "zstd", "none"),
        doc="Compression of the blocks in SSTs. zstd makes snapshots about a quarter smaller than lz4; reading a row "
        "that memory does not hold then costs 1.6 times as much.",
    ),
    Option(
        name="rocksdb.blockCache",
        type="bytes",
        default=32 * MIB,
        minimum=MIB,
        maximum=64 * TIB,
        doc="RocksDB block cache shared by all stores of one executor.",
    ),
    Option(
        name="gc.graceMs",
        type="int",
        default=600_000,
        minimum=0,
        maximum=_MAX_MS,
        doc="Age below which no file is collected, however unreachable: time for an upload in flight to be named by a manifest.",
    ),
    Option(
        name="gc.intervalMs",
        type="int",
        default=60_000,
        minimum=0,
        maximum=_MAX_MS,
        doc="Least time between two collections of one store.",
    ),
    Option(
        name="localDir",
        type="str",
        default=None,
        doc="Directory on the executor for local RocksDB files. Unset: Spark's own local directories (spark.local.dir).",
    ),
    Option(
        name="storage.uri",
        type="str",
        default=None,
        doc="Where Millpond keeps the state, if not in the Spark checkpoint: s3://bucket/prefix. Each query gets a folder of its own "
        "below it, named by its id, and <checkpoint>/millpond/storage.json remembers it for life. Spark's own logs stay in the Spark "
        "checkpoint.",
    ),
    Option(
        name="storage.deadlineMs",
        type="int",
        default=60_000,
        minimum=1_000,
        maximum=_MAX_MS,
        doc="How long one request to an object storage is repeated, with growing pauses, before it counts as failed.",
    ),
    Option(
        name="storage.s3.endpoint",
        type="str",
        default=None,
        doc="URL of the S3 server, https://host:port. Unset: fs.s3a.endpoint, else what boto3 finds (AWS_ENDPOINT_URL, AWS itself).",
    ),
    Option(
        name="storage.s3.region",
        type="str",
        default=None,
        doc="Region of the bucket. Unset: fs.s3a.endpoint.region, else what boto3 finds (AWS_REGION, profile).",
    ),
    Option(
        name="storage.s3.pathStyle",
        type="bool",
        default=None,
        doc="Whether the bucket goes into the path of a request instead of its host name. Unset: true where an endpoint that is not "
        "AWS's own is set, or fs.s3a.path.style.access is.",
    ),
    Option(
        name="storage.s3.sse",
        type="str",
        default=None,
        choices=("none", "aes256", "aws:kms", "aws:kms:dsse"),
        doc="Server-side encryption to ask for. Unset: fs.s3a.encryption.algorithm, else the bucket's own default.",
    ),
    Option(
        name="storage.s3.kmsKeyId",
        type="str",
        default=None,
        doc="KMS key for storage.s3.sse=aws:kms. Unset: fs.s3a.encryption.key, else the account's default key.",
    ),
    Option(
        name="storage.s3.requesterPays",
        type="bool",
        default=False,
        doc="Whether to say that the requester pays, for buckets that ask for it. Also true if fs.s3a.requester.pays.enabled is.",
    ),
    Option(
        name="storage.s3.conditionalPut",
        type="bool",
        default=True,
        doc="Whether to create files that may exist once only with `If-None-Match: *`. False for servers that accept the header and "
        "ignore it (`millpond storage check` tells): then Millpond looks before and after it writes.",
    ),
    Option(
        name="storage.s3.multipartThreshold",
        type="bytes",
        default=16 * MIB,
        minimum=5 * MIB,
        maximum=5 * GIB,
        doc="Size above which a file is sent and fetched in parts, in parallel.",
    ),
    Option(
        name="storage.s3.partSize",
        type="bytes",
        default=8 * MIB,
        minimum=5 * MIB,
        maximum=GIB,
        doc="Size of such a part. Memory needed: as much for each of storage.s3.connections, at most.",
    ),
    Option(
        name="storage.s3.connections",
        type="int",
        default=16,
        minimum=1,
        maximum=256,
        doc="Parts that one executor sends or fetches at the same time.",
    ),
    Option(
        name="storage.prices",
        type="str",
        default="put=0.005,list=0.005,get=0.0004,delete=0,month=0.023",
        doc="What the estimates of the metrics and of `millpond checkpoint show` reckon with: dollars for a thousand requests of each "
        "kind, and for a GiB kept a month. The default is AWS's list price of S3 Standard in us-east-1; traffic and encryption come "
        "on top.",
    ),
    Option(
        name="storage.cache.size",
        type="bytes",
        default=GIB,
        minimum=0,
        maximum=64 * TIB,
        doc="SSTs from an object storage that are kept on the local disk of a host, for whoever restores them next there. 0: none. "
        "They are below localDir, or Spark's own local directories, and shared by all executors of one user.",
    ),
    Option(
        name="lock.acquireTimeoutMs",
        type="int",
        default=60_000,
        minimum=0,
        maximum=_MAX_MS,
        doc="How long a task waits for another task of the same executor to give a store back.",
    ),
)

BY_NAME: dict[str, Option] = {option.name: option for option in OPTIONS}

_SIZE = re.compile(r"(\d{1,18})\s*([kmgt]?)(?:i?b)?", re.IGNORECASE | re.ASCII)
_UNITS = {"": 1, "k": KIB, "m": MIB, "g": GIB, "t": TIB}


def resolve(raw: Mapping[str, object]) -> dict[str, OptionValue]:
    """Return the value of every option, by short name: what `raw` sets, else the default.

    Args:
        raw: texts (as Spark holds them) or values of the option's own type, by short or full name; None means unset. Bytes take
            `64m`, `1g`, `512kb` or a plain number.
    Raises:
        InvalidInputError: UNKNOWN_OPTION for a name that does not exist, with the nearest one that does; INVALID_OPTION for a
            value of the wrong type or out of bounds.
    """
    values: dict[str, OptionValue] = {option.name: option.default for option in OPTIONS}
    for key, value in raw.items():
        name = key[len(PREFIX) :] if key.startswith(PREFIX) else key
        option = BY_NAME.get(name)
        if option is None:
            raise _unknown(key, name)
        if value is not None:
            values[name] = _parse(option, value)
    return values


def _unknown(key: str, name: str) -> InvalidInputError:
    lower = {option.name.lower(): option.name for option in OPTIONS}
    near = difflib.get_close_matches(name.lower(), list(lower), n=1, cutoff=0.0)
    nearest = PREFIX + lower[near[0]]
    return InvalidInputError(
        f"there is no option {key}; the nearest is {nearest}",
        kind=ErrorKind.UNKNOWN_OPTION,
        hint=f"Did you mean {nearest}? `millpond options` lists all.",
    )


def _invalid(option: Option, value: object, expected: str) -> InvalidInputError:
    return InvalidInputError(
        f"{option.full_name}={value!r}: expected {expected}",
        kind=ErrorKind.INVALID_OPTION,
        hint=f"Set {option.full_name} to {expected}, or leave it out"
        + (f" (default {default_text(option)})." if option.default is not None else "."),
    )


def _parse(option: Option, value: object) -> OptionValue:
    text = value.strip() if isinstance(value, str) else value
    number: int | float
    if option.type == "str":
        if not isinstance(text, str) or text == "":
            raise _invalid(option, value, expected_text(option))
        if option.choices and text.lower() not in option.choices:
            raise _invalid(option, value, expected_text(option))
        return text.lower() if option.choices else text
    if option.type == "bool":
        parsed = {"true": True, "false": False}.get(text.lower()) if isinstance(text, str) else text
        if not isinstance(parsed, bool):
            raise _invalid(option, value, expected_text(option))
        return parsed
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        raise _invalid(option, value, expected_text(option))
    if option.type == "bytes":
        match = _SIZE.fullmatch(text) if isinstance(text, str) else None
        if match is not None:
            number = int(match[1]) * _UNITS[match[2].lower()]
        elif isinstance(text, int):
            number = text
        else:
            raise _invalid(option, value, expected_text(option))
    elif option.type == "int":
        if isinstance(text, float) or (
            isinstance(text, str) and not re.fullmatch(r"[+-]?[0-9]{1,18}", text)
        ):
            raise _invalid(option, value, expected_text(option))
        number = int(text)
    else:
        try:
            number = float(text)
        except ValueError:
            raise _invalid(option, value, expected_text(option)) from None
        if not math.isfinite(number):
            raise _invalid(option, value, expected_text(option))
    too_small = option.minimum is not None and number < option.minimum
    too_large = option.maximum is not None and number > option.maximum
    if too_small or too_large:
        raise _invalid(option, value, expected_text(option))
    return number


def size_text(size_bytes: int) -> str:
    """Return `size_bytes` in the shortest exact form that an option accepts: `32m`, `1g`, `1000`."""
    for unit, factor in (("t", TIB), ("g", GIB), ("m", MIB), ("k", KIB)):
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return str(size_bytes)


def _number_text(option: Option, value: int | float) -> str:
    return size_text(int(value)) if option.type == "bytes" else str(value)


def expected_text(option: Option) -> str:
    """Return what a value must be: `a whole number from 1 to 65536`."""
    if option.choices:
        return "one of " + ", ".join(option.choices)
    text = {
        "str": "a text that is not empty",
        "int": "a whole number",
        "bytes": "a size such as 64m",
        "bool": "true or false",
        "float": "a number",
    }[option.type]
    if option.minimum is not None and option.maximum is not None:
        return f"{text} from {_number_text(option, option.minimum)} to {_number_text(option, option.maximum)}"
    if option.minimum is not None:
        return f"{text} of at least {_number_text(option, option.minimum)}"
    if option.maximum is not None:
        return f"{text} of at most {_number_text(option, option.maximum)}"
    return text


def default_text(option: Option) -> str:
    """Return the default as a user would write it, `unset` for none."""
    value = option.default
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return _number_text(option, value)
    return value


def options_json() -> str:
    """Return the table as a JSON text `{"prefix", "options": [{name, type, default, minimum, maximum, choices, doc}]}`."""
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
    lines = [
        "# Configuration",
        "",
        "Generated from `python/src/millpond/config.py`; do not edit. `millpond options` prints the same table.",
        "",
        f"Every option below goes under `{PREFIX}`, in the session (`spark.conf.set`), in `spark-defaults.conf` or with `--conf`.",
        "Sizes take the suffixes k, m, g, t (powers of 1024). An unknown option, or a value out of its bounds, stops the query with",
        "`MILLPOND_UNKNOWN_OPTION` or `MILLPOND_INVALID_OPTION` (see [errors](errors.md)).",
        "",
        "| Option | Type | Default | Bounds | Meaning |",
        "|---|---|---|---|---|",
    ]
    for o in OPTIONS:
        if o.choices:
            bounds = ", ".join(f"`{c}`" for c in o.choices)
        elif o.minimum is not None and o.maximum is not None:
            bounds = f"{_number_text(o, o.minimum)} to {_number_text(o, o.maximum)}"
        else:
            bounds = ""
        lines.append(f"| `{o.name}` | {o.type} | {default_text(o)} | {bounds} | {o.doc} |")
    lines += [
        "",
        "Millpond also heeds these settings of Spark: `spark.sql.streaming.minBatchesToRetain`,",
        "`spark.sql.streaming.stateStore.minDeltasForSnapshot`, `spark.sql.streaming.stateStore.maintenanceInterval`,",
        "`spark.sql.streaming.stateStore.checkpointFormatVersion`, `spark.sql.shuffle.partitions`.",
        "",
        "`spark.sql.streaming.stateStore.rowChecksum.enabled` may be set and changes nothing: what Spark's own stores then do for",
        "each row, Millpond always does for each block. Every block of a changelog and of an SST carries a CRC-32 or CRC-32C that is",
        "checked whenever it is read, `restore.verifyChecksums` adds the CRC-32 of whole SSTs. Damage ends in",
        "`MILLPOND_CHANGELOG_DAMAGED` or `MILLPOND_SST_DAMAGED` naming the file, or in an older snapshot with a longer chain.",
        "Rows in memory carry no sum.",
    ]
    return "\n".join(lines) + "\n"
