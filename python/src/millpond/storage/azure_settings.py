"""How to reach Azure's storage without Hadoop, from Hadoop's settings (`fs.azure.*`).

Pure: reads no environment. Of what Hadoop's ABFS client takes, this knows what needs none of its
classes: a key, a SAS token, and OAuth by a client secret, a managed identity, or a token file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from millpond.errors import ErrorKind, InvalidInputError
from millpond.format.roots import RootUri
from millpond.storage.settings import Secret

SCHEMES = ("abfs", "abfss")
_OAUTH = "fs.azure.account.oauth2"
# What is encrypted by a key that each request carries.
_ENCRYPTION = (
    "fs.azure.encryption.encoded.client-provided-key",
    "fs.azure.encryption.context.provider.type",
)
# .../<tenant>/oauth2/token, with or without v2.0
_TOKEN_ENDPOINT = re.compile(r"(https?://[^/]+)/([^/]+)/oauth2/(?:v2\.0/)?token/?")


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureSettings:
    """One container, and who asks.

    credentials: names of `obstore.store.AzureConfig`; None: the process's environment (`AZURE_*`).
    """

    account: str
    container: str
    endpoint: str
    credentials: tuple[tuple[str, Secret], ...] | None


def azure_settings(root: RootUri, hadoop: Mapping[str, str]) -> AzureSettings | None:
    """Return how to reach the container of `root`.

    Args:
        root: `abfss://container@account.dfs.core.windows.net/path`.
        hadoop: Hadoop's settings.
    Returns: None if the settings name what only Hadoop's client can do.
    Raises: InvalidInputError: INVALID_ARGUMENT: the URI names no container or no account.
    """
    container, at, host = root.authority.partition("@")
    account, dot, _ = host.partition(".")
    if not (container and at and account and dot):
        raise InvalidInputError(
            f"no container and account in {root.scheme}://{root.authority}",
            kind=ErrorKind.INVALID_ARGUMENT,
            hint="Write abfss://<container>@<account>.dfs.core.windows.net/<path>.",
        )
    known = _Known(hadoop, host)
    credentials = _credentials(known)
    if credentials is None or any(map(known.get, _ENCRYPTION)):
        return None
    return AzureSettings(
        account=account,
        container=container,
        endpoint=_endpoint(root.scheme, account, host, known),
        credentials=tuple((name, Secret(text)) for name, text in credentials.items()) or None,
    )


class _Known:
    """Hadoop's settings, of which those with the account's host win."""

    def __init__(self, hadoop: Mapping[str, str], host: str) -> None:
        self._hadoop, self._host = hadoop, host

    def get(self, name: str) -> str:
        return (
            self._hadoop.get(f"{name}.{self._host}", "").strip()
            or self._hadoop.get(name, "").strip()
        )


def _endpoint(scheme: str, account: str, host: str, known: _Known) -> str:
    plain = scheme == "abfs" and known.get("fs.azure.always.use.https") == "false"
    protocol = "http" if plain else "https"
    # An emulator, or a private address: the account is the first part of the path.
    other = known.get("fs.azure.abfs.endpoint")
    if other:
        return f"{protocol}://{other}/{account}"
    return f"{protocol}://{host.replace('.dfs.', '.blob.', 1)}"


def _credentials(known: _Known) -> dict[str, str] | None:
    kind = known.get("fs.azure.account.auth.type") or "SharedKey"
    if kind == "SharedKey":
        if known.get("fs.azure.account.keyprovider"):
            return None
        key = known.get("fs.azure.account.key")
        return {"account_key": key} if key else {}
    if kind == "SAS":
        token = known.get("fs.azure.sas.fixed.token")
        if known.get("fs.azure.sas.token.provider.type"):
            return None
        return {"sas_key": token.removeprefix("?")} if token else None
    return _oauth(known) if kind == "OAuth" else None


def _oauth(known: _Known) -> dict[str, str] | None:
    provider = known.get("fs.azure.account.oauth.provider.type").rpartition(".")[2]
    client = known.get(f"{_OAUTH}.client.id")
    if provider == "ClientCredsTokenProvider":
        endpoint = _TOKEN_ENDPOINT.fullmatch(known.get(f"{_OAUTH}.client.endpoint"))
        secret = known.get(f"{_OAUTH}.client.secret")
        if endpoint is None or not client or not secret:
            return None
        return {
            "credential_type": "client_secret",
            "client_id": client,
            "client_secret": secret,
            "authority_host": endpoint[1],
            "tenant_id": endpoint[2],
        }
    if provider == "MsiTokenProvider":
        found = {"credential_type": "managed_identity"}
        return {**found, "client_id": client} if client else found
    if provider == "WorkloadIdentityTokenProvider":
        tenant, file = known.get(f"{_OAUTH}.msi.tenant"), known.get(f"{_OAUTH}.token.file")
        if not (client and tenant and file):
            return None
        return {
            "credential_type": "workload_identity",
            "client_id": client,
            "tenant_id": tenant,
            "federated_token_file": file,
        }
    return None
