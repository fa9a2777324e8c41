"""DeepSpeed's number formats: a number comes in, text like `2.26 MMACs` goes out."""

from __future__ import annotations

DEFAULT_PRECISION = 2
MAGNITUDES = {"T": 1e12, "G": 1e9, "M": 1e6, "K": 1e3, "": 1, "m": 1e-3, "u": 1e-6}


def number_to_string(num: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    """A number with a magnitude letter: `4.54 M`, `0 `.

    Args:
        num: The number.
        units: One of T, G, M, K, m, u, which is then used whatever the size; any other text is put behind the plain
            number; None chooses.
        precision: Digits behind the point at most.
    """
    if units is None:
        units = "" if num == 0 else next((letter for letter, size in MAGNITUDES.items() if num >= size), "u")
    return f"{round(num / MAGNITUDES.get(units, 1), precision):g} {units}"


def macs_to_string(macs: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    """Multiply-accumulates: `2.26 MMACs`."""
    return f"{number_to_string(macs, units, precision)}MACs"


def flops_to_string(flops: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    """FLOPs or FLOP/s: `4.54 MFLOPS`."""
    return f"{number_to_string(flops, units, precision)}FLOPS"


def bytes_to_string(b: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    """Bytes by powers of ten: `1.5 KB`."""
    return f"{number_to_string(b, units, precision)}B"


def params_to_string(params_num: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    """Parameters, with B for 10^9: `1.3 B`."""
    letter = units.replace("B", "G") if units else units
    return number_to_string(params_num, letter, precision).replace("G", "B").strip()


def duration_to_string(duration: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    """Seconds: `298.02 us`."""
    return f"{number_to_string(duration, units, precision)}s"
