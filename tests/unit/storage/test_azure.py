"""Azure without Hadoop, against a service on loopback.

`make peer-azurite` has an emulator, and what Hadoop's ABFS wrote.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.peers.loopback import free_port, write_site
from millpond.cli.main import main
from millpond.config import resolve
from millpond.errors import ConflictError, ErrorKind, MillpondError
from millpond.format.roots import parse_root
from millpond.storage import Storage, open_storage
from millpond.storage import hadoop as hadoop_module
from millpond.storage.azure import AzureStorage
from millpond.storage.azure_settings import azure_settings
from millpond.storage.growing import begin_growing
from millpond.storage.hadoop import HadoopStorage
from millpond.storage.settings import storage_settings
from millpond.testing.storage_contract import StorageContract
from tests.azure_server import HOST, KEY, AzureServer, LostAnswerError, know_nobody

SITE = f"abfs://container@{HOST}"


@pytest.fixture(autouse=True)
def _no_credentials_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    know_nobody(monkeypatch)


@pytest.fixture(scope="module")
def running() -> Iterator[AzureServer]:
    with AzureServer().running() as server:
        yield server


@pytest.fixture
def server(
    running: AzureServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[AzureServer]:
    site(tmp_path, monkeypatch, running.hadoop)
    running.blobs.clear()
    running.requests.clear()
    yield running
    running.fault = lambda method, name: None


def site(folder: Path, monkeypatch: pytest.MonkeyPatch, hadoop: dict[str, str]) -> None:
    (folder / "conf").mkdir(exist_ok=True)
    write_site(folder / "conf" / "core-site.xml", hadoop)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(folder / "conf"))


@pytest.fixture
def storage(server: AzureServer) -> Storage:
    return open_storage(f"{SITE}/the checkpoint % of it")


class TestContract(StorageContract):
    @pytest.fixture
    def storage(self, server: AzureServer) -> Storage:
        found = open_storage(f"{SITE}/the checkpoint % of it")
        assert isinstance(found, AzureStorage)
        return found


def test_a_put_is_one_request(storage: Storage, server: AzureServer) -> None:
    storage.put_bytes("a", b"x", if_absent=True)
    assert server.requests == ["PUT the checkpoint % of it/a"]


def test_a_put_whose_answer_gets_lost_has_made_its_object(
    storage: Storage, server: AzureServer
) -> None:
    storage.put_bytes("before", b"")  # a host that never answered is not asked twice
    faults = iter([LostAnswerError()])

    def lose(method: str, name: str) -> None:
        if method == "PUT" and (fault := next(faults, None)) is not None:
            raise fault

    server.fault = lose
    storage.put_bytes("a", b"mine", if_absent=True)
    assert storage.read("a") == b"mine"
    assert [line.partition(" ")[0] for line in server.requests[1:]] == ["PUT", "PUT", "HEAD", "GET"]


def test_another_writer_was_first_while_the_answer_got_lost(
    storage: Storage, server: AzureServer
) -> None:
    storage.put_bytes("before", b"")
    numbers = itertools.count()

    def first(method: str, name: str) -> tuple[int, str] | None:
        if method == "PUT" and next(numbers) == 0:
            server.blobs[name] = (b"theirs", {"x-ms-meta-millpond_put": "another"})
            return 500, "InternalError"
        return None

    server.fault = first
    with pytest.raises(ConflictError):
        storage.put_bytes("a", b"mine", if_absent=True)
    assert storage.read("a") == b"theirs"


def test_what_fails_once_is_asked_again(storage: Storage, server: AzureServer) -> None:
    storage.put_bytes("a", b"x")
    for status, code in ((503, "ServerBusy"), (500, "InternalError"), (429, "TooMany")):
        faults = iter([(status, code)])
        server.fault = lambda method, name, faults=faults: next(faults, None)  # type: ignore[misc]
        assert storage.read("a") == b"x"


def test_a_large_file_goes_in_parts(
    storage: Storage, server: AzureServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service here has no parts: it sees who asks for them."""
    monkeypatch.setattr("millpond.storage.azure._IN_PARTS_BYTES", 10)
    (tmp_path / "file").write_bytes(b"x" * 100)
    server.fault = lambda method, name: (403, "Forbidden")
    with pytest.raises(MillpondError):
        storage.put_file("a", str(tmp_path / "file"))
    server.fault = lambda method, name: None
    storage.put_file("a", str(tmp_path / "file"), if_absent=True)
    assert storage.read("a") == b"x" * 100


def test_a_local_folder_that_is_gone_is_no_missing_object(
    storage: Storage, server: AzureServer, tmp_path: Path
) -> None:
    storage.put_bytes("a", b"x")
    with pytest.raises(MillpondError) as lost:
        storage.get_to_file("a", str(tmp_path / "gone" / "a"))
    assert lost.value.kind is ErrorKind.LOCAL_FILES_LOST


def test_a_file_that_grows_is_sent_when_it_is_complete(
    storage: Storage, server: AzureServer, tmp_path: Path
) -> None:
    """As the guide of real-time mode says. obstore cannot send a file's first block last."""
    asked = len(server.requests)
    assert (
        begin_growing(storage, "state/0/0/1.changelog", str(tmp_path / "staged"), 1 << 20) is None
    )
    assert len(server.requests) == asked


def test_many_deletions_are_one_request(storage: Storage, server: AzureServer) -> None:
    keys = [f"k/{number}" for number in range(300)]
    server.blobs.update({f"the checkpoint % of it/{key}": (b"", {}) for key in keys})
    storage.delete(keys)
    assert server.blobs == {} and len(server.requests) == 2


def test_a_deletion_that_is_refused(storage: Storage, server: AzureServer) -> None:
    """The answer to the request of many is good: one of the answers in it refuses."""
    storage.put_bytes("a", b"")
    server.fault = lambda method, name: (403, "Denied") if method == "DELETE" else None
    with pytest.raises(MillpondError, match=r"delete http.*: 403 ") as caught:
        storage.delete(["a"])
    assert caught.value.kind is ErrorKind.STORAGE_DENIED
    assert "fs.azure.account.key" in caught.value.hint


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_deletion_that_fails_once_is_asked_again(
    storage: Storage, server: AzureServer, status: int
) -> None:
    for key in ("a", "b", "c"):
        storage.put_bytes(key, b"")
    faults = iter([None, (status, "Busy")])
    server.fault = lambda method, name: next(faults, None) if method == "DELETE" else None
    storage.delete(["a", "b", "c"])
    assert server.blobs == {}


def test_folders_of_hadoop_are_no_objects(storage: Storage, server: AzureServer) -> None:
    folder = (b"", {"x-ms-meta-hdi_isfolder": "true"})
    root = "the checkpoint % of it"
    for name in (root, f"{root}/state", f"{root}/state/0", f"{root}/empty"):
        server.blobs[name] = folder
    storage.put_bytes("state/0/1", b"")
    storage.put_bytes("state/0-1", b"")
    assert [info.key for info in storage.list("")] == ["state/0-1", "state/0/1"]
    for key in ("state", "empty"):
        for call in (storage.read, storage.stat, lambda key: storage.read_range(key, 0, 1)):
            with pytest.raises(MillpondError) as caught:
                call(key)
            assert caught.value.kind is ErrorKind.OBJECT_NOT_FOUND


@pytest.mark.parametrize(
    ("status", "code", "kind", "hint"),
    [
        (404, "ContainerNotFound", ErrorKind.STORAGE_BUCKET_MISSING, ""),
        (403, "AuthenticationFailed", ErrorKind.STORAGE_DENIED, "fs.azure.account.key"),
        (401, "NoAuthenticationInformation", ErrorKind.STORAGE_DENIED, "SAS"),
        (400, "InvalidAuthenticationInfo", ErrorKind.STORAGE_DENIED, "may have expired"),
        (400, "Odd", ErrorKind.STORAGE_UNAVAILABLE, ""),
    ],
)
def test_refusals(
    storage: Storage, server: AzureServer, status: int, code: str, kind: ErrorKind, hint: str
) -> None:
    server.fault = lambda method, name: (status, code)
    for call in (
        lambda: list(storage.list("")),
        lambda: storage.read("a"),
        lambda: storage.put_bytes("a", b"x"),
    ):
        server.requests.clear()
        with pytest.raises(
            MillpondError, match=f"127.0.0.1:{server.port}.*{code} It says no"
        ) as caught:
            call()
        assert caught.value.kind is kind and hint in caught.value.hint
        assert "More" not in str(caught.value) and "RetryError" not in str(caught.value)
        assert len(server.requests) == 1


def test_a_host_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: AzureServer
) -> None:
    hadoop = {**server.hadoop, "fs.azure.abfs.endpoint": f"127.0.0.1:{free_port()}"}
    site(tmp_path, monkeypatch, hadoop)
    with pytest.raises(MillpondError, match=hadoop["fs.azure.abfs.endpoint"]) as caught:
        open_storage(f"{SITE}/x").read("a")
    assert caught.value.kind is ErrorKind.STORAGE_UNAVAILABLE
    assert "storage.azure.client" in caught.value.hint
    assert "where obstore is not installed" in caught.value.hint


@pytest.mark.parametrize("key", ["", "!! no key"])
def test_without_a_credential_nothing_is_asked(
    server: AzureServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    site(tmp_path, monkeypatch, {**server.hadoop, f"fs.azure.account.key.{HOST}": key})
    with pytest.raises(MillpondError) as caught:
        open_storage(f"{SITE}/x").read("a")
    assert caught.value.kind is ErrorKind.STORAGE_DENIED
    assert "AZURE_STORAGE_ACCOUNT_KEY" in caught.value.hint
    assert not key or key not in str(caught.value)
    assert server.requests == []


@pytest.fixture
def agent() -> Iterator[list[str]]:
    """This process is an agent beside the job's JVM. Yields what the JVM was asked."""
    asked: list[str] = []

    def files(method: str, request: str) -> str:
        asked.append(method)
        return json.dumps({"ok": {}})

    hadoop_module.use(files)
    yield asked
    hadoop_module.use(None)


def test_who_has_no_obstore_asks_hadoop(
    server: AzureServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    assert isinstance(open_storage(f"{SITE}/x"), HadoopStorage)


def test_who_has_the_jobs_jvm_and_no_settings_asks_hadoop(
    server: AzureServer, agent: list[str]
) -> None:
    assert isinstance(open_storage(f"{SITE}/x"), HadoopStorage)


def test_an_agent_reaches_it_as_the_jobs_settings_say(
    server: AzureServer, agent: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR")
    options = resolve({})
    found = open_storage(f"{SITE}/x", storage_settings(options, server.hadoop))
    assert isinstance(found, AzureStorage)
    found.put_bytes("a", b"text", if_absent=True)
    assert found.read("a") == b"text" and list(server.blobs) == ["x/a"] and agent == []
    by_hadoop = storage_settings(resolve({"storage.azure.client": "hadoop"}), server.hadoop)
    assert isinstance(open_storage(f"{SITE}/x", by_hadoop), HadoopStorage)


@pytest.mark.parametrize(
    "changed",
    [
        {f"fs.azure.account.key.{HOST}": ""},
        {f"fs.azure.account.auth.type.{HOST}": "Custom"},
        {"fs.azure.encryption.encoded.client-provided-key": "a2V5"},
    ],
)
def test_an_agent_leaves_to_hadoop_what_it_cannot_do(
    server: AzureServer,
    agent: list[str],
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, str],
) -> None:
    """Above all, it is not somebody else than the job, whom its environment names."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    settings = storage_settings(resolve({}), {**server.hadoop, **changed})
    assert isinstance(open_storage(f"{SITE}/x", settings), HadoopStorage)


def test_an_agent_puts_no_large_file_through_its_memory(
    server: AzureServer, agent: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put of parts has no condition. Where the job's JVM has ABFS, it puts the file."""
    monkeypatch.setattr("millpond.storage.azure._IN_MEMORY_BYTES", 10)
    storage = open_storage(f"{SITE}/x", storage_settings(resolve({}), server.hadoop))
    (tmp_path / "file").write_bytes(b"eleven byte")
    storage.put_file("a", str(tmp_path / "file"))
    assert agent == [] and list(server.blobs) == ["x/a"]
    storage.put_file("b", str(tmp_path / "file"), if_absent=True)
    assert agent == ["put"] and list(server.blobs) == ["x/a"]
    error = {"class": "ClassNotFoundException", "message": "fs.azurebfs.Abfs not found"}
    hadoop_module.use(lambda method, request: json.dumps({"error": error}))
    storage = open_storage(f"{SITE}/x", storage_settings(resolve({}), server.hadoop))
    storage.put_file("b", str(tmp_path / "file"), if_absent=True)
    assert storage.read("b") == b"eleven byte"


def test_a_command(server: AzureServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["storage", "check", "--quick", f"{SITE}/x"]) == 0
    assert server.blobs == {}
    server.fault = lambda method, name: (403, "AuthenticationFailed")
    assert main(["checkpoint", "show", f"{SITE}/x"]) == 1
    assert "STORAGE_DENIED: get http://" in capsys.readouterr().err


# ---- settings


def settings_of(root: str = f"{SITE}/x", **hadoop: str) -> dict[str, str] | None:
    """Return the credentials. A name's dots are written as underscores."""
    found = azure_settings(
        parse_root(root), {name.replace("_", "."): value for name, value in hadoop.items()}
    )
    if found is None:
        return None
    return {name: secret.reveal() for name, secret in found.credentials or ()}


_OAUTH = {"fs_azure_account_auth_type": "OAuth", "fs_azure_account_oauth2_client_id": "me"}
_PROVIDER = "fs_azure_account_oauth_provider_type"
_CLASS = "org.apache.hadoop.fs.azurebfs.oauth2."


def test_credentials_as_hadoop_has_them() -> None:
    assert settings_of() == {}
    assert settings_of(fs_azure_account_key=KEY) == {"account_key": KEY}
    own = azure_settings(
        parse_root(SITE), {"fs.azure.account.key": "all", f"fs.azure.account.key.{HOST}": "own"}
    )
    assert own is not None and own.credentials is not None
    assert own.credentials[0][1].reveal() == "own" and "own" not in repr(own)
    sas = {"fs_azure_account_auth_type": "SAS", "fs_azure_sas_fixed_token": "?sv=1&sig=x"}
    assert settings_of(**sas) == {"sas_key": "sv=1&sig=x"}
    secret = {
        **_OAUTH,
        _PROVIDER: f"{_CLASS}ClientCredsTokenProvider",
        "fs_azure_account_oauth2_client_secret": "word",
        "fs_azure_account_oauth2_client_endpoint": "https://login.x/tenant/oauth2/v2.0/token",
    }
    assert settings_of(**secret) == {
        "credential_type": "client_secret",
        "client_id": "me",
        "client_secret": "word",
        "authority_host": "https://login.x",
        "tenant_id": "tenant",
    }
    assert settings_of(**{**_OAUTH, _PROVIDER: f"{_CLASS}MsiTokenProvider"}) == {
        "credential_type": "managed_identity",
        "client_id": "me",
    }
    workload = {
        **_OAUTH,
        _PROVIDER: f"{_CLASS}WorkloadIdentityTokenProvider",
        "fs_azure_account_oauth2_msi_tenant": "tenant",
        "fs_azure_account_oauth2_token_file": "/file",
    }
    assert settings_of(**workload) == {
        "credential_type": "workload_identity",
        "client_id": "me",
        "tenant_id": "tenant",
        "federated_token_file": "/file",
    }


@pytest.mark.parametrize(
    "hadoop",
    [
        {"fs_azure_account_auth_type": "Custom"},
        {"fs_azure_account_keyprovider": "some.Class"},
        {"fs_azure_account_auth_type": "SAS"},
        {
            "fs_azure_account_auth_type": "SAS",
            "fs_azure_sas_fixed_token": "sv=1",
            "fs_azure_sas_token_provider_type": "some.Class",
        },
        {"fs_azure_account_key": KEY, "fs_azure_encryption_context_provider_type": "some.Class"},
        {**_OAUTH, _PROVIDER: f"{_CLASS}RefreshTokenBasedTokenProvider"},
        {**_OAUTH, _PROVIDER: f"{_CLASS}ClientCredsTokenProvider"},
    ],
)
def test_what_only_hadoops_client_can_do(hadoop: dict[str, str]) -> None:
    assert settings_of(**hadoop) is None


def test_endpoints() -> None:
    def endpoint(root: str, **hadoop: str) -> str:
        found = azure_settings(
            parse_root(root), {name.replace("_", "."): value for name, value in hadoop.items()}
        )
        assert found is not None
        return found.endpoint

    assert endpoint("abfss://c@a.dfs.core.windows.net/x") == "https://a.blob.core.windows.net"
    assert (
        endpoint("abfs://c@a.dfs.core.chinacloudapi.cn") == "https://a.blob.core.chinacloudapi.cn"
    )
    plain = {"fs_azure_always_use_https": "false", "fs_azure_abfs_endpoint": "h:1"}
    assert endpoint("abfs://c@a.dfs.x.net", **plain) == "http://h:1/a"
    assert endpoint("abfss://c@a.dfs.x.net", **plain) == "https://h:1/a"


@pytest.mark.parametrize("root", ["abfs://container/x", "abfs:///x", "abfss://c@account/x"])
def test_no_container_or_no_account(root: str, server: AzureServer) -> None:
    with pytest.raises(MillpondError, match="no container and account") as caught:
        open_storage(root)
    assert caught.value.kind is ErrorKind.INVALID_ARGUMENT and "abfss://" in caught.value.hint


def test_a_site_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "core-site.xml").write_text("<configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    with pytest.raises(MillpondError, match=r"core-site\.xml") as caught:
        open_storage(f"{SITE}/x")
    assert caught.value.kind is ErrorKind.STORAGE_MISCONFIGURED
