"""An emulator of Google Cloud Storage in a process of its own, on this machine alone. It knows no preconditions."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from support.jobs import clean_environ
from support.missing import missing

SERVER = """
import threading
from gcp_storage_emulator.server import create_server
server = create_server('127.0.0.1', 0, in_memory=True, default_bucket='jobs')
server.start()
print(server._api._httpd.server_port, flush=True)
threading.Event().wait()
"""
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
"""Else gcsfs asks what kind of bucket it is, by gRPC, which the emulator does not speak. It is read by the import."""


def why_not() -> str:
    """What is missing on this machine; '' where nothing is."""
    return missing("gcsfs", "gcp_storage_emulator")


@contextmanager
def gcs_server() -> Iterator[str]:
    """Starts one with a bucket called jobs; its address."""
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True,
                          env=clean_environ()) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()
