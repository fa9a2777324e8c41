"""The command of a job without what only says how it is recorded: two runs of one job differ in that at will."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distprof.hidden import without_secrets

RECORDING_FLAGS = {"--out": True, "--steps": True, "--topics": True, "--ranks": True, "--max-rank-size": True,
                   "--execution-trace": False, "--step-every": True, "--config": True, "--no-merge": False,
                   "--no-progress": False, "--no-argv": False, "--passes": True, "--watch": True,
                   "--watch-bytes": True, "--metrics": True, "--on-finding": True, "--otlp": True, "--log-to": True,
                   "--window-every": True, "--hosts": True, "--hosts-cert": True, "--hosts-key": True,
                   "--force": False, "--debug": False}
"""Flags of `distprof run` that the job itself does not see, and whether a value follows them."""
LAUNCHER = "distprof"


def job_command(argv: Sequence[str]) -> list[str]:
    """The script with its arguments, and flags of torchrun in front of it.

    Args:
        argv: `argv` of run.json: of `distprof run`, of `distprof demo`, or of a script that was started otherwise.
    """
    words = without_secrets(argv)  # older versions stored them
    if len(words) > 1 and words[1] == "run" and LAUNCHER in words[0]:
        words = words[2:]
        script = next((place for place, word in enumerate(words) if word == "-m" or word.endswith(".py")), len(words))
        return [*_of_torchrun(words[:script]), *words[script:]]
    if words[1:2] == ["demo"] and LAUNCHER in words[0]:
        return [LAUNCHER, "demo", *_of_torchrun(words[2:])]
    return words


def _of_torchrun(words: Sequence[str]) -> Iterator[str]:
    follows = False
    for word in words:
        if follows:
            follows = False
            continue
        flag, has_value, _ = word.partition("=")
        if flag in RECORDING_FLAGS:
            follows = RECORDING_FLAGS[flag] and not has_value
        else:
            yield word
