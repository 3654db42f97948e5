"""The errors of Hadoop's file systems, from the exceptions of the JVM that moves the files."""

from __future__ import annotations

from millpond.errors import (
    ConflictError,
    ErrorKind,
    InvalidInputError,
    MillpondError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
)

_TOKEN_HINT = (
    "The job's delegation token has expired. Start the job with spark.kerberos.keytab and"
    " spark.kerberos.principal, so that Spark renews it."
)
_QUOTA_HINT = (
    "`hdfs dfs -count -q <directory>` shows the quotas. Raise them with `hdfs dfsadmin -setQuota`"
    " or `-setSpaceQuota`, then restart the query. A file that is being written counts as a whole"
    " block, dfs.blocksize times dfs.replication."
)
_UNREACHED = (
    "Check that the service at this address runs and that this host reaches it (on HDFS: the name"
    " node), then restart the query."
)
NO_JAR = (
    "Put the jar of this file system, for the Hadoop of this Spark, on Spark's class path (for a"
    " command: into SPARK_DIST_CLASSPATH), or use file: or s3://."
)
_NO_GOOGLE = (
    " Google's connector needs"
    " spark.hadoop.fs.gs.impl=com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem and"
    " spark.hadoop.fs.AbstractFileSystem.gs.impl=com.google.cloud.hadoop.fs.gcs.GoogleHadoopFS."
)
_NO_AZURE = (
    " Millpond itself reaches Azure without Hadoop's jars: pip install 'millpond[azure]', for a job"
    " on its executors."
)
_AZURE_KEY = (
    "Check the settings of the account: spark.hadoop.fs.azure.account.key.<account address>,"
    " or those of its token (fs.azure.account.auth.type and its SAS or OAuth settings). A token may"
    " have expired. Then restart the query."
)
_GOOGLE_KEY = (
    "Check spark.hadoop.fs.gs.auth.type and the key file or token that it names; a token may have"
    " expired. Then restart the query."
)
_GOOGLE_SIZES = (
    "Hadoop's defaults have units, which Google's connector cannot read. Set"
    " spark.hadoop.fs.gs.block.size=67108864, fs.gs.inputstream.inplace.seek.limit=8388608,"
    " fs.gs.inputstream.min.range.request.size=2097152, fs.gs.outputstream.buffer.size=8388608 and"
    " fs.gs.rewrite.max.chunk.size=536870912, each with spark.hadoop. before it."
)
_NO_DATA_NODE = (
    "`hdfs dfsadmin -report` lists the data nodes. Start those that are missing, or free their"
    " disks, then restart the query."
)
_FILES_HINT = (
    "This process has too many open files. Raise the limit that `ulimit -n` shows for the executor,"
    " then restart the query."
)
DISK_HINT = (
    "Bytes go through files of the executor's own disk, below the folder that TMPDIR or the option"
    " localDir names. Make that folder again, and keep cleaners of temporary files away from it,"
    " then restart the query."
)
# Java calls these failures a FileNotFoundException too. The file may well be there.
_UNOPENED = ("(Too many open files", "(Input/output error)")
# HadoopFiles.scala: opening the file system, Hadoop's client did not find a file of its own.
_UNOPENED_SYSTEM = "UnopenedFileSystemException"
# The classes of the JVM's exceptions for a jar that is missing, or for another Hadoop.
_NO_CONNECTOR = (
    "UnsupportedFileSystemException",
    "No FileSystem for scheme",
    "ClassNotFoundException",
    "NoClassDefFoundError",
    "NoSuchMethodError",
    "ServiceConfigurationError",
)
_ABSENT = ("FileNotFoundException", "ParentNotDirectoryException", "NotDirectoryException")
_NO_CONTAINER = (  # Azure's Blob endpoint, its DFS endpoint
    "container does not exist",
    "filesystem does not exist",
)
_NO_KEY = ("KeyProviderException", "ConfigurationPropertyNotFoundException")
_NO_BUCKET = "GoogleJsonResponseException: 404 Not Found"
_GOOGLE_DENIES = (
    "GoogleJsonResponseException: 401",
    "GoogleJsonResponseException: 403",
    "GoogleAuthException",
    "TokenResponseException",
    "invalid_grant",
    "Error getting access token",
)
# By the class of the JVM's exception, or by a part of its message.
_HINTS = {
    "SafeModeException": "The name node takes no changes now. `hdfs dfsadmin -safemode get` says"
    " whether it still does; if it does not leave safe mode by itself, run `hdfs dfsadmin -safemode"
    " leave`. Then restart the query.",
    "StandbyException": "This name node is on standby. Name the nameservice in the URI instead of"
    " one host, with its hdfs-site.xml in HADOOP_CONF_DIR.",
    "UnknownHostException": "The address names a host that nobody knows. Correct it in"
    " checkpointLocation or in the option storage.uri. If it is a nameservice, put its"
    " hdfs-site.xml into HADOOP_CONF_DIR.",
    "wiki.apache.org/hadoop": _UNREACHED,  # so ends what Hadoop says of a failed connection
    "ConnectTimeoutException": _UNREACHED,
    "Connection refused": _UNREACHED,
    "could only be written to 0 of": _NO_DATA_NODE,
    "BlockMissingException": _NO_DATA_NODE,
    "(Too many open files": _FILES_HINT,
    "All datanodes": _NO_DATA_NODE,
    _UNOPENED_SYSTEM: "Hadoop's settings name a file that is not there, or that this user may not"
    " read. Correct them, then restart the query.",
}


def error_of(what: str, name: str, message: str) -> MillpondError:
    """Return the error for an exception of the JVM.

    Args:
        what: the operation with the URI of the file.
        name: the simple name of the exception's class.
        message: its message, with what its causes say.
    """
    text = f"{what}: {name}: {message}"
    if name == "LocalFileException":
        return _local_error(text, message)
    if any(sign in message for sign in _NO_CONTAINER) or _NO_BUCKET in message:
        return InvalidInputError(text, kind=ErrorKind.STORAGE_BUCKET_MISSING)
    if " gs://" in what and (
        name == _UNOPENED_SYSTEM or any(sign in message for sign in _GOOGLE_DENIES)
    ):
        return UnavailableError(text, kind=ErrorKind.STORAGE_DENIED, hint=_GOOGLE_KEY)
    if " abfs" in what and ("AccessDenied" in name or any(sign in text for sign in _NO_KEY)):
        return UnavailableError(text, kind=ErrorKind.STORAGE_DENIED, hint=_AZURE_KEY)
    if " gs://" in what and name == "NumberFormatException":
        return InvalidInputError(text, kind=ErrorKind.STORAGE_MISCONFIGURED, hint=_GOOGLE_SIZES)
    if name in _ABSENT and not any(sign in message for sign in _UNOPENED):
        return NotFoundError(text, kind=ErrorKind.OBJECT_NOT_FOUND)
    if name == "FileAlreadyExistsException":
        return ConflictError(text, kind=ErrorKind.OBJECT_EXISTS)
    if name in ("AccessControlException", "AccessDeniedException"):
        return UnavailableError(text, kind=ErrorKind.STORAGE_DENIED)
    if name == "InvalidToken":
        return UnavailableError(text, kind=ErrorKind.STORAGE_DENIED, hint=_TOKEN_HINT)
    if "Quota" in name:
        return UnavailableError(text, kind=ErrorKind.STORAGE_FULL, hint=_QUOTA_HINT)
    if "No space left" in message:
        return UnavailableError(text, kind=ErrorKind.STORAGE_FULL)
    if name in _NO_CONNECTOR or lacks_connector(message):
        google, azure = " gs://" in what, " abfs" in what
        hint = NO_JAR + (_NO_GOOGLE if google else "") + (_NO_AZURE if azure else "")
        return UnsupportedError(text, kind=ErrorKind.STORAGE_UNSUPPORTED, hint=hint)
    hints = [hint for sign, hint in _HINTS.items() if sign == name or sign in message]
    return UnavailableError(
        text, kind=ErrorKind.STORAGE_UNAVAILABLE, hint=hints[0] if hints else ""
    )


def _local_error(text: str, message: str) -> MillpondError:
    """Return the error for a failure of the executor's own disk. It is never OBJECT_NOT_FOUND."""
    if "No space left" in message or "quota exceeded" in message:
        return UnavailableError(text, kind=ErrorKind.LOCAL_DISK_FULL)
    if "(No such file or directory)" in message or "(Not a directory)" in message:
        return UnavailableError(text, kind=ErrorKind.LOCAL_FILES_LOST, hint=DISK_HINT)
    hint = _FILES_HINT if "Too many open files" in message else DISK_HINT
    return UnavailableError(text, kind=ErrorKind.STORAGE_UNAVAILABLE, hint=hint)


def lacks_connector(message: str) -> bool:
    """Return whether a JVM says that the jar of a file system is missing, or for another Hadoop."""
    return any(sign in message for sign in _NO_CONNECTOR)
