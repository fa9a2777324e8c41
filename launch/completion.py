"""What a shell offers when Tab is pressed, beside commands and their options; imports neither torch nor tables."""

from __future__ import annotations

import argparse
from pathlib import Path

import click
from click.shell_completion import CompletionItem

USUAL_OF_TORCHRUN = (
    "--nproc-per-node", "--nnodes", "--node-rank", "--master-addr", "--master-port", "--standalone", "--rdzv-backend",
    "--rdzv-endpoint", "--rdzv-id", "--max-restarts", "--module", "--log-dir", "--redirects", "--tee")
"""Flags of torchrun, whose own list would have to import torch."""


def run_directories(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Runs in the working directory; files and folders where none begins like that."""
    from distprof.launch.what_next import runs_in

    runs = sorted(str(run) for run in runs_in(Path()))
    found = [CompletionItem(run) for run in runs if run.startswith(incomplete)]
    return found or files(context, parameter, incomplete)


def files(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Whatever the shell finds."""
    return [CompletionItem(incomplete, type="file")]


class CompletedRun(click.Command):
    """`distprof run`, whose flags click does not know."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from distprof.launch.job_arguments import add_recording_flags

        ours = argparse.ArgumentParser()
        add_recording_flags(ours)
        flags = {flag: action.help for action in ours._actions for flag in action.option_strings}
        flags |= dict.fromkeys(USUAL_OF_TORCHRUN, "as torchrun's")
        return [CompletionItem(flag, help=text) for flag, text in flags.items() if flag.startswith(incomplete)]
