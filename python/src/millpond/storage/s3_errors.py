"""What an error answer of an S3 server means, and whether to try again. Free of boto3."""

from __future__ import annotations

from millpond.errors import (
    ErrorKind,
    FormatError,
    InvalidInputError,
    MillpondError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
)
from millpond.storage.retry import TransientError

# The right that an operation needs, if it is not `s3:` and the operation's name.
_RIGHTS = {
    "HeadObject": "s3:GetObject",
    "ListObjectsV2": "s3:ListBucket",
    "DeleteObjects": "s3:DeleteObject",
    "CopyObject": "s3:PutObject",
    "CreateMultipartUpload": "s3:PutObject",
    "UploadPart": "s3:PutObject",
    "CompleteMultipartUpload": "s3:PutObject",
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
}
_THROTTLED = {
    "SlowDown",
    "SlowDownRead",  # MinIO's
    "SlowDownWrite",
    "Throttling",
    "ThrottlingException",
    "RequestLimitExceeded",
    "TooManyRequests",
    "429",
    "503",
}
_PASSING = {
    *_THROTTLED,
    "InternalError",
    "ServiceUnavailable",
    "RequestTimeout",
    "OperationAborted",
    "ConditionalRequestConflict",
    # The network damaged the body.
    "BadDigest",
    "XAmzContentChecksumMismatch",
    "XAmzContentSHA256Mismatch",
    "IncompleteBody",
}
_DENIED = {
    "AccessDenied",
    "AllAccessDisabled",
    "AccountProblem",
    "403",
    "401",
    "Unauthorized",
    "Forbidden",
}
_BAD_KEYS = {
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "InvalidSecurity",
    "NotSignedUp",
    "AuthorizationQueryParametersError",
}
_EXPIRED = {
    "ExpiredToken",
    "TokenRefreshRequired",
    "InvalidToken",
    "InvalidTokenId",  # MinIO's
    "ExpiredTokenException",
}
_REGION = {
    "PermanentRedirect",
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
    "InvalidRegion",  # MinIO's
    "301",
    "307",
}
_LACKS = (
    "This server lacks what Millpond needs, or is no S3 server: run `millpond storage check <uri>`."
)
_FULL = {"QuotaExceeded", "XMinioStorageFull", "StorageFull", "InsufficientStorage", "507"}
_ABSENT = {"NoSuchKey", "404", "NoSuchVersion"}
PRECONDITION = frozenset({"PreconditionFailed", "412"})
NOT_IMPLEMENTED = frozenset({"NotImplemented", "501", "MethodNotAllowed", "405"})
NO_RANGE = frozenset({"InvalidRange", "416"})
NO_UPLOAD = frozenset({"NoSuchUpload"})


def classify(
    operation: str,
    where: str,
    code: str,
    status: int,
    message: str,
    *,
    region: str = "",
    endpoint: str = "",
    exists_unknown: bool = False,
) -> MillpondError | TransientError:
    """Return the error for an answer of the server.

    It is a TransientError if the same request may succeed later.

    Args:
        operation: its name in S3's API.
        where: `s3://bucket/key`.
        code: from the answer's body; the HTTP status if there is no body.
        message: from the answer's body.
        region: the bucket's region, if the server told it.
        endpoint: URL of the server, for messages.
        exists_unknown: the operation reads one object; S3 may refuse because it is not there.
    """
    text = f"{where}: {operation}: {code}" + (f": {message}" if message and message != code else "")
    text += f" (said by {endpoint})" if endpoint else ""
    bucket = where.removeprefix("s3://").partition("/")[0]
    right = _RIGHTS.get(operation, f"s3:{operation}")
    resource = (
        f"arn:aws:s3:::{bucket}"
        if right.startswith("s3:ListBucket")
        else f"arn:aws:s3:::{bucket}/*"
    )
    if code == "NoSuchBucket":
        return InvalidInputError(text, kind=ErrorKind.STORAGE_BUCKET_MISSING)
    if code in _ABSENT:
        if code == "404" and operation != "HeadObject":
            # S3 says in XML what is not there. Only its answer to HEAD has no body.
            return _not_s3(text)
        return NotFoundError(text, kind=ErrorKind.OBJECT_NOT_FOUND)
    if code in _DENIED:
        also = (
            f" (and s3:ListBucket on arn:aws:s3:::{bucket}, without which S3 refuses what is not"
            " there)"
        )
        return UnavailableError(
            text,
            kind=ErrorKind.STORAGE_DENIED,
            hint=(
                f"Grant {right} on {resource}{also if exists_unknown else ''} to the credentials"
                " that are used."
            ),
        )
    if code in _EXPIRED:
        return UnavailableError(
            text,
            kind=ErrorKind.STORAGE_DENIED,
            hint=(
                "The session token has expired: hand over a new one with its keys"
                " (fs.s3a.session.token, or boto3's environment), or let boto3 find credentials"
                " that renew themselves. Then restart the query."
            ),
        )
    if code == "400" and operation == "HeadObject":
        # S3 says why in the body, and its answer to HEAD has none.
        return UnavailableError(
            text + (f" (the bucket is in {region})" if region else ""),
            kind=ErrorKind.STORAGE_DENIED,
            hint=(
                "S3 does not say why. Perhaps the session token has expired"
                " (fs.s3a.session.token), or the option storage.s3.region is not"
                f" {region or 'the region of the bucket'}."
            ),
        )
    if code in _BAD_KEYS:
        return UnavailableError(
            text,
            kind=ErrorKind.STORAGE_DENIED,
            hint=(
                "The server does not know these credentials: check fs.s3a.access.key and"
                " fs.s3a.secret.key, or boto3's environment. Some servers say the same of"
                " credentials whose session has expired."
            ),
        )
    if code == "RequestTimeTooSkewed":
        return UnavailableError(
            text,
            kind=ErrorKind.STORAGE_UNAVAILABLE,
            hint="Set the clock of this machine: S3 allows 15 minutes.",
        )
    if code in _REGION:
        return InvalidInputError(
            text + (f" (the bucket is in {region})" if region else ""),
            kind=ErrorKind.STORAGE_MISCONFIGURED,
            hint=(f"Set the option storage.s3.region to {region or 'the region of the bucket'}."),
        )
    if code in _FULL:
        return UnavailableError(text, kind=ErrorKind.STORAGE_FULL)
    if code == "KeyTooLongError":
        return InvalidInputError(
            text, kind=ErrorKind.INVALID_ARGUMENT, hint="Shorten the path of the Spark checkpoint."
        )
    if code in NOT_IMPLEMENTED:
        return UnsupportedError(
            text,
            kind=ErrorKind.STORAGE_UNSUPPORTED,
            hint=_LACKS,
        )
    unavailable = UnavailableError(text, kind=ErrorKind.STORAGE_UNAVAILABLE)
    if code in _PASSING or status >= 500 or status == 429:
        return TransientError(unavailable, throttled=code in _THROTTLED)
    return unavailable


def _not_s3(text: str) -> InvalidInputError:
    return InvalidInputError(
        f"{text}: this answer does not come from S3",
        kind=ErrorKind.STORAGE_MISCONFIGURED,
        hint="Check the option storage.s3.endpoint: another service answers there.",
    )


def unparsable(operation: str, where: str, message: str) -> MillpondError:
    """Return the error for an answer that does not come from an S3 server."""
    return _not_s3(f"{where}: {operation}: {message}")


def empty(operation: str, where: str, field: str) -> TransientError:
    """Return the error for an answer that says all went well, and lacks what it has to say."""
    text = f"{where}: {operation}: the answer has no {field}"
    return TransientError(UnavailableError(text, kind=ErrorKind.STORAGE_UNAVAILABLE))


def endless(where: str) -> MillpondError:
    """Return the error for a page of a listing that is not the last, and names no next one."""
    return UnsupportedError(
        f"{where}: ListObjectsV2: the list goes on (IsTruncated), and the answer has no"
        " NextContinuationToken",
        kind=ErrorKind.STORAGE_UNSUPPORTED,
        hint=_LACKS,
    )


def damaged(key: str, where: str) -> MillpondError:
    """Return the error for an object whose bytes changed since the put. Its kind is the file's."""
    message = f"{where}: its check sum differs from the one in its metadata"
    if key.endswith(".sst"):
        return FormatError(message, kind=ErrorKind.SST_DAMAGED)
    if key.endswith(".changelog"):
        return FormatError(message, kind=ErrorKind.CHANGELOG_DAMAGED)
    if key.endswith(".manifest"):
        return FormatError(message, kind=ErrorKind.MANIFEST_DAMAGED)
    return FormatError(message, kind=ErrorKind.FORMAT_DAMAGED)
