"""Work that is done side by side behind the interface of an Executor, and again where its worker was lost.

Every piece of work can be done twice without harm: it writes files whole or not at all, and returns little.
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
"""Times in a row that workers may be lost while nothing gets done."""
AHEAD = 4
"""Pieces of work for each worker that are begun or done before the first of them is taken: one may take longer."""


@dataclass(slots=True, kw_only=True, eq=False)
class Task(Generic[Result]):
    """A piece of work that a worker has."""

    name: str
    """What it is, like `survey rank 12`."""
    work: Callable[..., Result]
    args: Sequence[Any]
    """None where it is never done again: what a thread has worked with may be large."""
    future: Future[Result]
    generation: int
    """Of the workers that have it."""


class Pool:
    """Threads of this process; and what all sorts of workers have in common."""

    lost: tuple[type[BaseException], ...] = ()
    """What the future of work raises whose worker is gone."""
    remedy = ""
    batch = 1
    """Items that are one piece of work."""
    shares_folder = True
    """False where workers do not see the folder of the merge, and what they write is fetched."""

    def __init__(self, size: int) -> None:
        """Starts so many workers."""
        self.size = size
        self.wants_spares: Callable[[], bool] = lambda: True
        """Is asked when work is taken: whether files are needed that its worker holds in reserve."""
        self._open: dict[Task[Any], None] = {}
        """Work that was not taken yet, in its order."""
        self._generation = self._losses = self._num_taken = 0
        self._num_done = -1
        """Pieces of work that were done when workers were lost last."""
        self._start()

    def _start(self) -> None:
        self._executor: Executor = thread_pool(self.size)

    def _given(self, name: str, work: Callable[..., Result], args: Sequence[Any]) -> Future[Result]:
        """The future of a piece of work; workers that are lost already take none."""
        try:
            return self._hand(name, work, args)
        except self.lost as error:
            never = Future[Result]()
            never.set_exception(error)
            return never

    def _hand(self, name: str, work: Callable[..., Result], args: Sequence[Any]) -> Future[Result]:
        return self._executor.submit(work, *args)

    def _taken(self, task: Task[Result]) -> Result:
        """What a piece of work returned."""
        return task.future.result()

    def _stop(self) -> None:
        """Lets go of workers that are lost."""
        self._executor.shutdown(wait=False)

    def _told(self, task: Task[Any], error: BaseException) -> BaseException:
        """What is raised of an error of a piece of work."""
        return error

    def submit(self, name: str, work: Callable[..., Result], *args: Any) -> Task[Result]:
        """Has work done; all of it travels to the worker."""
        task = Task(name=name, work=work, args=args if self.lost else (), future=self._given(name, work, args),
                    generation=self._generation)
        self._open[task] = None
        return task

    def result(self, task: Task[Result]) -> Result:
        """Waits for a piece of work, and takes it.

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
        """What work returns for each item, a name and its arguments. All of it is submitted now."""
        tasks = [self.submit(name, _each, work, every) for name, every in self._batches(items)]
        return chain.from_iterable(map(self.result, tasks))

    def in_order(self, work: Callable[..., Result], items: Items) -> Iterator[Result]:
        """What work returns for each item; few are held at once, however many there are."""
        tasks = deque[Task[list[Result]]]()
        for name, every in self._batches(items):
            tasks.append(self.submit(name, _each, work, every))
            if len(tasks) > AHEAD * self.size:
                yield from self.result(tasks.popleft())
        while tasks:
            yield from self.result(tasks.popleft())

    def _batches(self, items: Items) -> Iterator[tuple[str, list[Sequence[Any]]]]:
        """Names and arguments of pieces of work."""
        rest = iter(items)
        while some := list(islice(rest, self.batch)):
            first, last = some[0][0], some[-1][0]
            yield (first if len(some) == 1 else f"{first}-{last.rpartition(' ')[2]}"), [args for _, args in some]

    def _again(self, task: Task[Any], error: BaseException) -> None:
        """Starts workers anew, if that was not done yet, and gives them all that is not done."""
        if task.generation != self._generation:
            self._resubmit(task)
            return
        done = self._num_taken + sum(map(self._is_done, self._open))
        self._losses = self._losses + 1 if done == self._num_done else 1
        self._num_done = done
        if self._losses > MOST_LOSSES:
            raise DataError(f"workers died {self._losses} times in a row, last during the task: "
                            f"{task.name}", hint=self.remedy) from error
        with held():  # a process that has just been started is known only afterwards
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
        """Waits for work that was begun; the rest is never done."""
        self._executor.shutdown(cancel_futures=True)

    def abandon(self) -> None:
        """For a process that is about to end: its threads end with it."""


def _each(work: Callable[..., Result], every: list[Sequence[Any]]) -> list[Result]:
    """Lets go of arguments one by one: what work has used may be large."""
    found = list[Result]()
    while every:
        found.append(work(*every.pop(0)))
    return found


class ProcessPool(Pool):
    """Processes of this machine, which are started anew where one is killed."""

    lost = (BrokenExecutor,)
    remedy = "they may have run out of memory: try fewer --workers"

    def _start(self) -> None:
        from distprof.merge.workers.worker_processes import process_pool

        self._executor = process_pool(self.size)

    def abandon(self) -> None:
        """Kills them."""
        kill_workers()
