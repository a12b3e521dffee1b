"""Errors that pass by themselves: the network broke, or a server or a disk was in trouble.

`was_lost` is the rule of one operation of storage, which is repeated at once. `passes_by_itself` is
the rule of code of a user's, with any client in it: that is run again, later and as a whole.
"""

from __future__ import annotations

import errno
import re
import socket
import sys

STATUSES_THAT_PASS = frozenset({408, 429, 500, 502, 503, 504})
_CODES_THAT_PASS = frozenset(
    {
        # Bytes that were lost or altered on the way.
        *("BadDigest", "IncompleteBody", "XAmzContentSHA256Mismatch"),
        *("SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable"),
        # Another request on the same object is under way.
        *("ConditionalRequestConflict", "OperationAborted"),
        # A multipart upload whose completion was answered, and the answer lost: it is done anew.
        "NoSuchUpload",
    }
)
_ERRNOS_THAT_PASS = frozenset(
    {
        # Of a disk that is reached through a network.
        *(errno.EIO, errno.ESTALE),
        *(errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.ETIMEDOUT),
        *(errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTUNREACH),
    }
)
# pyarrow has a plain OSError for whatever its own S3 client met.
_WORDS_THAT_PASS = re.compile(
    r"AWS Error (NETWORK_CONNECTION|SLOW_DOWN|THROTTLING|REQUEST_TIMEOUT|SERVICE_UNAVAILABLE"
    r"|INTERNAL_FAILURE)\b"
)
_MOST_CAUSES = 10


def was_lost(error: BaseException) -> bool:
    """Whether the same operation may succeed in a moment: the network, or a server in trouble."""
    # s3fs turns the server's answer into an OSError and keeps it as the cause.
    answer = getattr(error.__cause__, "response", None)
    if isinstance(answer, dict):
        return _is_answer_that_passes(answer)
    if isinstance(error, (ConnectionError, TimeoutError)):
        return True
    # Nobody meets an error of what is not loaded, and a local disk need not wait for loading it.
    return "botocore" in sys.modules and _was_lost_on_the_way(error)


def passes_by_itself(error: BaseException | None) -> bool:
    """Whether the same code may succeed when it is run again, told from the error and its causes.

    The code may have any client in it, and each client has classes of its own.
    """
    for _ in range(_MOST_CAUSES):
        if error is None:
            return False
        if was_lost(error) or _tells_of_a_loss(error):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def _tells_of_a_loss(error: BaseException) -> bool:
    answer = getattr(error, "response", None)
    if isinstance(answer, dict):
        return _is_answer_that_passes(answer)
    if getattr(answer, "status_code", None) in STATUSES_THAT_PASS:
        return True
    if isinstance(error, OSError):
        if isinstance(error, socket.gaierror) or error.errno in _ERRNOS_THAT_PASS:
            return True
        if _WORDS_THAT_PASS.search(str(error)):
            return True
    names = {kind.__name__ for kind in type(error).__mro__}
    # A certificate that is refused stays so, and several clients have it below their lost ones.
    return "SSLError" not in names and any("Connect" in one or "Timeout" in one for one in names)


def _is_answer_that_passes(answer: dict[str, dict[str, object]]) -> bool:
    """Whether the server's answer, as botocore has it, is that of a server in trouble."""
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
    code = answer.get("Error", {}).get("Code")
    return status in STATUSES_THAT_PASS or code in _CODES_THAT_PASS


def _was_lost_on_the_way(error: BaseException) -> bool:
    from aiohttp import ClientError as BrokenAnswer
    from botocore import exceptions as boto

    lost = (
        *(BrokenAnswer, boto.HTTPClientError, boto.ConnectionError),
        *(boto.IncompleteReadError, boto.ChecksumError, boto.FlexibleChecksumError),
    )
    return isinstance(error, lost) and not isinstance(error, boto.SSLError)
