"""The same work on many parts: in this process, in processes beside it, or as tasks of a Spark session."""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any, Protocol, TypeVar

from millpond.errors import AgentError, ErrorKind, MillpondError, UnsupportedError
from millpond.storage import LocalStorage, Storage
from millpond.storage.split import SplitStorage

S = TypeVar("S")
J = TypeVar("J")
R = TypeVar("R")

_AGAIN = "Nothing was changed: run the same command again."


# Each takes a quarter of a GiB with state of any size (docs/benchmarks.md): so all of them together stay below one.
_MOST_PROCESSES = 3
_CPU_QUOTA = "/sys/fs/cgroup/cpu.max"


def process_count(quota_file: str = _CPU_QUOTA) -> int:
    """Return how many processes to spread work over: one for each core that this process may use, and not too many."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    with suppress(OSError, ValueError):  # no quota
        with open(quota_file, encoding="ascii") as file:
            quota_us, period_us = map(int, file.read().split())
        cores = min(cores, max(1, quota_us // period_us))
    return min(cores, _MOST_PROCESSES)


class Engine(Protocol):
    """Who does the work."""

    def map(self, work: Callable[[S, J], R], shared: S, jobs: Sequence[J]) -> Iterator[R]:
        """Yield `work(shared, job)` for each of `jobs`, in their order.

        Args:
            work: a function of a module: it may run elsewhere, where that module is imported.
            shared: what all jobs need; sent once to where they run.
        Raises: what `work` raises. AgentError: AGENT_LOST: a process has died.
        """


def engine_for(spark: Any, storages: Sequence[Storage], *, large: bool) -> Engine:
    """Return who is to do work on `storages`.

    Args:
        spark: a Spark session, whose executors are to do it, or None.
        large: whether the work is worth the start of processes.
    Raises: UnsupportedError: the executors' Python does not reach a storage.
    """
    reached = all(map(_reached, storages))
    if spark is None:
        return Processes(process_count() if large and reached else 1)
    if not reached:
        raise UnsupportedError(
            "only what is in a file system or on S3 is read and written by executors",
            hint="Leave out --engine spark, or copy it to one of these first.",
        )
    return SparkTasks(spark)


def _reached(storage: Storage) -> bool:
    """Whether other processes reach it: not what only the JVM of this one does."""
    if isinstance(storage, SplitStorage):
        return _reached(storage.spark) and _reached(storage.state)
    if isinstance(storage, LocalStorage):
        return True
    from millpond.storage.s3 import S3Storage  # who has no state there needs no boto3

    return isinstance(storage, S3Storage)


class Processes:
    """At most so many processes of this machine; with one job, or for one process, this one."""

    def __init__(self, count: int) -> None:
        self._count = count

    def map(self, work: Callable[[S, J], R], shared: S, jobs: Sequence[J]) -> Iterator[R]:
        """As `Engine.map`."""
        count = min(self._count, len(jobs))
        if count <= 1:
            for job in jobs:
                yield work(shared, job)
            return
        with ExitStack() as stack:
            workers = [stack.enter_context(_Worker(work, shared)) for _ in range(count)]
            idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
            for worker in workers:
                idle.put(worker)

            def done(job: J) -> R:
                worker = idle.get()
                try:
                    result: R = worker.ask(job)
                    return result
                finally:
                    idle.put(worker)

            with ThreadPoolExecutor(count) as pool:
                try:
                    yield from pool.map(done, jobs)
                except BaseException:
                    for worker in workers:
                        worker.kill()  # nobody wants what they still do
                    raise


class _Worker:
    """A process that does one job after the other. It ends when its standard input does: with this process, whatever happens."""

    def __init__(self, work: Callable[[S, J], R], shared: S) -> None:
        # Not multiprocessing: it would run the caller's script again, or fork a process that has threads.
        # It finds modules where this process does, and not in the working directory unless this one does.
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "millpond.spread_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"},
        )
        with suppress(BrokenPipeError):  # it has ended already: the first answer says so
            self._send((work, shared))

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()

    def kill(self) -> None:
        self._process.kill()

    def _send(self, message: object) -> None:
        assert self._process.stdin is not None
        pickle.dump(message, self._process.stdin, protocol=pickle.HIGHEST_PROTOCOL)
        self._process.stdin.flush()

    def ask(self, job: object) -> Any:
        """Return the result of a job. Raises: what its work raises."""
        assert self._process.stdout is not None
        try:
            self._send(job)
            ok, result = pickle.load(self._process.stdout)
        except (BrokenPipeError, EOFError, pickle.UnpicklingError) as e:
            code = self._process.wait()
            raise AgentError(
                f"a process that did a part of the work ended with code {code}",
                kind=ErrorKind.AGENT_LOST,
                hint=_AGAIN,
            ) from e
        if not ok:
            raise result
        return result


class SparkTasks:
    """A task for each job. Executors need Millpond with the extra `tools`, as for `millpond.read_state(spark=...)`."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def map(self, work: Callable[[S, J], R], shared: S, jobs: Sequence[J]) -> Iterator[R]:
        """As `Engine.map`; all are done before the first result is there."""
        if not jobs:
            return
        count = len(jobs)

        def run(batches: Iterator[Any]) -> Iterator[Any]:
            import pyarrow as pa

            for batch in batches:
                for number in batch.column(0).to_pylist():
                    answer = pickle.dumps(_attempted(work, shared, jobs[number]))
                    yield pa.RecordBatch.from_pydict({"job": [number], "answer": [answer]})

        numbers = self._spark.range(0, count, 1, count)
        answers = {
            row.job: row.answer
            for row in numbers.mapInArrow(run, "job long, answer binary").collect()
        }
        for number in range(count):
            ok, result = pickle.loads(answers[number])
            if not ok:
                raise result
            yield result


def _attempted(work: Callable[[S, J], R], shared: S, job: J) -> tuple[bool, Any]:
    """What came of a job, or Millpond's error; others fail the task, and Spark tries it again."""
    try:
        return True, work(shared, job)
    except MillpondError as e:
        return False, e
