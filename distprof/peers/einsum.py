"""Work of einsum in the cheapest order of contractions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

Shape = tuple[int, ...]


def contraction_work(equation: str, shapes: Sequence[Shape]) -> tuple[int, int]:
    """Returns the FLOPs and MACs of an equation for operands of these shapes.

    A step that sums over a label counts 2 FLOPs per MAC, other steps 1 per element.
    """
    terms, result = _labels(equation, shapes)
    sizes = {label: size for term, shape in zip(terms, shapes, strict=True)
             for label, size in zip(term, shape, strict=True) if size != 1}
    flops = macs = 0
    for chosen in _cheapest(equation, shapes)[0][1:]:  # indices of the remaining operands that each step contracts
        parts = [terms[index] for index in chosen]
        terms = [term for index, term in enumerate(terms) if index not in chosen]
        wanted = {*result}.union(*terms)
        touched = {label for part in parts for label in part}
        volume = prod(sizes.get(label, 1) for label in touched)
        if len(parts) > 1 and touched - wanted:
            flops, macs = flops + 2 * volume, macs + volume
        else:
            flops += volume if len(parts) > 1 else 0
        terms.append(tuple(touched & wanted))
    return flops, macs


def _labels(equation: str, shapes: Sequence[Shape]) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """Returns the labels of each operand and of the result; dimensions of an ellipsis get numbers as labels, from the
    right."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    ranks = [len(shape) - len(term.replace("...", "")) for term, shape in zip(left.split(","), shapes, strict=True)]
    terms = [_expand(term, rank) for term, rank in zip(left.split(","), ranks, strict=True)]
    if not arrow:  # labels that occur once, in alphabetical order
        letters = left.replace(",", "").replace("...", "")
        right = "..." + "".join(sorted(label for label in set(letters) if letters.count(label) == 1))
    return terms, _expand(right, max(ranks, default=0))


def _expand(term: str, rank: int) -> tuple[str, ...]:
    head, dots, tail = term.partition("...")
    return (*head, *(str(index) for index in reversed(range(rank if dots else 0))), *tail)


def printed_flops(equation: str, shapes: Sequence[Shape]) -> float:
    """Returns the FLOPs of the cheapest order as numpy prints them in its report: 2 per MAC, with four digits."""
    lines = (line.partition(":") for line in _cheapest(equation, shapes)[1].splitlines())
    return next(float(number) for label, _, number in lines if "optimized flop" in label.lower())


def _cheapest(equation: str, shapes: Sequence[Shape]) -> tuple[list[tuple[int, ...]], str]:
    """Returns numpy's order of contractions and its report, without allocating operands."""
    import numpy

    found: tuple[list[tuple[int, ...]], str] = numpy.einsum_path(
        equation, *(numpy.broadcast_to(numpy.zeros(()), shape) for shape in shapes), optimize="optimal")
    return found
