"""`python -m fuzz.merges FOLDER` looks at a folder again; `python -m fuzz.merges --seconds N` looks for more."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def main() -> int:
    """Returns 1 where something is broken."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.merges")
    parser.add_argument("folder", nargs="?", type=Path, help="merge it and say what is broken")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("runs/fuzz"), help="where crashes and the corpus go")
    parser.add_argument("--random", action="store_true", help="without coverage, even where atheris is installed")
    given = parser.parse_args()
    return again(given.folder) if given.folder else search(given.out, given.seconds, guided=not given.random)


def again(folder: Path) -> int:
    """Merges a folder once."""
    from fuzz.merges.crashes import judge

    broken = judge(folder)
    print(broken or "nothing is broken")
    return broken is not None


def search(out: Path, seconds: int, *, guided: bool) -> int:
    """Runs the target; coverage-guided where atheris is installed."""
    crashes, corpus = out / "crashes", out / "corpus" / "merges"
    crashes.mkdir(parents=True, exist_ok=True)
    corpus.mkdir(parents=True, exist_ok=True)
    if guided:
        try:
            import atheris
        except ImportError:
            sys.stderr.write("fuzz: atheris is not installed, merges are fuzzed without coverage\n")
        else:
            return _guided(atheris, crashes, corpus, seconds)
    from fuzz.merges.target import Target, random_seed, run_randomly

    target = Target(crashes)
    try:
        run_randomly(target, seconds, random_seed())
    finally:
        target.report()
        target.close()
    return bool(target.kinds)


def _guided(atheris: object, crashes: Path, corpus: Path, seconds: int) -> int:
    with atheris.instrument_imports(include=["distprof.merge", "distprof.contract"]):
        from fuzz.merges.target import Target

    target = Target(crashes)
    atheris.Setup(["fuzz.merges", str(corpus), f"-max_total_time={seconds}", "-max_len=4096", "-len_control=0",
                   "-timeout=120", "-report_slow_units=600", "-rss_limit_mb=6000", "-print_final_stats=1",
                   f"-artifact_prefix={crashes}/merges-"], target)
    import atexit

    atexit.register(target.close)
    atexit.register(target.report)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
