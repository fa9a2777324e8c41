"""The user's browser: opened here, or elsewhere over SSH."""

from __future__ import annotations

import getpass
import os
import socket
import sys
import threading
import webbrowser
from collections.abc import Mapping

SCREENS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
"""Without one of these only browsers are found that run in the terminal, where Perfetto does not."""


def is_remote(environ: Mapping[str, str] = os.environ) -> bool:
    """True in a session of SSH, where no browser on this machine is seen."""
    return "SSH_CONNECTION" in environ


def forwarding(port: int) -> str:
    """The command with which a browser elsewhere reaches a port of this machine."""
    return f"ssh -L {port}:127.0.0.1:{port} {getpass.getuser()}@{socket.gethostname()}"


def open_browser(address: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Opens an address in a window.

    Returns:
        False where there is no browser.
    """
    if sys.platform not in ("win32", "darwin") and not any(map(environ.get, SCREENS)):
        return False
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    # one that $BROWSER names may return only when its window is closed
    threading.Thread(target=browser.open, args=(address,), daemon=True).start()
    return True
