"""Azurite's Blob service on loopback, with its data below a directory of the test."""

from __future__ import annotations

import base64
import hashlib
import hmac
import urllib.error
import urllib.request
from email.utils import formatdate
from pathlib import Path

from integration.peers.azurite import parts
from integration.peers.loopback import Server

ACCOUNT = "devstoreaccount1"
# The key that every emulator of Azure's storage has. Azure's documentation names it.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
HOST = f"{ACCOUNT}.dfs.core.windows.net"


class Azurite(Server):
    """The service. It has one account, and takes what the account's key signed."""

    def __init__(self, work: Path) -> None:
        command = ["node", str(parts.SERVER), "--location", str(work / "data"), "--silent"]
        # It does not know the newest version of the protocol yet, which ABFS speaks.
        super().__init__(
            [*command, "--disableTelemetry", "--skipApiVersionCheck"], work / "azurite.log"
        )

    def arguments(self) -> list[str]:
        return ["--blobHost", "127.0.0.1", "--blobPort", str(self.port)]

    @property
    def hadoop(self) -> dict[str, str]:
        """Hadoop's settings that reach it. It has no DFS endpoint, so ABFS uses the Blob endpoint
        of accounts without a hierarchical namespace. A server that is down fails soon.
        """
        return {
            "fs.azure.abfs.endpoint": f"127.0.0.1:{self.port}",
            f"fs.azure.account.key.{HOST}": KEY,
            "fs.azure.account.hns.enabled": "false",
            "fs.azure.fns.account.service.type": "BLOB",
            "fs.azure.ingress.service.type": "BLOB",
            "fs.azure.always.use.https": "false",
            # Apache's HTTP client, the default, insists on TLS.
            "fs.azure.networking.library": "JDK_HTTP_URL_CONNECTION",
            "fs.azure.createRemoteFileSystemDuringInitialization": "true",
            "fs.azure.io.retry.max.retries": "2",
            "fs.azure.io.retry.backoff.interval": "500",
            "fs.azure.io.retry.max.backoff.interval": "1000",
        }

    def container(self, name: str) -> str:
        """Return the URI of a container. The first who opens it makes it."""
        return f"abfs://{name}@{HOST}"

    def make(self, name: str) -> str:
        """Make a container, unless it is there. Return its URI."""
        said = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2023-11-03"}
        headers = "".join(f"{key}:{value}\n" for key, value in said.items())
        place = f"/{ACCOUNT}/{name}"
        signed = f"PUT{chr(10) * 12}{headers}/{ACCOUNT}{place}\nrestype:container"
        digest = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
        said["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        url = f"{self.endpoint}{place}?restype=container"
        try:
            urllib.request.urlopen(urllib.request.Request(url, None, said, method="PUT")).close()
        except urllib.error.HTTPError as e:
            if e.code != 409:
                raise
        return self.container(name)
