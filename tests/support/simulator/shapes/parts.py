"""Parts of a step around the model: data, optimizers with and without closures, what a script does besides."""

from __future__ import annotations

from dataclasses import dataclass

from support.simulator.maker import US, Maker, Part


@dataclass(frozen=True, slots=True)
class Data:
    """Loads a batch in the thread, or takes one that workers made ahead."""

    ns: float = 300 * US
    workers: int = 0
    prefetch: int = 2

    def __call__(self, job: Maker, rank: int) -> None:
        if self.workers:
            job.fetch(rank, self.ns, self.workers, self.prefetch)
        else:
            job.work(rank, "data", None, self.ns)


@dataclass(frozen=True, slots=True)
class Host:
    """What a script does between the other parts, such as logging; no slice shows it."""

    ns: float = 200 * US

    def __call__(self, job: Maker, rank: int) -> None:
        job.work(rank, "host", None, self.ns)


@dataclass(frozen=True, slots=True)
class Update:
    """The step of an optimizer."""

    ns: float = 800 * US

    def __call__(self, job: Maker, rank: int) -> None:
        job.work(rank, "optimizer", None, self.ns)


@dataclass(frozen=True, slots=True)
class Closure:
    """The step of an optimizer that runs forward and backward itself: Lightning once, LBFGS several times."""

    parts: tuple[Part, ...]
    times: int = 1
    name: str = "LBFGS"
    ns: float = 800 * US

    def __call__(self, job: Maker, rank: int) -> None:
        with job.inside(rank, f"Optimizer.step#{self.name}.step", "user_annotation"):
            for _ in range(self.times):
                for part in self.parts:
                    part(job, rank)
                job.work(rank, "optimizer", None, self.ns)
