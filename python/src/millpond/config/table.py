"""Declares the options, each once, with type, default, bounds and documentation.

`values.py` reads what a user sets. `millpond/reference.py` writes the table for the jar and the
docs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
    default: OptionValue  # sizes in bytes; None: no value, and `doc` says what happens then
    minimum: int | float | None = None  # inclusive
    maximum: int | float | None = None  # inclusive
    choices: tuple[str, ...] = ()
    doc: str

    @property
    def full_name(self) -> str:
        """The name in Spark's configuration."""
        return PREFIX + self.name


BACKENDS = ("rocksdb", "heap")
DEFAULT_BACKEND = "rocksdb"

OPTIONS: tuple[Option, ...] = (
    Option(
        name="agent.python",
        type="str",
        default=None,
        doc=(
            "Interpreter that runs the agent on the executors: Python 3.11 or newer, with millpond"
            " installed. Unset: spark.pyspark.python, else the environment variable PYSPARK_PYTHON,"
            " else `python3`."
        ),
    ),
    Option(
        name="agent.driverPython",
        type="str",
        default=None,
        doc=(
            "Interpreter that runs the agent on the driver. In local mode the driver is the"
            " executor; elsewhere its agent tries the storage before a query starts."
            " millpond.configure sets it to its own interpreter. In local mode agent.python comes"
            " first, if it is set. Unset: as agent.python; on a cluster, before"
            " spark.pyspark.python, spark.pyspark.driver.python."
        ),
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
        doc=(
            "How long the agent may take to answer. For work that takes longer, such as the restore"
            " of a large state, the agent answers `not done yet`, and the shim asks again: such"
            " work may take any time."
        ),
    ),
    Option(
        name="python.transport",
        type="str",
        default="bulk",
        choices=("bulk", "spark"),
        doc=(
            "How the state of Python's transformWithState travels between the JVM and Python."
            " `bulk`: with the rows, many keys a message. `spark`: by Spark's own transport, a"
            " message for each call. Also whose Python worker runs applyInPandasWithState:"
            " Millpond's, or Spark's. What is stored is the same. A query may change it at any"
            " restart."
        ),
    ),
    Option(
        name="maxParallelism",
        type="int",
        default=None,
        minimum=1,
        maximum=65_536,
        doc=(
            "Number of key groups: a rescale to more partitions than this writes every row anew. A"
            " multiple of spark.sql.shuffle.partitions. A Spark checkpoint keeps the number that it"
            " began with, until such a rescale. Unset: partitions x 128, less if that exceeds"
            " 65536."
        ),
    ),
    Option(
        name="rescale.onRestart",
        type="bool",
        default=False,
        doc=(
            "Whether the start of a query rescales its state to spark.sql.shuffle.partitions, if"
            " that differs from the number that the state has. False: the query goes on with the"
            " old number, and the log says what to run. Needs the session extension, and"
            " spark.sql.shuffle.partitions set explicitly."
        ),
    ),
    Option(
        name="realTime",
        type="bool",
        default=False,
        doc=(
            "Whether queries of the session may run in Spark's real-time mode (Spark 4.3). Spark"
            " starts such a query only if the session names no other store than its own: with true,"
            " the session extension unsets spark.sql.streaming.stateStore.providerClass in the"
            " session if it names Millpond, and sets it for each query that starts. New queries"
            " then also begin with Spark checkpoint format 2, which real-time mode needs, unless"
            " spark.sql.streaming.stateStore.checkpointFormatVersion is set. Any other trigger"
            " works as without it."
        ),
    ),
    Option(
        name="logs.direct",
        type="bool",
        default=True,
        doc=(
            "Whether Spark's own logs of a query, if they are on a local disk, are written by"
            " system calls: two or three milliseconds a log. False: by Hadoop's client, which"
            " starts programs for each file: some fifty. With true the session extension sets"
            " spark.sql.streaming.checkpointFileManagerClass in the session, unless it is set. The"
            " files are the same. With commit.fsync they are on the disk as well before a batch"
            " counts, which Hadoop's client does not see to."
        ),
    ),
    Option(
        name="ttl",
        type="str",
        default=None,
        doc=(
            "How long a row of a stateful operator stays after its last write, in the time of the"
            " batches: `24h`, also `ms`, `s`, `min`, `d`; at least a second. Then the row ends, as"
            " if its key had never come. For `dropDuplicates`, aggregations, inner and left semi"
            " joins of two streams; a query with another stateful operator is refused until"
            " ttl.operators leaves it out. Needs the session extension. A query may change it at"
            " any restart. Unset: rows stay."
        ),
    ),
    Option(
        name="ttl.operators",
        type="str",
        default=None,
        doc=(
            "The same for single operators, by number or name, before ttl: `0=24h,dedupe=7d,2=off`."
            " `millpond checkpoint show` tells numbers and names."
        ),
    ),
    Option(
        name="backend",
        type="str",
        default=None,
        choices=BACKENDS,
        doc=(
            "Where state lives between snapshots. rocksdb keeps recently used rows in memory, and"
            " the rest on the local disk. heap keeps all rows in memory, and a store that outgrows"
            " memory.budget fails. Both write the same snapshots, so a job may change it at any"
            " restart. Unset: what the Spark checkpoint remembers from `savepoint restore"
            " --backend`, else rocksdb."
        ),
    ),
    Option(
        name="memory.budget",
        type="bytes",
        default=None,
        minimum=64 * KIB,
        maximum=64 * TIB,
        doc=(
            "Memory for the memory tiers and write buffers of all stores of one executor. Unset:"
            " 30 % of its maximum heap, or what the container's limit leaves, if that is less. If"
            " sessions differ, the store that was opened last decides."
        ),
    ),
    Option(
        name="changelog.codec",
        type="str",
        default="zstd",
        choices=("zstd", "none"),
        doc=(
            "Compression of changelogs: zstd is at level 1. Earlier builds also wrote lz4, which"
            " was as fast on rows and larger. Files of every codec stay readable."
        ),
    ),
    Option(
        name="commit.fsync",
        type="bool",
        default=True,
        doc=(
            "Whether a commit waits until its changelog is on the disk. False: a commit survives"
            " the death of every process, but not that of the machine."
        ),
    ),
    Option(
        name="restore.verifyChecksums",
        type="bool",
        default=False,
        doc=(
            "Whether a restore checks the CRC-32 of SSTs that it links from a local disk, too."
            " Those that it copies or fetches it always checks, and RocksDB checks every block that"
            " it reads."
        ),
    ),
    Option(
        name="restore.warmUp",
        type="bool",
        default=True,
        doc=(
            "Whether a store reads its snapshot into the memory tier, as far as memory.budget"
            " allows, after a restore."
        ),
    ),
    Option(
        name="numKeys.exact",
        type="bool",
        default=True,
        doc=(
            "Whether numRowsTotal is exact. False: numRowsTotal is an estimate, and a blind write"
            " to a key that is not in memory saves a look-up."
        ),
    ),
    Option(
        name="snapshot.compression",
        type="str",
        default="lz4",
        choices=("lz4", "zstd", "none"),
        doc=(
            "Compression of the blocks in SSTs. zstd makes snapshots about a quarter smaller than"
            " lz4; reading a row that memory does not hold then costs twice as much."
        ),
    ),
    Option(
        name="rocksdb.blockCache",
        type="bytes",
        default=32 * MIB,
        minimum=MIB,
        maximum=64 * TIB,
        doc="RocksDB block cache shared by all stores of one executor. The first one decides.",
    ),
    Option(
        name="gc.graceMs",
        type="int",
        default=600_000,
        minimum=0,
        maximum=_MAX_MS,
        doc=(
            "Age below which the collection deletes no file, however unreachable. It gives an"
            " upload in flight time until a manifest names its files."
        ),
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
        doc=(
            "Directory on the executor for local RocksDB files. Unset: the first of Spark's own"
            " local directories (spark.local.dir). The executor's first store decides."
        ),
    ),
    Option(
        name="storage.uri",
        type="str",
        default=None,
        doc=(
            "Where Millpond keeps the state, if not in the Spark checkpoint: s3://bucket/prefix."
            " Each query has a folder of its own below it, named by the query's id."
            " <checkpoint>/millpond/storage.json remembers the folder for life. Spark's own logs"
            " stay in the Spark checkpoint."
        ),
    ),
    Option(
        name="storage.deadlineMs",
        type="int",
        default=60_000,
        minimum=1_000,
        maximum=_MAX_MS,
        doc=(
            "How long Millpond repeats one request to an object storage, with growing pauses,"
            " before the request counts as failed."
        ),
    ),
    Option(
        name="storage.s3.endpoint",
        type="str",
        default=None,
        doc=(
            "URL of the S3 server, https://host:port. Unset: fs.s3a.endpoint, else what boto3 finds"
            " (AWS_ENDPOINT_URL, AWS itself)."
        ),
    ),
    Option(
        name="storage.s3.region",
        type="str",
        default=None,
        doc=(
            "Region of the bucket. Unset: fs.s3a.endpoint.region, else what boto3 finds"
            " (AWS_DEFAULT_REGION, profile)."
        ),
    ),
    Option(
        name="storage.s3.pathStyle",
        type="bool",
        default=None,
        doc=(
            "Whether the bucket goes into the path of a request instead of its host name. Unset:"
            " true if the endpoint is not AWS's own, or if fs.s3a.path.style.access is true."
        ),
    ),
    Option(
        name="storage.s3.sse",
        type="str",
        default=None,
        choices=("none", "aes256", "aws:kms", "aws:kms:dsse"),
        doc=(
            "Server-side encryption to ask for. Unset: fs.s3a.encryption.algorithm, else the"
            " bucket's own default."
        ),
    ),
    Option(
        name="storage.s3.kmsKeyId",
        type="str",
        default=None,
        doc=(
            "KMS key for storage.s3.sse=aws:kms. Unset: fs.s3a.encryption.key, else the account's"
            " default key."
        ),
    ),
    Option(
        name="storage.s3.requesterPays",
        type="bool",
        default=False,
        doc=(
            "Whether to say that the requester pays, for buckets that ask for it. Also true if"
            " fs.s3a.requester.pays.enabled is."
        ),
    ),
    Option(
        name="storage.s3.conditionalPut",
        type="bool",
        default=True,
        doc=(
            "Whether to use `If-None-Match: *` to create a file that may exist only once. Set false"
            " for a server that accepts the header and ignores it (`millpond storage check` tells):"
            " then Millpond looks before and after it writes."
        ),
    ),
    Option(
        name="storage.s3.multipartThreshold",
        type="bytes",
        default=16 * MIB,
        minimum=5 * MIB,
        maximum=5 * GIB,
        doc=(
            "Size above which Millpond sends and fetches a file in parts, in parallel. In Spark"
            " checkpoint format 2 those of a changelog are sent while its batch runs."
        ),
    ),
    Option(
        name="storage.s3.partSize",
        type="bytes",
        default=8 * MIB,
        minimum=5 * MIB,
        maximum=GIB,
        doc=(
            "Size of such a part. Each of storage.s3.connections needs at most that much memory."
            " Parts of changelogs that are sent while their batches run have 5 MiB."
        ),
    ),
    Option(
        name="storage.s3.connections",
        type="int",
        default=16,
        minimum=1,
        maximum=256,
        doc=(
            "Parts that one executor sends or fetches at the same time. Beside them, a quarter as"
            " many parts of changelogs are sent while their batches run."
        ),
    ),
    Option(
        name="storage.azure.client",
        type="str",
        default="auto",
        choices=("auto", "hadoop"),
        doc=(
            "Who moves files on Azure (abfs:). auto: Millpond itself, at the account's blob"
            " address, where obstore is installed and the settings fs.azure.* tell who asks; else"
            " ABFS, Hadoop's client. hadoop: always ABFS, for a network in which only the account's"
            " dfs address is reached."
        ),
    ),
    Option(
        name="storage.prices",
        type="str",
        default="put=0.005,list=0.005,get=0.0004,delete=0,month=0.023",
        doc=(
            "What the estimates of `millpond checkpoint show` reckon with: dollars for a thousand"
            " requests of each kind, and for a GiB kept a month. The default is AWS's list price of"
            " S3 Standard in us-east-1; traffic and encryption come on top."
        ),
    ),
    Option(
        name="storage.cache.size",
        type="bytes",
        default=GIB,
        minimum=0,
        maximum=64 * TIB,
        doc=(
            "Size of the cache of SSTs from an object storage, on the local disk of a host, for the"
            " next restore on that host. 0: no cache. It is below localDir, or Spark's own local"
            " directories. All executors of one user share it."
        ),
    ),
    Option(
        name="balance.enabled",
        type="bool",
        default=True,
        doc=(
            "Whether stores move between executors, so that none has much more than its share: a"
            " few before a batch, and only where the time saved soon exceeds the restore. Needs"
            " the session extension. Local mode has nothing to balance."
        ),
    ),
    Option(
        name="standby.enabled",
        type="bool",
        default=False,
        doc=(
            "Whether a second executor follows each store: it has the store loaded, in memory as"
            " far as there is room, and reads the changelogs as they are committed. If the first"
            " executor is lost, the store's next task runs there and restores nothing. Costs"
            " memory, local disk, and a read of each changelog. Needs the session extension, a"
            " cluster, and the backend rocksdb."
        ),
    ),
    Option(
        name="history.batches",
        type="int",
        default=1000,
        minimum=0,
        maximum=100_000,
        doc=(
            "About how many batches `millpond checkpoint history` can look back at: the driver"
            " keeps what Spark said of them in the Spark checkpoint, below millpond/history. 0:"
            " none."
        ),
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
