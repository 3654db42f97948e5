"""Compares the Kafka offsets that a query goes on from with what its topics still have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from millpond.query.image import Image, last_offsets
from millpond.spark.job_script import JobQuery
from millpond.spark.kafka_offsets import KafkaOffset, connector, kafka_offsets
from millpond.spark.kafka_topics import KafkaSource, Partitions, kafka_sources

_MOST_PARTITIONS = 5  # that a warning names
_LOSS = (
    "Spark ends the query when it gets there, unless the job sets the source's option"
    " failOnDataLoss to false"
)


def kafka_warnings(image: Image, query: JobQuery | None) -> tuple[str, ...]:
    """Return what a person must know of the Kafka offsets of a query that starts with `image`.

    This asks the brokers, through the sources of the job. If they do not answer, that is a warning.

    Args:
        query: the job's query; None: no job is known, and so no broker.
    Raises: UnsupportedError: SHIM_MISSING.
    """
    saved = kafka_offsets(last_offsets(image))
    if not saved:
        return ()
    topics = {offset.topic for offset in saved}
    if query is None:
        return (
            f"the query goes on at saved offsets of Kafka ({_names('topic', sorted(topics))}):"
            " without the job nobody knows the broker, so whether the topics still have them, and"
            " have the same partitions, was not checked; millpond savepoint plan --job checks it",
        )
    return compared(saved, kafka_sources(query, topics))


def compared(saved: Sequence[KafkaOffset], found: Sequence[KafkaSource]) -> tuple[str, ...]:
    """Return a warning for each difference (pure).

    Args:
        saved: where the query goes on.
        found: the sources of its job.
    """
    return tuple(_differences(saved, found))


def _differences(saved: Sequence[KafkaOffset], found: Sequence[KafkaSource]) -> Iterator[str]:
    by_source: dict[str, dict[str, dict[int, int]]] = {}
    for one in saved:
        topics = by_source.setdefault(one.source, {})
        topics.setdefault(one.topic, {})[one.partition] = one.offset
    for source, topics in by_source.items():
        fitting = [one for one in found if source in (str(one.source), one.name)]
        if not fitting:
            yield (
                f"source {source}: it read Kafka ({_names('topic', sorted(topics))}), and source"
                f" {source} of the job does not: Spark cannot use its saved offsets"
            )
        for of_job in fitting:
            yield from _of_source(source, topics, of_job)


def _of_source(
    source: str, saved: Mapping[str, Mapping[int, int]], found: KafkaSource
) -> Iterator[str]:
    # A connector of another minor version works as a rule, so only the first number counts.
    if found.connector and found.connector.split(".")[0] != found.spark.split(".")[0]:
        yield (
            f"source {source}: the Kafka connector is that of Spark {found.connector}, and Spark"
            f" {found.spark} runs: it fails at the start or later. Give the session"
            f" {connector(found.spark)}, or the newest before it"
        )
    if found.error:
        yield (
            f"source {source}: the Kafka broker at {found.servers} did not say whether the"
            f" saved offsets of {_names('topic', sorted(saved))} are still there ({found.error})."
            " Look whether it runs, and whether this machine reaches it"
        )
        return
    for topic, offsets in sorted(saved.items()):
        there = found.topics.get(topic, {})
        where = f"source {source}: topic {topic}"
        if not there:
            yield (
                f"{where} is not there any more, says the Kafka broker at {found.servers}: Spark"
                " cannot go on from its saved offsets; restore with --offsets drop keeps the state"
                " and begins as in a new query"
            )
        elif topic not in found.reads:
            yield f"{where} has saved offsets, and the job does not read it: {_LOSS}"
        else:
            yield from _of_topic(where, offsets, there, found.reads[topic])
    for topic in sorted(set(found.reads) - set(saved)):
        yield (
            f"source {source}: topic {topic} has no saved offsets: the query reads it from its"
            " first record on"
        )


def _of_topic(
    where: str, saved: Mapping[int, int], there: Partitions, reads: frozenset[int]
) -> Iterator[str]:
    gone = sorted(set(saved) - (reads & set(there)))
    if gone:
        yield f"{where} no longer has all partitions with saved offsets ({_some_of(gone)}): {_LOSS}"
    expired, beyond = [], []
    for number, offset in sorted(saved.items()):
        first, end = there.get(number, (offset, offset))
        if first > offset:
            expired.append(f"partition {number} at {offset:,}, its first record is {first:,}")
        if end < offset:
            beyond.append(f"partition {number} at {offset:,}, it ends at {end:,}")
    if expired:
        yield (
            f"{where} no longer has all records from the saved offsets on:"
            f" {_some(expired)}. {_LOSS}"
        )
    if beyond:
        yield (
            f"{where} ends before the saved offsets, so it was deleted and made anew:"
            f" {_some(beyond)}. {_LOSS}"
        )
    added = sorted((reads & set(there)) - set(saved))
    if added:
        yield (
            f"{where} has more partitions than were saved ({_some_of(added)}): the query reads"
            " them from their first records on"
        )
        late = [f"partition {n} begins at {there[n][0]:,}" for n in added if there[n][0]]
        if late:
            yield f"{where} has lost the first records of what was added: {_some(late)}. {_LOSS}"


def _names(what: str, which: Sequence[object]) -> str:
    plural = "s" if len(which) > 1 else ""
    return f"{what}{plural} {_some_of(which)}"


def _some_of(which: Sequence[object]) -> str:
    return _some([str(one) for one in which], ", ")


def _some(parts: Sequence[str], between: str = "; ") -> str:
    more = len(parts) - _MOST_PARTITIONS
    return between.join(parts[:_MOST_PARTITIONS]) + (f" and {more} more" if more > 0 else "")
