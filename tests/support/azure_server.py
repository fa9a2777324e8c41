"""Azurite, Microsoft's emulator of Azure Blob Storage, in its own process, reachable only from this machine.

    npm install --global azurite      (186 MB with its dependencies)
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from support.missing import missing

PROGRAM = "azurite-blob"
ACCOUNT, KEY = "devstoreaccount1", (  # publicly documented
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==")


def why_not() -> str:
    """Returns what is missing on this machine; '' if nothing."""
    program = "" if shutil.which(PROGRAM) else f"{PROGRAM}: not installed (npm: azurite)"
    return "; ".join(filter(None, (missing("adlfs"), program)))


def connection(address: str, key: str = KEY) -> str:
    """Returns the AZURE_STORAGE_CONNECTION_STRING for clients."""
    return (f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={key};"
            f"BlobEndpoint={address}/{ACCOUNT};")


def signed_connection(address: str) -> str:
    """Returns a connection string with a signature that allows reading and listing, instead of a key."""
    from azure.storage.blob import AccountSasPermissions, ResourceTypes, generate_account_sas

    signature = generate_account_sas(
        ACCOUNT, KEY, resource_types=ResourceTypes(service=True, container=True, object=True),
        permission=AccountSasPermissions(read=True, list=True), expiry=datetime.now(UTC) + timedelta(days=1))
    return f"BlobEndpoint={address}/{ACCOUNT};SharedAccessSignature={signature}"


@contextmanager
def azure_server() -> Iterator[str]:
    """Starts a server and yields its address."""
    command = [shutil.which(PROGRAM) or PROGRAM, "--blobHost", "127.0.0.1", "--blobPort", "0", "--inMemoryPersistence",
               "--silent", "--disableTelemetry", "--skipApiVersionCheck"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            words = next(line for line in process.stdout if "successfully listens on" in line).split()
            yield words[-1]
        finally:
            process.kill()
