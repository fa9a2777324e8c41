"""`distprof trigger`: records some steps of a running job."""

from __future__ import annotations

from pathlib import Path

import click

from distprof.launch.options import JSON, PLACE, run_directories
from distprof.terminal import say, show


@click.command()
@click.argument("run", type=PLACE, shell_complete=run_directories)
@click.option("--steps", default="", metavar="PASS=N,...",
              help="Number of steps per pass, as in run --steps; passes that are not listed are not recorded.  "
                   "[default: trace=3,arrivals=20, "
                   "fewer if steps are long]")
@click.option("--wait/--no-wait", "waits", default=True, show_default=True,
              help="Wait until all ranks have written their files.")
@JSON
def trigger(run: Path, *, steps: str, waits: bool, as_json: bool) -> None:
    """Record some steps of a running job now.

    All ranks record the same steps, into RUN/windows/0001, then 0002 and so on. Each is a run directory, which every
    command reads. RUN is the run directory of a running job; any host that sees it will do, as the user of the job.
    """
    from distprof.ending import ended_by_signals
    from distprof.launch.watching.triggered import lines_of
    from distprof.launch.watching.triggered import trigger as trigger_now

    with ended_by_signals():
        found = trigger_now(run, steps, waits=waits, tell=say)
    if as_json:
        import json

        show(json.dumps(found.document(), indent=1))
        return
    for line in lines_of(found):
        show(line)
