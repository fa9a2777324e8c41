"""Classifies errors of storages: whether to try again, and what to tell the user."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from distprof.errors import StorageError
from distprof.hidden import hidden

KEYS = "are credentials set and not expired? see docs/object-storage.md for where each storage looks for them"
RIGHTS = "can these credentials read and list there? see docs/object-storage.md for the permissions needed"
NETWORK = "is the network up and the endpoint right? repeat the command to continue"
HOST = ("is it the right host? run `ssh` to it once to add its key to ~/.ssh/known_hosts; if the key has changed, ask "
        "the administrator")
LIES = "is it the right URL? distprof cannot read from a server that answers like this"
CHANGED = "is something still writing there? try again"
BUSY_STATUS = frozenset((408, 425, 429, 500, 502, 503, 504))
BUSY_CODES = frozenset(("SlowDown", "InternalError", "RequestTimeout", "ServiceUnavailable", "Throttling",
                        "ThrottlingException", "TooManyRequests", "OperationAborted", "BadDigest", "IncompleteBody"))
KEY_CODES = frozenset(("ExpiredToken", "ExpiredTokenException", "InvalidAccessKeyId", "SignatureDoesNotMatch",
                       "InvalidToken", "TokenRefreshRequired", "RequestTimeTooSkewed", "InvalidClientTokenId"))
KEY_ERRORS = frozenset(("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound",
                        "TokenRetrievalError", "UnauthorizedSSOTokenError", "RefreshError", "DefaultCredentialsError",
                        "AuthenticationException", "PermissionDenied", "ClientAuthenticationError"))
"""Names of classes, because which libraries are installed depends on the scheme."""
NETWORK_ERRORS = frozenset((
    "FSTimeoutError", "ServerTimeoutError", "ClientConnectionError", "ClientConnectorError", "ClientOSError",
    "ClientPayloadError", "ServerDisconnectedError", "ConnectionClosedError", "EndpointConnectionError",
    "ReadTimeoutError", "ConnectTimeoutError", "HTTPClientError", "IncompleteReadError", "IncompleteRead",
    "ResponseStreamingError", "ResponseParserError", "ContentLengthError", "ConnectionLost", "SFTPConnectionLost",
    "SFTPNoConnection", "ChannelOpenError", "ServiceRequestError", "ServiceResponseError",
))
DENIALS = frozenset(("SFTPPermissionDenied", "SFTPWriteProtect"))
ABSENCES = frozenset(("SFTPNoSuchFile", "SFTPNoSuchPath"))


class Kind(Enum):
    """What can be done about an error."""

    AGAIN = "again"
    """The storage is busy, or the connection broke: the same request may succeed."""
    REFUSED = "refused"
    """There are no credentials, or they are wrong or expired: no other request will succeed either."""
    DENIED = "denied"
    """This object or bucket may not be read or written."""
    MISSING = "missing"
    REPLACED = "replaced"
    """The object is not the one that was listed."""
    OTHER = "other"


class Fault(NamedTuple):
    """An error, with a description and a hint for the user."""

    kind: Kind
    what: str
    hint: str


class RemoteError(OSError):
    """An object that cannot be read or written, for a reason that concerns only this object.

    Args:
        number: The closest errno.
        reason: A description.
        place: Its URL.
        hint: What the user can do about it.
    """

    def __init__(self, number: int, reason: str, place: str, hint: str = "") -> None:
        super().__init__(number, reason, place)
        self.hint = hint


NUMBERS = {Kind.DENIED: errno.EACCES, Kind.MISSING: errno.ENOENT, Kind.REPLACED: errno.ESTALE, Kind.OTHER: errno.EIO}


def fault_of(error: BaseException) -> Fault:
    """Classifies an error."""
    code, status = _answer(error)
    names = {type(one).__name__ for one in _chain(error)}
    said = f"{status} {code}".strip() if status and not code.startswith(str(status)) else code
    if code == "PreconditionFailed" or status == 412 or "FileExpired" in names:
        return Fault(Kind.REPLACED, "it was replaced while being read", CHANGED)
    if "HostKeyNotVerifiable" in names:
        return Fault(Kind.REFUSED, f"its host key is unknown ({_words(error)})", HOST)
    if code in KEY_CODES or status == 401 or names & KEY_ERRORS:
        return Fault(Kind.REFUSED, f"the credentials were refused ({said or _words(error)})", KEYS)
    if status in BUSY_STATUS or code in BUSY_CODES:
        return Fault(Kind.AGAIN, f"the server answered {said}", NETWORK)
    if names & NETWORK_ERRORS or any(isinstance(one, TimeoutError | ConnectionError) for one in _chain(error)):
        return Fault(Kind.AGAIN, f"the connection failed ({_words(error)})", NETWORK)
    if status == 403 or isinstance(error, PermissionError) or names & DENIALS or _is_forbidden(error):
        return Fault(Kind.DENIED, f"access was denied ({said or _words(error)})", RIGHTS)
    if code in ("NoSuchBucket", "ContainerNotFound"):
        return Fault(Kind.MISSING, "there is no such bucket", "are its name and the endpoint right?")
    if status == 404 or isinstance(error, FileNotFoundError) or names & ABSENCES:
        return Fault(Kind.MISSING, "it does not exist (any more)", "was it removed in the meantime?")
    return Fault(Kind.OTHER, said or _words(error), "`distprof --debug ...` shows the traceback")


def raised(error: BaseException, place: str) -> Exception:
    """Returns the error of ours to raise for an error at a place.

    An error that concerns the whole storage ends the command; one that concerns an object is like that of a local file.
    """
    if isinstance(error, RemoteError | StorageError):
        return error
    fault = fault_of(error)
    if fault.kind in (Kind.AGAIN, Kind.REFUSED):
        return StorageError(f"cannot reach {place}: {fault.what}", hint=fault.hint)
    return RemoteError(NUMBERS[fault.kind], fault.what, place, fault.hint)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(8):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _answer(error: BaseException) -> tuple[str, int]:
    """Returns code and status of a server's answer; "" and 0 if there was none."""
    for one in _chain(error):
        response = getattr(one, "response", None)
        if isinstance(response, dict) and "Error" in response:  # botocore
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            return str(response["Error"].get("Code", "")), int(status or 0)
        if isinstance(status := getattr(one, "status_code", None), int):  # Azure
            code = getattr(one, "error_code", None) or ""
            return str(getattr(code, "value", code)), status
        status = one.status if hasattr(one, "status") else getattr(one, "code", None)  # aiohttp, gcsfs
        if isinstance(status, int) and 100 <= status < 1000:
            return "", status
    return "", 0


def _is_forbidden(error: BaseException) -> bool:
    """True for an answer 403, for which gcsfs has no class."""
    return type(error) is OSError and str(error).startswith("Forbidden: ")


def _words(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno and not error.args[1:]:
        return os.strerror(error.errno)
    return hidden((str(error).splitlines() or [type(error).__name__])[0]) or type(error).__name__
