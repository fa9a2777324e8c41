"""An emulator of Google Cloud Storage in its own process, only reachable from this machine. Ignores preconditions."""

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
"""Without it, gcsfs asks for the kind of the bucket by gRPC, which the emulator does not support. Read on import."""


def why_not() -> str:
    """Returns what is missing on this machine; '' if nothing."""
    return missing("gcsfs", "gcp_storage_emulator")


@contextmanager
def gcs_server() -> Iterator[str]:
    """Starts a server with a bucket called jobs and yields its address."""
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True,
                          env=clean_environ()) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()
