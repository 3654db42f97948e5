"""One container of Azure's storage, by its Blob interface. The only module that imports obstore.

obstore never repeats a request here: `Retry` does, so that a put whose answer got lost is known.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeVar

from millpond.errors import (
    ConflictError,
    ErrorKind,
    InvalidInputError,
    NotFoundError,
    UnavailableError,
)
from millpond.storage.azure_settings import AzureSettings
from millpond.storage.retry import Retry, TransientError

T = TypeVar("T")

# What tells obstore who asks. Without any it would look for a machine's identity by itself.
_VARIABLES = (
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_TOKEN",
    "AZURE_STORAGE_CLIENT_ID",
    "AZURE_CLIENT_ID",
    "AZURE_USE_AZURE_CLI",
    "AZURE_CREDENTIAL_TYPE",
    "AZURE_MSI_ENDPOINT",
    "AZURE_IDENTITY_ENDPOINT",
)
_KEY_HINT = (
    "Check the account's settings: fs.azure.account.key.<account address>, or"
    " fs.azure.account.auth.type with its SAS or OAuth settings. A job has them with spark.hadoop."
    " before their names, a command in core-site.xml of HADOOP_CONF_DIR, or as"
    " AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, or the variables of another credential. A"
    " token may have expired."
)
_UNREACHED = (
    "Check the account in the address, and that this host reaches it. Where only the account's dfs"
    " address is reached, set the option storage.azure.client to hadoop. A command that takes no"
    " option goes by Hadoop's client if it runs where obstore is not installed."
)
# Of the answer, or of one of the answers to a request of many.
_STATUS = re.compile(r"(?:status |\()code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE = re.compile(r"<Message>([^\n<]*)")
_TRANSIENT = (408, 429, 500, 502, 503, 504)


def installed() -> bool:
    """Return whether obstore is there."""
    return importlib.util.find_spec("obstore") is not None


class RangeEndError(Exception):
    """The object ends before the first byte that was asked for."""


class AzureClient:
    """Requests about one container. Thread-safe.

    Args:
        settings: how to reach it.
        retry: repeats requests. A host that never answered is not asked twice.
    """

    def __init__(self, settings: AzureSettings, retry: Retry) -> None:
        self._settings = settings
        self._retry = retry
        self._store = _store_of(settings)
        self._answered = False

    def where(self, key: str) -> str:
        """Return how messages name an object."""
        return f"{self._settings.endpoint}/{self._settings.container}/{key}"

    def call(self, what: str, key: str, request: Callable[[Any, Any], T]) -> T:
        """Return what `request(obstore, store)` returns. Repeat it while it may help.

        Args:
            what: the operation, for messages.
            key: the object's whole name in the container.
        Raises: MillpondError: as the storage's methods. RangeEndError.
        """
        return self._retry.run(what, lambda: self.once(what, key, request))

    def once(self, what: str, key: str, request: Callable[[Any, Any], T]) -> T:
        """As `call`, but one attempt. Raises: TransientError: another may succeed."""
        import obstore
        from obstore.exceptions import BaseError

        try:
            result = request(obstore, self._store)
        except (BaseError, FileNotFoundError) as e:
            raise self._error(f"{what} {self.where(key)}", e) from None
        self._answered = True
        return result

    def repeat(self, what: str, attempt: Callable[[], T]) -> T:
        """Return what `attempt` returns, which calls `once`."""
        return self._retry.run(what, attempt)

    def _error(self, what: str, e: Exception) -> Exception:
        import obstore.exceptions as theirs

        # Behind the empty line is the exception's inside. It may say more than a log should.
        said = str(e).partition("\n\nDebug source")[0]
        status = int(match[1]) if (match := _STATUS.search(said)) else 0
        code = match[1] if (match := _CODE.search(said)) else ""
        detail = match[1] if (match := _MESSAGE.search(said)) else said.partition("\n")[0]
        text = f"{what}: {' '.join(filter(None, [str(status or ''), code, detail]))}"
        token = "token request" in said
        if status:
            self._answered |= not token
        if code == "ContainerNotFound":
            return InvalidInputError(text, kind=ErrorKind.STORAGE_BUCKET_MISSING)
        if isinstance(e, theirs.AlreadyExistsError | theirs.PreconditionError):
            return ConflictError(text, kind=ErrorKind.OBJECT_EXISTS)
        if isinstance(e, FileNotFoundError) and not token:
            return NotFoundError(text, kind=ErrorKind.OBJECT_NOT_FOUND)
        # Azure refuses such a range. Azurite answers with the whole object, which obstore refuses.
        if status == 416 or "Wanted range starting at" in said:
            return RangeEndError()
        if status in (401, 403) or "Authentication" in code or (token and 400 <= status < 500):
            return UnavailableError(text, kind=ErrorKind.STORAGE_DENIED, hint=_KEY_HINT)
        failure = UnavailableError(text, kind=ErrorKind.STORAGE_UNAVAILABLE, hint=_UNREACHED)
        sent = "error sending request" in said or "HTTP error" in said
        if status in _TRANSIENT or (sent and self._answered):
            return TransientError(failure, throttled=status in (429, 503))
        return failure


@lru_cache(maxsize=64)
def _store_of(settings: AzureSettings) -> Any:
    """Return obstore's store. Those with equal settings share connections.

    Raises: UnavailableError: STORAGE_DENIED: no credential, or none that can be read.
    """
    from obstore.exceptions import BaseError
    from obstore.store import AzureStore

    given = {name: secret.reveal() for name, secret in settings.credentials or ()}
    where = f"{settings.endpoint}/{settings.container}"
    if not given and not any(os.environ.get(name) for name in _VARIABLES):
        raise UnavailableError(
            f"{where}: neither Hadoop's settings nor the environment tell who asks",
            kind=ErrorKind.STORAGE_DENIED,
            hint=_KEY_HINT,
        )
    config: Any = {
        **given,
        "account_name": settings.account,
        "container_name": settings.container,
        "endpoint": settings.endpoint,
    }
    try:
        return AzureStore(
            config=config,
            client_options={
                "allow_http": settings.endpoint.startswith("http:"),
                "connect_timeout": timedelta(seconds=5),
                "timeout": timedelta(seconds=300),  # for a request with its whole body
            },
            retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=60)},
        )
    except (BaseError, ValueError) as e:
        # Its text may have a part of the key.
        raise UnavailableError(
            f"{where}: the credential cannot be read: {type(e).__name__}",
            kind=ErrorKind.STORAGE_DENIED,
            hint=_KEY_HINT,
        ) from None
