"""DeepSpeed's number formats: scaled numbers with a unit, like `2.26 MMACs`."""

from __future__ import annotations

DEFAULT_PRECISION = 2
SCALES = {"u": 1e-6, "m": 1e-3, "": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
"""Letter in front of a unit -> what a number is divided by, smallest first."""


def _text(number: float, letter: str | None, digits: int, unit: str = "") -> str:
    """A number in its scale, with at most so many digits behind the point.

    Args:
        number: In units, not scaled.
        letter: A key of SCALES; any other text stands behind the plain number; None is the largest that fits.
        digits: After the point at most.
        unit: Text that follows the letter.
    """
    if letter is None:
        fitting = [each for each, size in SCALES.items() if number >= size]
        letter = (fitting or ["u"])[-1] if number else ""
    return f"{round(number / SCALES.get(letter, 1.0), digits):g} {letter}{unit}"


def number_to_string(num: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    """A plain number: `4.54 M`, `0 `.

    Args:
        num: The number.
        units: One of T, G, M, K, m, u to force that scale; None chooses one.
        precision: Digits behind the point at most. So for the other formats.
    """
    return _text(num, units, precision)


def macs_to_string(macs: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    """Multiply-accumulates: `2.26 MMACs`."""
    return _text(macs, units, precision, "MACs")


def flops_to_string(flops: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    """FLOPs or FLOP/s: `4.54 MFLOPS`."""
    return _text(flops, units, precision, "FLOPS")


def bytes_to_string(b: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    """Bytes by powers of ten: `1.5 KB`."""
    return _text(b, units, precision, "B")


def duration_to_string(duration: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    """Seconds: `298.02 us`."""
    return _text(duration, units, precision, "s")


def params_to_string(params_num: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    """Parameters, where 10^9 has the letter B: `1.3 B`. There is no space behind a number without a letter."""
    digits, _, letter = _text(params_num, "G" if units == "B" else units, precision).partition(" ")
    return f"{digits} {letter.replace('G', 'B')}".rstrip()
