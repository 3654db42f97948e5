"""Every kind of error: its class, what it means, what helps. The only declaration.

A kind keeps its name: user code, alerts and the shim (which raises `MILLPOND_<KIND>`) match on it.
A kind goes only when nothing raises it any more; `REMOVED` lists those. `millpond/reference.py`
writes the table for the jar and the docs.
"""

from __future__ import annotations

from enum import Enum


class ErrorKind(str, Enum):
    """What happened. The value equals the name and is stable."""

    # options and how the query is set up
    INVALID_OPTION = "INVALID_OPTION"
    UNKNOWN_OPTION = "UNKNOWN_OPTION"
    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    USER_CODE_FAILED = "USER_CODE_FAILED"
    ROW_TOO_LARGE = "ROW_TOO_LARGE"
    MAX_PARALLELISM_INVALID = "MAX_PARALLELISM_INVALID"
    MAX_PARALLELISM_MISMATCH = "MAX_PARALLELISM_MISMATCH"
    PARTITIONS_CHANGED = "PARTITIONS_CHANGED"
    PARTITIONS_UNKNOWN = "PARTITIONS_UNKNOWN"
    PARTITIONS_INVALID = "PARTITIONS_INVALID"
    CHECKPOINT_FORMAT_CHANGED = "CHECKPOINT_FORMAT_CHANGED"
    EXTENSION_MISSING = "EXTENSION_MISSING"
    SHIM_MISSING = "SHIM_MISSING"
    SHIM_VERSION_MISMATCH = "SHIM_VERSION_MISMATCH"
    # what is stored
    NOT_A_CHECKPOINT = "NOT_A_CHECKPOINT"
    FOREIGN_CHECKPOINT = "FOREIGN_CHECKPOINT"
    FORMAT_TOO_NEW = "FORMAT_TOO_NEW"
    FORMAT_DAMAGED = "FORMAT_DAMAGED"
    CHANGELOG_MISSING = "CHANGELOG_MISSING"
    CHANGELOG_DAMAGED = "CHANGELOG_DAMAGED"
    CHANGELOG_REPLACED = "CHANGELOG_REPLACED"
    VERSION_COMMITTED = "VERSION_COMMITTED"
    MANIFEST_DAMAGED = "MANIFEST_DAMAGED"
    SST_MISSING = "SST_MISSING"
    SST_DAMAGED = "SST_DAMAGED"
    UNSAFE_PATH = "UNSAFE_PATH"
    VERSION_NOT_FOUND = "VERSION_NOT_FOUND"
    VERSION_EXPIRED = "VERSION_EXPIRED"
    KEY_GROUP_MISMATCH = "KEY_GROUP_MISMATCH"
    # savepoints
    NOT_A_SAVEPOINT = "NOT_A_SAVEPOINT"
    SAVEPOINT_DAMAGED = "SAVEPOINT_DAMAGED"
    BATCH_NOT_COMMITTED = "BATCH_NOT_COMMITTED"
    OPERATOR_UNKNOWN = "OPERATOR_UNKNOWN"
    TARGET_NOT_EMPTY = "TARGET_NOT_EMPTY"
    CHECKPOINT_UNFINISHED = "CHECKPOINT_UNFINISHED"
    STORE_UNSCALABLE = "STORE_UNSCALABLE"
    RESCALE_UNFINISHED = "RESCALE_UNFINISHED"
    ERASE_UNFINISHED = "ERASE_UNFINISHED"
    QUERY_RUNNING = "QUERY_RUNNING"
    COMMAND_RUNNING = "COMMAND_RUNNING"
    # the sink of a query
    FILE_SINK_UNKNOWN = "FILE_SINK_UNKNOWN"
    FILE_SINK_INVALID = "FILE_SINK_INVALID"
    FILE_SINK_MISMATCH = "FILE_SINK_MISMATCH"
    # storage and the machine
    OBJECT_NOT_FOUND = "OBJECT_NOT_FOUND"
    OBJECT_EXISTS = "OBJECT_EXISTS"
    STORAGE_UNSUPPORTED = "STORAGE_UNSUPPORTED"
    STORAGE_DENIED = "STORAGE_DENIED"
    STORAGE_FULL = "STORAGE_FULL"
    STORAGE_UNAVAILABLE = "STORAGE_UNAVAILABLE"
    STORAGE_BUCKET_MISSING = "STORAGE_BUCKET_MISSING"
    STORAGE_MISCONFIGURED = "STORAGE_MISCONFIGURED"
    STORAGE_MOVED = "STORAGE_MOVED"
    STORAGE_PACKAGE_MISSING = "STORAGE_PACKAGE_MISSING"
    STATE_OWNED = "STATE_OWNED"
    LOCAL_DISK_FULL = "LOCAL_DISK_FULL"
    LOCAL_FILES_LOST = "LOCAL_FILES_LOST"
    MEMORY_EXHAUSTED = "MEMORY_EXHAUSTED"
    # concurrency
    STORE_LOCKED = "STORE_LOCKED"
    STORE_CLOSED = "STORE_CLOSED"
    # a server of Millpond's
    TOKEN_WRONG = "TOKEN_WRONG"
    REQUEST_TOO_LARGE = "REQUEST_TOO_LARGE"
    TOO_MANY_REQUESTS = "TOO_MANY_REQUESTS"
    # the agent
    AGENT_NOT_STARTED = "AGENT_NOT_STARTED"
    AGENT_LOST = "AGENT_LOST"
    AGENT_TIMEOUT = "AGENT_TIMEOUT"
    AGENT_PACKAGE_MISSING = "AGENT_PACKAGE_MISSING"
    AGENT_VERSION_MISMATCH = "AGENT_VERSION_MISMATCH"
    # the rest
    UNSUPPORTED = "UNSUPPORTED"
    INTERNAL = "INTERNAL"

    def __str__(self) -> str:
        return self.value


_VERIFY = "Run `millpond checkpoint verify <checkpoint>` for the list of all damaged files."

# The name of the class, what happened in one line, and what to run or change if the raiser knows
# nothing better.
TABLE: dict[ErrorKind, tuple[str, str, str]] = {
    ErrorKind.INVALID_OPTION: (
        "InvalidInputError",
        "An option has a value of the wrong type or out of its bounds.",
        "Run `millpond options` for every option with its type, default and bounds.",
    ),
    ErrorKind.UNKNOWN_OPTION: (
        "InvalidInputError",
        "A setting below spark.sql.streaming.stateStore.millpond. is no option of this version.",
        "Run `millpond options` for the list of options.",
    ),
    ErrorKind.INVALID_ARGUMENT: (
        "InvalidInputError",
        "A command or an API function was called with an argument that makes no sense.",
        "Change the argument that the message names; the command's `--help` says what it takes.",
    ),
    ErrorKind.USER_CODE_FAILED: (
        "InvalidInputError",
        "A function or a script of the user's, which a command called, raised an error.",
        "Correct the line that the message names; with MILLPOND_DEBUG=1 a command prints the"
        " traceback, and in Python it is the error's `__cause__`.",
    ),
    ErrorKind.ROW_TOO_LARGE: (
        "InvalidInputError",
        "A query wrote a row whose key and value, or a key whose values together, are larger than"
        " 512 MiB. Nothing of it was kept.",
        "Keep less under one key: let values expire, aggregate them, or spread them over more keys"
        " (a map instead of a list).",
    ),
    ErrorKind.MAX_PARALLELISM_INVALID: (
        "InvalidInputError",
        "maxParallelism is not a multiple of the number of state partitions, or not in 1..65536.",
        "Leave maxParallelism unset, or set it to a multiple of spark.sql.shuffle.partitions up to"
        " 65536.",
    ),
    ErrorKind.MAX_PARALLELISM_MISMATCH: (
        "InvalidInputError",
        "maxParallelism differs from the one that this Spark checkpoint began with, or was rescaled"
        " to.",
        "Unset maxParallelism: a Spark checkpoint keeps its own (`millpond checkpoint show` prints"
        " it); `millpond rescale --max-parallelism` changes it.",
    ),
    ErrorKind.PARTITIONS_CHANGED: (
        "InvalidInputError",
        "Somebody edited spark.sql.shuffle.partitions in the offset log by hand: the query would"
        " look for state in the wrong partition.",
        "Put the old number back into the newest file of <checkpoint>/offsets (and delete its .crc"
        " file).",
    ),
    ErrorKind.PARTITIONS_UNKNOWN: (
        "InvalidInputError",
        "The number of state partitions is neither in the offset log nor in the session.",
        "Set spark.sql.shuffle.partitions, and check that <checkpoint>/offsets is readable from the"
        " executors.",
    ),
    ErrorKind.PARTITIONS_INVALID: (
        "InvalidInputError",
        "State cannot be rescaled to this number of partitions.",
        "Choose another number of partitions; `millpond checkpoint show` prints the present one.",
    ),
    ErrorKind.CHECKPOINT_FORMAT_CHANGED: (
        "InvalidInputError",
        "The session asks for another Spark checkpoint format than the one that the query began in."
        " Spark 4.3 keeps the query's format; Spark 4.2 takes the session's.",
        "Set spark.sql.streaming.stateStore.checkpointFormatVersion to the format that `millpond"
        " checkpoint show` prints.",
    ),
    ErrorKind.EXTENSION_MISSING: (
        "InvalidInputError",
        "spark.sql.extensions does not name Millpond's extension, which this query needs.",
        "Call millpond.configure(builder), or set the lines that `millpond conf` prints.",
    ),
    ErrorKind.SHIM_MISSING: (
        "UnsupportedError",
        "The Millpond jar is not in the package or not on Spark's class path.",
        "Install the millpond wheel built for your Spark, then call millpond.configure(builder) or"
        " use `millpond conf`.",
    ),
    ErrorKind.SHIM_VERSION_MISMATCH: (
        "UnsupportedError",
        "The Millpond jar was built for another Spark or Scala than the one that runs.",
        "Install the millpond wheel built for your Spark's minor version.",
    ),
    ErrorKind.NOT_A_CHECKPOINT: (
        "InvalidInputError",
        "The directory is not the Spark checkpoint of a streaming query.",
        "Give the query's checkpointLocation: a directory with `metadata`, `offsets`, `commits`,"
        " `state`. If it was deleted, bring it back from a copy or a savepoint.",
    ),
    ErrorKind.FOREIGN_CHECKPOINT: (
        "UnsupportedError",
        "The state was written by another provider (Spark's own), not by Millpond.",
        "Take the state over: `millpond adopt <checkpoint> <new checkpoint>`, and start the query"
        " on the new one; or keep the provider with which it began.",
    ),
    ErrorKind.FORMAT_TOO_NEW: (
        "UnsupportedError",
        "A stored file needs a newer Millpond than this one.",
        "Upgrade millpond on the driver and on every executor.",
    ),
    ErrorKind.FORMAT_DAMAGED: (
        "FormatError",
        "The file millpond/format.json, or a log of Spark's own, is damaged.",
        "Restore the file from a copy. " + _VERIFY,
    ),
    ErrorKind.CHANGELOG_MISSING: (
        "NotFoundError",
        "A changelog needed to restore a version is not there.",
        "Restore the file from a copy, or restart from an older batch. " + _VERIFY,
    ),
    ErrorKind.CHANGELOG_DAMAGED: (
        "FormatError",
        "A changelog is truncated, or its check sums do not match.",
        "Restore the file from a copy. " + _VERIFY,
    ),
    ErrorKind.CHANGELOG_REPLACED: (
        "ConflictError",
        "Another attempt of the version replaced its changelog (Spark checkpoint format 1).",
        "Nothing to do: the store loads the durable state at its next batch. Spark checkpoint"
        " format 2 keeps attempts apart.",
    ),
    ErrorKind.VERSION_COMMITTED: (
        "ConflictError",
        "An attempt of a batch ended after another attempt was committed (Spark checkpoint"
        " format 1).",
        "Nothing to do: Spark gave this attempt up. If the query itself fails, something runs the"
        " plan of a batch again after the batch, for example a DataFrame that `foreachBatch` kept.",
    ),
    ErrorKind.MANIFEST_DAMAGED: (
        "FormatError",
        "A manifest is truncated, or its check sum does not match.",
        "Restore the file from a copy. Millpond uses an older manifest if the changelogs above it"
        " still exist. " + _VERIFY,
    ),
    ErrorKind.SST_MISSING: (
        "NotFoundError",
        "An SST that a manifest names is not there.",
        "Restore the file from a copy. " + _VERIFY,
    ),
    ErrorKind.SST_DAMAGED: (
        "FormatError",
        "An SST differs in size or check sum from what its manifest says.",
        "Restore the file from a copy. " + _VERIFY,
    ),
    ErrorKind.UNSAFE_PATH: (
        "FormatError",
        "A stored file names a path outside its store, or the index of a savepoint names a file"
        " that is no part of a savepoint.",
        "Do not use this Spark checkpoint or savepoint: somebody tampered with it, or it is"
        " damaged. " + _VERIFY,
    ),
    ErrorKind.VERSION_NOT_FOUND: (
        "NotFoundError",
        "The version of the state that Spark asks for was never written here.",
        "Run `millpond checkpoint show <checkpoint>` for the versions that exist.",
    ),
    ErrorKind.VERSION_EXPIRED: (
        "NotFoundError",
        "The version is older than those that spark.sql.streaming.minBatchesToRetain keeps.",
        "Read a newer batch. To keep more in future, raise spark.sql.streaming.minBatchesToRetain.",
    ),
    ErrorKind.KEY_GROUP_MISMATCH: (
        "InternalError",
        "A row lies in a key group that its partition does not own.",
        "Report it with the query's plan. " + _VERIFY,
    ),
    ErrorKind.NOT_A_SAVEPOINT: (
        "InvalidInputError",
        "The directory is not a savepoint, or is an unfinished one.",
        "Run `millpond savepoint list <directory>` for the savepoints in a directory.",
    ),
    ErrorKind.SAVEPOINT_DAMAGED: (
        "FormatError",
        "A file of a savepoint is missing, or differs from the savepoint's index.",
        "Run `millpond savepoint verify <savepoint>` for the list of all damaged files, and use"
        " another copy.",
    ),
    ErrorKind.BATCH_NOT_COMMITTED: (
        "NotFoundError",
        "The batch to save or to start from is not committed, or no batch is.",
        "Run `millpond checkpoint show <checkpoint>` for the committed batches.",
    ),
    ErrorKind.OPERATOR_UNKNOWN: (
        "InvalidInputError",
        "An operator to map or drop is not in the savepoint, two operators would get one number, or"
        " the operators of a job do not fit those that were saved.",
        "Run `millpond savepoint show <savepoint>` for its operators and their numbers.",
    ),
    ErrorKind.TARGET_NOT_EMPTY: (
        "InvalidInputError",
        "The place to write to is not empty.",
        "Name a directory that does not exist or is empty: Millpond overwrites nothing.",
    ),
    ErrorKind.CHECKPOINT_UNFINISHED: (
        "ConflictError",
        "A restore, or another command that makes this Spark checkpoint, was interrupted, or runs:"
        " a query would begin above half of its state.",
        "If the command runs, wait for its end. If it was killed, delete all that is below the"
        " Spark checkpoint, and run the command again.",
    ),
    ErrorKind.STORE_UNSCALABLE: (
        "UnsupportedError",
        "A store holds rows that Spark did not place by the key that Millpond assumes: a rescale"
        " would tear it apart.",
        "Keep the number of partitions; to change it, start the query anew with another Spark"
        " checkpoint.",
    ),
    ErrorKind.RESCALE_UNFINISHED: (
        "ConflictError",
        "A rescale was interrupted, and left the Spark checkpoint half way.",
        "Run the same `millpond rescale` again to finish it, or `millpond rescale <checkpoint>"
        " --undo` to take it back.",
    ),
    ErrorKind.ERASE_UNFINISHED: (
        "ConflictError",
        "`millpond state erase` was interrupted, or runs: the key is in some files and not in"
        " others.",
        "Run the same `millpond state erase` again to finish it.",
    ),
    ErrorKind.QUERY_RUNNING: (
        "ConflictError",
        "The streaming query is running: it would not notice a change of its Spark checkpoint.",
        "Stop the query first.",
    ),
    ErrorKind.COMMAND_RUNNING: (
        "ConflictError",
        "Another command changes the Spark checkpoint, or took it over from this one, which had"
        " stood still.",
        "Let that command end, then run this one again. If it was killed on another host, wait"
        " half a minute.",
    ),
    ErrorKind.FILE_SINK_UNKNOWN: (
        "InvalidInputError",
        "The query wrote to a file sink, and nothing says where the new one writes to.",
        "Name the directory that the new query writes to by `--file-sink DIR` (in Python"
        " `file_sink=`). If it writes to no file sink, say `--file-sink none`.",
    ),
    ErrorKind.FILE_SINK_INVALID: (
        "InvalidInputError",
        "The directory that was named as a query's file sink is no file sink.",
        "Name the directory that the query's `start()` names; for a new query, name one that does"
        " not exist or is empty.",
    ),
    ErrorKind.FILE_SINK_MISMATCH: (
        "InvalidInputError",
        "The log of a file sink belongs to another query, or does not fit the next batch of the"
        " query.",
        "See docs/guides/sinks.md for what a rescale, a fork and a restore mean for a file sink.",
    ),
    ErrorKind.OBJECT_NOT_FOUND: (
        "NotFoundError",
        "A file that should exist on the Spark checkpoint's storage is not there.",
        _VERIFY,
    ),
    ErrorKind.OBJECT_EXISTS: (
        "ConflictError",
        "A file that may be written only once already exists.",
        "Nothing to do if the caller reads it and goes on. Otherwise another writer uses the same"
        " Spark checkpoint: stop it.",
    ),
    ErrorKind.STORAGE_UNSUPPORTED: (
        "UnsupportedError",
        "The Spark checkpoint is on storage that this version cannot write to.",
        "Put checkpointLocation, or the option storage.uri, on file: (shared by all executors) or"
        " on s3://.",
    ),
    ErrorKind.STORAGE_DENIED: (
        "UnavailableError",
        "The Spark checkpoint's storage refuses access.",
        "Give the user that runs the executors read and write access to the Spark checkpoint's"
        " directory.",
    ),
    ErrorKind.STORAGE_FULL: (
        "UnavailableError",
        "No space is left on the Spark checkpoint's storage.",
        "Free space there and restart the query: all committed state stays readable.",
    ),
    ErrorKind.STORAGE_UNAVAILABLE: (
        "UnavailableError",
        "The Spark checkpoint's storage failed or does not answer.",
        "Check that the place is still there and mounted, or that the service answers; then restart"
        " the query.",
    ),
    ErrorKind.STORAGE_BUCKET_MISSING: (
        "InvalidInputError",
        "The bucket that a URI names does not exist.",
        "Create the bucket, or correct its name in checkpointLocation or in the option"
        " storage.uri.",
    ),
    ErrorKind.STORAGE_MISCONFIGURED: (
        "InvalidInputError",
        "Endpoint, region or another setting of the object storage is wrong.",
        "Correct the options storage.s3.endpoint and storage.s3.region, then run `millpond storage"
        " check <uri>`.",
    ),
    ErrorKind.STORAGE_MOVED: (
        "InvalidInputError",
        "The option storage.uri names another place than the one where this Spark checkpoint keeps"
        " its state.",
        "Unset storage.uri: a Spark checkpoint keeps its place for life"
        " (<checkpoint>/millpond/storage.json names it).",
    ),
    ErrorKind.STORAGE_PACKAGE_MISSING: (
        "UnsupportedError",
        "The Python package that this storage needs is not installed here.",
        "Run `<interpreter> -m pip install 'millpond[s3]'` on the driver and on every executor.",
    ),
    ErrorKind.STATE_OWNED: (
        "InvalidInputError",
        "The state at storage.uri belongs to another Spark checkpoint: this one is a copy of it, or"
        " was moved.",
        "If this is a copy: delete it, and make it with `millpond fork <checkpoint> <new"
        " checkpoint>`, which copies the state too. If it was moved: run `millpond storage"
        " take-over <checkpoint>`.",
    ),
    ErrorKind.LOCAL_DISK_FULL: (
        "UnavailableError",
        "No space is left on the executor's local disk.",
        "Free space, or point the option localDir to a larger disk, and restart the query.",
    ),
    ErrorKind.LOCAL_FILES_LOST: (
        "UnavailableError",
        "Somebody else deleted files that a store keeps on the executor's local disk, or temporary"
        " files of a command.",
        "A query goes on by itself: the store loads the durable state again. Run a command again."
        " Keep cleaners of temporary files away from the folder of local state, and from TMPDIR.",
    ),
    ErrorKind.MEMORY_EXHAUSTED: (
        "UnavailableError",
        "The rows that one micro-batch writes do not fit into memory.",
        "Raise the option memory.budget or spark.executor.memory, or make the micro-batches"
        " smaller.",
    ),
    ErrorKind.STORE_LOCKED: (
        "UnavailableError",
        "Another task of this executor still holds the store.",
        "Usually a killed task lingers, and the retry succeeds. Otherwise raise the option"
        " lock.acquireTimeoutMs.",
    ),
    ErrorKind.STORE_CLOSED: (
        "UnavailableError",
        "The store was closed while a task used it.",
        "Nothing to do: Spark retries the task on a new store.",
    ),
    ErrorKind.TOKEN_WRONG: (
        "InvalidInputError",
        "A request to a server of Millpond's has no token, or a wrong one.",
        "Send the header `Authorization: Bearer <token>` with the token that the server printed"
        " when it started, or that its --token-file holds.",
    ),
    ErrorKind.REQUEST_TOO_LARGE: (
        "InvalidInputError",
        "A request to a server of Millpond's is larger, or asks for more, than the server allows.",
        "Ask for less at once; options of the command that runs the server set the limits.",
    ),
    ErrorKind.TOO_MANY_REQUESTS: (
        "UnavailableError",
        "A server of Millpond's is busy with as many requests as it allows.",
        "Wait for an answer before sending more; ask for many keys in one request.",
    ),
    ErrorKind.AGENT_NOT_STARTED: (
        "AgentError",
        "The agent process could not be started on the executor.",
        "Check the option agent.python (an interpreter, Python 3.11 or newer, that exists on every"
        " executor).",
    ),
    ErrorKind.AGENT_LOST: (
        "AgentError",
        "The agent process died, and its successor did not answer either.",
        "Look for the agent's last lines in the executor's stderr.",
    ),
    ErrorKind.AGENT_TIMEOUT: (
        "AgentError",
        "The agent did not answer in time.",
        "Look at the executor's host: is it out of memory or of processor time? If it is only slow,"
        " raise the option agent.callTimeoutMs.",
    ),
    ErrorKind.AGENT_PACKAGE_MISSING: (
        "AgentError",
        "The interpreter that runs the agent has no millpond package, or lacks one that it needs.",
        "Run `<interpreter> -m pip install millpond` on every executor, or name another interpreter"
        " with agent.python.",
    ),
    ErrorKind.AGENT_VERSION_MISMATCH: (
        "AgentError",
        "The millpond package on the executor is of another version than the jar.",
        "Install the same millpond version on the driver and on every executor.",
    ),
    ErrorKind.UNSUPPORTED: (
        "UnsupportedError",
        "This version cannot do what was asked.",
        "See docs/reference/limits.md for what is not supported, and what can be done instead.",
    ),
    ErrorKind.INTERNAL: (
        "InternalError",
        "Something happened that should be impossible: a bug of Millpond.",
        "Report it with the traceback from the executor's stderr.",
    ),
}


# Kinds of earlier versions, and what became of them.
REMOVED = {
    "BATCH_UNCOMMITTED": "is `BATCH_NOT_COMMITTED`",
    "FENCED": "was never raised",
    "COMMIT_UNKNOWN": "was never raised",
}
