"""`distprof run`: records all ranks of a script that torchrun starts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from distprof.files import write_text
from distprof.launch.options import CompletedRun, files
from distprof.needs import expect_linux, import_torch
from distprof.terminal import show

if TYPE_CHECKING:
    from distprof.launch.deepspeed_config import FlopsProfilerSection


@click.command(cls=CompletedRun, context_settings={
    "ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []}, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, shell_complete=files)
def run(arguments: tuple[str, ...]) -> None:
    """Record all ranks of a script; accepts torchrun's flags."""
    expect_linux("record")
    import_torch("record")
    from distprof.launch.job import run_job

    sys.exit(run_job(arguments, write_report=_write_report))


def _write_report(directory: Path, section: FlopsProfilerSection) -> None:
    """Prints the report that the flops_profiler section of a DeepSpeed config asks for, or writes it to a file."""
    from distprof.merge.text.deepspeed import deepspeed_text

    text = deepspeed_text(directory, profile_step=section.profile_step, module_depth=section.module_depth,
                          top_modules=section.top_modules, detailed=section.detailed,
                          recompute_fwd_factor=section.recompute_fwd_factor)
    if not section.output_file:
        show(text)
        return
    write_text(Path(section.output_file), text + "\n")
