"""What is there: Spark's logs, Millpond's format file, and the listing of every store. Common ground of `overview` and `verify`."""

from __future__ import annotations

from dataclasses import dataclass, field

from millpond import layout
from millpond.errors import ErrorKind, InvalidInputError, MillpondError, NotFoundError, UnsupportedError
from millpond.format_file import CheckpointFormat, decode_format
from millpond.ids import StoreId
from millpond.spark_metadata import OperatorInfo, SparkMetadata, read_operator_info, read_spark_metadata
from millpond.storage import Storage
from millpond.store_files import Listing, add_to_listing

PROVIDER_PACKAGE = "org.apache.spark.sql.millpond."


@dataclass(slots=True)
class Survey:
    """What was found. Errors in single files are kept here, so that one damaged file does not hide the rest."""

    stores: dict[StoreId, Listing] = field(default_factory=dict)
    spark: SparkMetadata | None = None  # None: one of Spark's logs is damaged
    operators: dict[int, OperatorInfo] = field(default_factory=dict)
    format: CheckpointFormat | None = None  # None: damaged, or not there
    spark_format: int = 1  # Spark's state store checkpoint format
    errors: list[tuple[str, MillpondError]] = field(default_factory=list)  # key, what is wrong with it

    def operator_ids(self) -> list[int]:
        """All operators that have a store or metadata, ascending."""
        return sorted({store.operator for store in self.stores} | set(self.operators))


def survey(storage: Storage, checkpoint: str, *, foreign: bool = False) -> Survey:
    """List and read everything but the files of the stores.

    Args:
        checkpoint: its name, for messages.
        foreign: also of a Spark checkpoint whose state is another provider's.
    Raises:
        InvalidInputError: NOT_A_CHECKPOINT.
        UnsupportedError: FOREIGN_CHECKPOINT: the state is another provider's.
        UnavailableError: the storage.
    """
    result = Survey()
    infos = list(storage.list(layout.STATE_DIR + "/"))
    for info in infos:
        parsed = layout.parse_key(info.key)
        if parsed is not None:
            add_to_listing(result.stores.setdefault(parsed.store, Listing()), parsed, info, parsed.store)
    # Directories of stores whose only files are Spark's own (schema files, say) are no stores of Millpond's.
    result.stores = {s: found for s, found in sorted(result.stores.items()) if not found.is_empty or found.foreign}
    _read_spark(storage, result)
    _read_format(storage, result)
    _refuse_others(result, checkpoint, foreign)
    ids = any(version.id for listing in result.stores.values() for version in listing.changelogs | listing.manifests)
    known = result.spark.checkpoint_format if result.spark is not None else None
    result.spark_format = 2 if ids else (known or 1)
    return result


def _read_spark(storage: Storage, result: Survey) -> None:
    try:
        result.spark = read_spark_metadata(storage, operators=())
    except MillpondError as e:
        _keep(result, _named_key(e, (layout.OFFSETS_DIR, layout.COMMITS_DIR)), e)
    for operator in sorted({s.operator for s in result.stores}):
        try:
            info = read_operator_info(storage, operator)
        except MillpondError as e:
            _keep(result, _named_key(e, (layout.operator_dir(operator),)), e)
            continue
        if info is not None:
            result.operators[operator] = info


def _keep(result: Survey, key: str, e: MillpondError) -> None:
    """Note an error that concerns one file; an error of the storage concerns all and is raised."""
    if e.kind not in (ErrorKind.FORMAT_DAMAGED, ErrorKind.FORMAT_TOO_NEW):
        raise e
    result.errors.append((key, e))


def _named_key(e: MillpondError, directories: tuple[str, ...]) -> str:
    first = str(e).partition(": ")[0]
    return first if first.startswith(directories) else directories[0]


def _read_format(storage: Storage, result: Survey) -> None:
    try:
        result.format = decode_format(storage.read(layout.FORMAT_KEY), name=layout.FORMAT_KEY)
    except NotFoundError:
        result.format = None
    except MillpondError as e:
        _keep(result, layout.FORMAT_KEY, e)


def _refuse_others(result: Survey, checkpoint: str, foreign: bool) -> None:
    damaged_format = any(key == layout.FORMAT_KEY for key, _ in result.errors)
    if result.format is not None or damaged_format:
        return
    spark = result.spark
    provider = spark.provider_class if spark is not None else None
    if not foreign and provider is not None and not provider.startswith(PROVIDER_PACKAGE):
        raise UnsupportedError(
            f"the state was written by {provider}, not by Millpond", kind=ErrorKind.FOREIGN_CHECKPOINT
        )
    if not foreign and any(listing.foreign for listing in result.stores.values()):
        raise UnsupportedError("the state was written by another provider", kind=ErrorKind.FOREIGN_CHECKPOINT)
    empty = spark is None or (spark.query_id is None and not spark.offset_batches)
    if empty and not result.stores and not result.errors:
        raise InvalidInputError(
            f"no checkpoint of a streaming query: {checkpoint}",
            kind=ErrorKind.NOT_A_CHECKPOINT,
        )
