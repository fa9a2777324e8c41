"""Finds out what ends a step of a training script, that is, one iteration of its loop."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Sequence

from torch.optim import Optimizer

from distprof.contract.rank_json import OptimizerSteps, StepRule, StepsFound
from distprof.model.modules import ModuleMap, Site
from distprof.recording.steps.optimizers import KnownOptimizer, Optimizers, name_all
from distprof.recording.steps.pattern import (
    MOST_FOR_SILENT,
    MOST_TURNS,
    PatternFollower,
    StepEvery,
    TurnLog,
    Waited,
    iteration_at_end,
    most_frequent,
)
from distprof.units import counted

IN_BACKWARD = -1
"""Number of the turn of all optimizers that stepped during one backward pass."""


class StepFinder:
    """Decides what ends a step in this script.

    An explicit `rec.step()` has priority, then `--step-every`. Otherwise optimizers do: the only one, or, of several,
    the last one in the pattern in which they step, which has to be seen twice. If no optimizer is alive, each forward
    call of the first root model with parameters begins a step; if an optimizer steps later, this was not the training
    loop (`was_mistaken`).
    """

    def __init__(self, every: StepEvery | None = None, step: Callable[[], int] = lambda: 0) -> None:
        """Begins before the first step.

        Args:
            every: The value of `--step-every`; None if it was not given.
            step: Returns the number of the running step.
        """
        self.rule: StepRule | None = None if every is None else "given"
        """What ends a step; None until it is known, and until then no step ends."""
        self.waiting = True
        """False once anything is measured: the rule can no longer change."""
        self.num_turns = 0
        """Number of optimizer steps so far; those during one backward pass count as one."""
        self._every = every
        self._step = step
        self._optimizers = Optimizers()
        self._log = TurnLog()
        self._follower: PatternFollower | None = None
        self._of_backward: set[int] = set()
        self._root: Site | None = None
        self._forwards = 0
        self._forward_since_end = False
        self._ended_by_others = 0
        """Number of measured steps that were not ended by rec.step()."""
        self._silent: list[KnownOptimizer] = []
        self._looked_at = 0
        self._skipped = 0
        self._left_in: int | None = None
        self._only: weakref.ref[Optimizer] | None = None
        """The optimizer each of whose steps ends a step; None if there is no such optimizer."""

    @property
    def must_wait(self) -> bool:
        """True while optimizers have to be watched for longer: until then, no step ends."""
        return self.rule is None and (self.num_turns > 0 or self._optimizers.several_alive)

    @property
    def needs_modules(self) -> bool:
        """True if forward calls tell when a step ends, or may still turn out to."""
        return self.rule in (None, "forward", "backward") or not self._optimizers.were_looked_for

    @property
    def was_mistaken(self) -> bool:
        """True if an optimizer has stepped after the job was taken for inference."""
        return self.rule == "forward" and self._left_in is not None

    @property
    def is_training(self) -> bool:
        """False in inference, where forward calls without gradients are the work."""
        return self._optimizers.any and self.rule != "forward"

    def optimizer_is_alive(self) -> bool:
        """Returns whether there is an optimizer by now; takes a while."""
        self._optimizers.look()
        return self._optimizers.any

    def begins(self) -> None:
        """Moves the start of the first iteration to now."""
        if not self.num_turns:
            self._log.begin()

    def start_over(self, left_out: Sequence[Optimizer] | None = None) -> None:
        """Drops everything seen so far.

        Args:
            left_out: Optimizers whose steps are ignored from now on; None for the same as before.
        """
        self.rule = None if self._every is None else "given"
        self.num_turns = self._forwards = 0
        self._optimizers = self._optimizers.again() if left_out is None else Optimizers(left_out)
        self._log, self._follower, self._only = TurnLog(), None, None
        self._root, self._silent, self._left_in = None, [], None
        self._of_backward.clear()

    def leave_out(self, optimizers: Sequence[Optimizer]) -> None:
        """Ignores these optimizers: that they have not stepped does not make steps uncertain."""
        gone = set(map(id, optimizers))
        self._silent = [one for one in self._silent if id(one.ref()) not in gone]

    # --- what happens in the script --------------------------------------------------------------------------------

    def before_root(self, site: Site, *, evaluates: bool = False) -> bool:
        """Returns whether this forward call of a root module begins a new step.

        Args:
            site: The module.
            evaluates: True if the script has declared that it evaluates; the call then shows nothing about its loop.
        """
        ended = self._after_backward()
        if evaluates:
            return ended
        self._forward_since_end = True
        if ended or self.num_turns or not site.model.has_parameters():
            return ended
        if self._root is None:
            self._root = site
            self._optimizers.look()
        if site is not self._root or self.rule not in (None, "forward"):
            return False
        self._forwards += 1
        if self.rule is None and self._forwards == 2 and not self._optimizers.any:
            self._optimizers.look()
            self.rule = None if self._optimizers.any else "forward"
        return self.rule == "forward"

    def after_optimizer(self, optimizer: Optimizer, *, in_backward: bool = False, skipped: bool = False) -> bool:
        """Returns whether this optimizer.step() ended a step.

        Args:
            optimizer: The optimizer.
            in_backward: It stepped during backward, where no step can end: the next forward call begins one.
            skipped: A gradient scaler skipped the step.
        """
        if (self._only is not None and self._only() is optimizer and self.rule == "optimizer"
                and not (in_backward or skipped or self._of_backward)):  # the usual case
            self.num_turns += 1
            self._forward_since_end = False
            self._ended_by_others += not self.waiting
            return True
        number = self._optimizers.number(optimizer)
        self._skipped += skipped
        if self.rule == "forward" and self.waiting:
            self.rule = None  # what ran until now was not inference
            self.begins()
        if self.rule in ("explicit", "forward"):
            self._note(otherwise=self.rule == "forward")
            return False
        if in_backward:
            self._of_backward.add(number)
            return False
        ended = self._after_backward()
        return self._turn(number) or ended

    def explicit(self) -> bool:
        """Returns whether an explicit call ends a step; the first one may follow an optimizer that already did."""
        first, self.rule = self.rule != "explicit", "explicit"
        ended = not first or self._forward_since_end or not self.num_turns
        # an only optimizer step so far, followed by this call, ended the step that this call would have ended
        self._note(otherwise=first and self._ended_by_others > (0 if ended else 1))
        self._forward_since_end = False
        self._of_backward.clear()
        return ended

    def at_end(self) -> bool:
        """Returns whether the script ends with a step that the next forward call would have ended."""
        return self._after_backward()

    # --- turns -----------------------------------------------------------------------------------------------------

    def _after_backward(self) -> bool:
        """Ends the turn of the optimizers that stepped during backward."""
        if not self._of_backward:
            return False
        ended = self._turn(IN_BACKWARD)
        self._of_backward.clear()
        return ended

    def _turn(self, number: int) -> bool:
        self.num_turns += 1
        if self.rule is None:
            ended = self._settle(number)
        elif self._every is not None:
            stepped = self._of_backward if number == IN_BACKWARD else {number}
            ended = self._every.ends(self.num_turns, {self._optimizers.stepped[one].class_name for one in stepped})
        else:
            ended = self._follow(number)
        self._forward_since_end = self._forward_since_end and not ended
        self._ended_by_others += ended and not self.waiting
        return ended

    def _settle(self, number: int) -> bool:
        """Adds a turn; true if the rule is known now, and an iteration ended."""
        self._log.add(number)
        found = self._found(number)
        if found is None:
            return False
        self.rule, iteration = found
        self._follow_pattern(iteration)
        self._looked_at = self.num_turns
        return True

    def _found(self, number: int) -> tuple[StepRule, tuple[int, ...]] | None:
        turns = self._log.numbers
        if set(turns) == {IN_BACKWARD}:
            return "backward", (IN_BACKWARD,)
        self._silent = self._optimizers.silent()
        if self._silent and len(turns) < MOST_FOR_SILENT:
            return None
        if len(set(turns)) == 1:
            return "optimizer", (number,)
        iteration = iteration_at_end(turns)
        if iteration is not None:
            return "pattern", iteration
        chosen = most_frequent(turns)
        return ("irregular", (chosen,)) if len(turns) >= MOST_TURNS and number == chosen else None

    def _follow(self, number: int) -> bool:
        assert self._follower is not None
        iteration = self._follower.iteration
        if number not in iteration:
            if self.rule == "irregular":
                return False
            if self.waiting:  # an optimizer that did not exist before
                self.rule = None
                self._log.start_over()
                return self._settle(number)
            if number != IN_BACKWARD and self.rule == "optimizer" and self._optimizers.is_dead(iteration[0]):
                self._follow_pattern((number,))
        ended = self._follower.ends(number)
        if self._follower.left:
            self._note(otherwise=True)
        return ended

    def _follow_pattern(self, iteration: tuple[int, ...]) -> None:
        self._follower = PatternFollower(iteration)
        self._only = self._optimizers.stepped[iteration[0]].ref if len(iteration) == 1 and iteration[0] >= 0 else None

    def _note(self, *, otherwise: bool) -> None:
        if otherwise and self._left_in is None:
            self._left_in = self._step()

    # --- what is known ---------------------------------------------------------------------------------------------

    def waited(self) -> list[Waited]:
        """Returns iterations that ended before it was known what ends a step; none if it was known from the start."""
        if self._follower is None or not self._log.numbers:
            return []
        return self._log.iterations(self._follower.iteration, by_end=self.rule == "irregular")

    def found(self, modules: ModuleMap) -> StepsFound | None:
        """Returns what is known by now, as in the contract; None if no step has ended."""
        if self.rule is None:
            return None
        stepped = self._optimizers.stepped
        name_all(self._silent if self.rule == "backward" else [*stepped, *self._silent], modules)
        return StepsFound(rule=self.rule, optimizers=self._steps_of_optimizers(),
                          given=self._every.text if self._every else None,
                          module=self._root.class_name if self._root is not None else None,
                          looked_at=self._looked_at, silent=[one.name for one in self._silent],
                          skipped=self._skipped, left_in=self._left_in)

    def _steps_of_optimizers(self) -> list[OptimizerSteps]:
        if self.rule == "backward":
            names = Counter(one.class_name for one in self._optimizers.stepped)
            return [OptimizerSteps(name=name, steps=steps) for name, steps in names.items()]
        if self.rule == "given":
            return self._optimizers.described(dict.fromkeys(range(len(self._optimizers.stepped)), 1))
        if self.rule == "explicit" or self._follower is None:
            return []
        return self._optimizers.described(Counter(self._follower.iteration))

    def why_none(self, num_forwards: int) -> str:
        """Returns why no step was found, for the user."""
        if self.rule is None and self.num_turns:
            names = ", ".join(dict.fromkeys(one.class_name for one in (*self._optimizers.stepped, *self._silent)))
            verb = "does" if self.num_turns == 1 else "do"
            return (f"{counted(self.num_turns, 'step')} of several optimizers ({names}) {verb} not show what an "
                    "iteration is")
        if self._every is not None:
            return (f"found {counted(self.num_turns, 'optimizer step')}, but none that ends a step by --step-every "
                    f"{self._every.text}")
        if self._optimizers.any or num_forwards:
            return f"found {counted(num_forwards, 'forward call')} and no optimizer.step()"
        return "found no forward call of a torch.nn.Module"
