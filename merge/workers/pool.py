"""Parallel work behind the interface of an Executor; work whose worker was lost is repeated.

Repeating a piece of work is harmless: it writes files completely or not at all, and returns little.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Generic, TypeVar

from distprof.ending import held, kill_workers
from distprof.errors import DataError
from distprof.threads import thread_pool

Result = TypeVar("Result")
Items = Iterable[tuple[str, Sequence[Any]]]
"""Names like `survey rank 12`, and arguments."""
MOST_LOSSES = 8
"""Maximum number of consecutive losses of workers without any progress between them."""
AHEAD = 4
"""Pieces of work per worker that are submitted before the first result is taken, as one may take longer."""


@dataclass(slots=True, kw_only=True, eq=False)
class Task(Generic[Result]):
    """A submitted piece of work."""

    name: str
    """What it does, like `survey rank 12`."""
    work: Callable[..., Result]
    args: Sequence[Any]
    """Empty if it is never repeated, because arguments that a thread has used may be large."""
    future: Future[Result]
    generation: int
    """Generation of the workers that have it."""


class Pool:
    """Threads of this process; base class of all kinds of workers."""

    lost: tuple[type[BaseException], ...] = ()
    """Exceptions of a task's future if its worker is lost."""
    remedy = ""
    batch = 1
    """Items per piece of work."""
    shares_folder = True
    """False if workers do not see the folder of the merge, so that the files they write are fetched."""

    def __init__(self, size: int) -> None:
        """Starts this many workers."""
        self.size = size
        self.wants_spares: Callable[[], bool] = lambda: True
        """Called when a result is taken: whether the spare files on its worker are needed."""
        self._open: dict[Task[Any], None] = {}
        """Tasks whose results were not taken, in order of submission."""
        self._generation = self._losses = self._num_taken = 0
        self._num_done = -1
        """Finished tasks at the last loss of workers."""
        self._start()

    def _start(self) -> None:
        self._executor: Executor = thread_pool(self.size)

    def _given(self, name: str, work: Callable[..., Result], args: Sequence[Any]) -> Future[Result]:
        """Submits a piece of work; its future fails if the workers are already lost."""
        try:
            return self._hand(name, work, args)
        except self.lost as error:
            never = Future[Result]()
            never.set_exception(error)
            return never

    def _hand(self, name: str, work: Callable[..., Result], args: Sequence[Any]) -> Future[Result]:
        return self._executor.submit(work, *args)

    def _taken(self, task: Task[Result]) -> Result:
        """Returns the result of a task."""
        return task.future.result()

    def _stop(self) -> None:
        """Releases workers that are lost."""
        self._executor.shutdown(wait=False)

    def _told(self, task: Task[Any], error: BaseException) -> BaseException:
        """Returns the exception to raise for a task's exception."""
        return error

    def submit(self, name: str, work: Callable[..., Result], *args: Any) -> Task[Result]:
        """Submits a piece of work; function and arguments are sent to the worker."""
        task = Task(name=name, work=work, args=args if self.lost else (), future=self._given(name, work, args),
                    generation=self._generation)
        self._open[task] = None
        return task

    def result(self, task: Task[Result]) -> Result:
        """Waits for a task, and returns its result.

        Raises:
            DataError: Workers are lost again and again.
        """
        while True:
            try:
                found = self._taken(task)
            except self.lost as error:
                self._again(task, error)
                continue
            except BaseException as error:
                del self._open[task]
                told = self._told(task, error)
                if told is error:
                    raise
                raise told from error
            self._num_taken += 1
            del self._open[task]
            return found

    def begun(self, work: Callable[..., Result], items: Items) -> Iterator[Result]:
        """Submits all items (name and arguments) at once, and yields the results in order."""
        tasks = [self.submit(name, _each, work, every) for name, every in self._batches(items)]
        return chain.from_iterable(map(self.result, tasks))

    def in_order(self, work: Callable[..., Result], items: Items) -> Iterator[Result]:
        """Yields the results in order; only a few items are submitted at a time, whatever their number."""
        tasks = deque[Task[list[Result]]]()
        for name, every in self._batches(items):
            tasks.append(self.submit(name, _each, work, every))
            if len(tasks) > AHEAD * self.size:
                yield from self.result(tasks.popleft())
        while tasks:
            yield from self.result(tasks.popleft())

    def _batches(self, items: Items) -> Iterator[tuple[str, list[Sequence[Any]]]]:
        """Yields names and arguments of pieces of work."""
        rest = iter(items)
        while some := list(islice(rest, self.batch)):
            first, last = some[0][0], some[-1][0]
            yield (first if len(some) == 1 else f"{first}-{last.rpartition(' ')[2]}"), [args for _, args in some]

    def _again(self, task: Task[Any], error: BaseException) -> None:
        """Restarts the workers, unless that has been done, and resubmits all unfinished tasks."""
        if task.generation != self._generation:
            self._resubmit(task)
            return
        done = self._num_taken + sum(map(self._is_done, self._open))
        self._losses = self._losses + 1 if done == self._num_done else 1
        self._num_done = done
        if self._losses > MOST_LOSSES:
            raise DataError(f"workers died {self._losses} times in a row, last during the task: "
                            f"{task.name}", hint=self.remedy) from error
        with held():  # a process that has just been started is registered only afterwards
            self._generation += 1
            self._stop()
            self._start()
            for one in self._open:
                if not self._is_done(one):
                    self._resubmit(one)

    def _resubmit(self, task: Task[Any]) -> None:
        task.future, task.generation = self._given(task.name, task.work, task.args), self._generation

    def _is_done(self, task: Task[Any]) -> bool:
        if not task.future.done() or task.future.cancelled():
            return False
        return not isinstance(task.future.exception(), self.lost)

    def close(self) -> None:
        """Waits for running tasks; the others are never done."""
        self._executor.shutdown(cancel_futures=True)

    def abandon(self) -> None:
        """Called if this process is about to end; threads end with it."""


def _each(work: Callable[..., Result], every: list[Sequence[Any]]) -> list[Result]:
    """Releases arguments one by one, because what work has used may be large."""
    found = list[Result]()
    while every:
        found.append(work(*every.pop(0)))
    return found


class ProcessPool(Pool):
    """Processes on this machine, which are restarted if one is killed."""

    lost = (BrokenExecutor,)
    remedy = "they may have run out of memory: try fewer --workers"

    def _start(self) -> None:
        from distprof.merge.workers.worker_processes import process_pool

        self._executor = process_pool(self.size)

    def abandon(self) -> None:
        """Kills the processes."""
        kill_workers()
