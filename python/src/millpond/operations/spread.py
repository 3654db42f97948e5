"""Runs one function on many jobs: in this process, in other processes, or as tasks of a Spark
session.

This is the only module that spreads work over processes. Threads that wait for storage belong to
the module that waits.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any, Protocol, TypeVar

from millpond.errors import AgentError, ErrorKind, MillpondError, UnsupportedError
from millpond.storage import LocalStorage, Storage
from millpond.storage.given import given, reached_by
from millpond.storage.split import SplitStorage

S = TypeVar("S")
J = TypeVar("J")
R = TypeVar("R")

_AGAIN = "Nothing was changed: run the same command again."


BYTES_PER_PROCESS = 16 * 1024 * 1024
"""Below so many bytes of state the start of a process takes longer than it saves."""

# A process takes a quarter of a GiB, whatever the size of the state (docs/measurements.md). So all
# of them together stay below one GiB.
_MOST_PROCESSES = 3
_CPU_QUOTA = "/sys/fs/cgroup/cpu.max"


def process_count(quota_file: str = _CPU_QUOTA) -> int:
    """Return how many processes to use: one for each core that this process may use, and at most
    three.
    """
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
            work: a function of a module. Another process imports that module to run it.
            shared: what all jobs need. Each process gets it once.
        Raises: what `work` raises. AgentError: AGENT_LOST: a process has died.
        """


def engine_for(spark: Any, storages: Sequence[Storage], *, large: bool) -> Engine:
    """Return the engine that works on `storages`.

    Args:
        spark: a Spark session whose executors do the work; None: this machine does.
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
    """Whether other processes reach it. Some storages only this process's JVM reaches."""
    if isinstance(storage, SplitStorage):
        return _reached(storage.spark) and _reached(storage.state)
    if isinstance(storage, LocalStorage):
        return True
    from millpond.storage.s3 import S3Storage  # start-up time: boto3, an extra

    return isinstance(storage, S3Storage)


class Processes:
    """At most `count` processes of this machine. For one job, or a count of one, only this
    process.
    """

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
    """A process that does one job after the other.

    It ends when its standard input ends. So it ends with this process, whatever happens.
    """

    def __init__(self, work: Callable[[S, J], R], shared: S) -> None:
        # Not multiprocessing: that would run the caller's script again, or fork a process that has
        # threads. The worker finds modules where this process finds them. It looks into the working
        # directory only if this process does.
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        # Ctrl-C on a terminal reaches it, too. It inherits what is blocked, so it has no moment in
        # which that would print a traceback.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "millpond.operations.spread_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"},
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        with suppress(BrokenPipeError):  # the worker has died: `ask` raises that
            self._send((work, shared, given()))

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
    """A task for each job.

    Executors need Millpond with the extra `tools`, as for `millpond.read_state(spark=...)`.
    """

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def map(self, work: Callable[[S, J], R], shared: S, jobs: Sequence[J]) -> Iterator[R]:
        """As `Engine.map`. Spark does all jobs before the first result comes."""
        if not jobs:
            return
        count, told = len(jobs), given()

        def run(batches: Iterator[Any]) -> Iterator[Any]:
            import pyarrow as pa  # start-up time: only executors need it

            for batch in batches:
                for number in batch.column(0).to_pylist():
                    with reached_by(told):
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
    """Return the result of a job, or Millpond's error. Another error fails the task, and Spark
    tries again.
    """
    try:
        return True, work(shared, job)
    except MillpondError as e:
        return False, e
