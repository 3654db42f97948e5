"""Which of Spark's Hadoop settings a JVM hands to the agent, which reaches storages without Hadoop.

The place of the state may be written in `millpond/storage.json` alone, which only the agent reads.
So the JVM hands over what is set for any account.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from integration.harness import millponds_own

pytestmark = [pytest.mark.spark, millponds_own]

_HOST = "pond.dfs.core.windows.net"


def _conf(spark: SparkSession, settings: dict[str, str]) -> Any:
    jvm: Any = spark.sparkContext._jvm
    conf = jvm.org.apache.hadoop.conf.Configuration()
    for name, value in settings.items():
        conf.set(name, value)
    return conf


def _handed(spark: SparkSession, conf: Any) -> dict[str, str]:
    jvm: Any = spark.sparkContext._jvm
    own = jvm.org.apache.spark.sql.millpond
    request = own.base.Json.obj()
    own.agent.StorageAccess.hand(request, conf)
    handed: dict[str, str] = json.loads(own.base.Json.text(request)).get("hadoop", {})
    return handed


def test_settings_of_every_account_of_azure(spark: SparkSession) -> None:
    settings = {
        f"fs.azure.account.key.{_HOST}": "c2VjcmV0",
        f"fs.azure.account.auth.type.{_HOST}": "SharedKey",
        "fs.azure.account.oauth2.client.id": "someone",
    }
    others = {"fs.azure.account.keys": "no setting", "fs.azure.enable.flush": "true"}
    assert _handed(spark, _conf(spark, {**settings, **others})) == settings


def test_a_secret_of_an_account_in_a_credential_store(spark: SparkSession, tmp_path: Path) -> None:
    jvm: Any = spark.sparkContext._jvm
    place = f"localjceks://file{tmp_path}/secrets.jceks"
    conf = _conf(spark, {"hadoop.security.credential.provider.path": place})
    alias = jvm.org.apache.hadoop.security.alias
    store = alias.CredentialProviderFactory.getProviders(conf).get(0)
    name = f"fs.azure.account.key.{_HOST}"
    secret = "c2VjcmV0"
    gateway: Any = spark.sparkContext._gateway
    chars = gateway.new_array(jvm.char, len(secret))
    for i, char in enumerate(secret):
        chars[i] = char
    store.createCredentialEntry(name, chars)
    store.flush()
    assert _handed(spark, conf) == {name: secret}


def test_nothing_is_set(spark: SparkSession) -> None:
    assert _handed(spark, _conf(spark, {})) == {}
