"""What conf/kubernetes.conf and docs/guides/cluster.md say of pods, against the pods that Spark's
own code makes of the settings.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from integration.jvm import REPO, compiled, java_command

pytestmark = [pytest.mark.spark, pytest.mark.peer, pytest.mark.sample]

_MIB = {"Mi": 1, "Gi": 1024}
_JOB = "local:///opt/jobs/job.py"


@dataclass(frozen=True)
class SparkPod:
    """A rendered pod."""

    json: dict[str, Any]

    @property
    def container(self) -> dict[str, Any]:
        """Return Spark's container."""
        names = ("spark-kubernetes-driver", "spark-kubernetes-executor")
        found = [c for c in self.json["spec"]["containers"] if c["name"] in names]
        assert len(found) == 1
        return dict(found[0])

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables that have a value in the pod."""
        return {e["name"]: e["value"] for e in self.container["env"] if "value" in e}

    @property
    def secrets(self) -> dict[str, tuple[str, str]]:
        """Return the name and key of the secret of each environment variable that has one."""
        refs = {e["name"]: e.get("valueFrom", {}) for e in self.container["env"]}
        return {
            name: (ref["secretKeyRef"]["name"], ref["secretKeyRef"]["key"])
            for name, ref in refs.items()
            if "secretKeyRef" in ref
        }

    @property
    def memory_mib(self) -> int:
        """Return the limit of the container's memory, which must be its request too."""
        resources = self.container["resources"]
        assert resources["limits"]["memory"] == resources["requests"]["memory"]
        number, unit = re.fullmatch(r"(\d+)(\w+)", resources["limits"]["memory"]).groups()  # type: ignore[union-attr]
        return int(number) * _MIB[unit]

    def volume_at(self, path: str) -> dict[str, Any]:
        """Return the volume that is mounted at a path."""
        (name,) = [m["name"] for m in self.container["volumeMounts"] if m["mountPath"] == path]
        (volume,) = [v for v in self.json["spec"]["volumes"] if v["name"] == name]
        return dict(volume)


@dataclass(frozen=True)
class Pods:
    """What Spark makes of some settings: in cluster mode, and an executor in client mode."""

    driver: SparkPod
    executor: SparkPod
    executor_of_client: SparkPod


def documented(*commented: str) -> dict[str, str]:
    """Return the settings of conf/kubernetes.conf.

    Args:
        commented: parts of the names of settings that are commented out there, to be added.
    """
    settings: dict[str, str] = {}
    for line in (REPO / "conf" / "kubernetes.conf").read_text().splitlines():
        name, _, value = line.removeprefix("# ").partition(" ")
        wanted = not line.startswith("#") or any(part in name for part in commented)
        if name.startswith("spark.") and wanted:
            settings[name] = value.strip()
    return settings


def render(work: Path, settings: Mapping[str, str]) -> Pods:
    """Return the pods that Spark makes."""
    properties = work / "spark.conf"
    properties.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    classes = compiled(Path(__file__).with_name("scala"))
    main = "org.apache.spark.deploy.k8s.Render"
    done = subprocess.run(
        java_command(main, [str(properties), _JOB], classpath=[classes], heap="256m"),
        cwd=REPO,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return Pods(*(SparkPod(json.loads(line)) for line in done.stdout.splitlines()))


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> Pods:
    """Render the documented settings as they are."""
    return render(tmp_path_factory.mktemp("pods"), documented())


def test_the_limit_of_an_executor_holds_heap_and_overhead(pods: Pods) -> None:
    """The budget of the memory tier, 30 % of the heap, fits into the overhead."""
    settings = documented()
    heap, overhead = (
        int(settings[f"spark.executor.{name}"].removesuffix("g")) * 1024
        for name in ("memory", "memoryOverhead")
    )
    assert pods.executor.memory_mib == pods.executor_of_client.memory_mib == heap + overhead
    assert pods.executor.environment["SPARK_EXECUTOR_MEMORY"] == f"{heap}m"
    assert overhead > 0.3 * heap + 1024


def test_the_overhead_by_default(tmp_path: Path) -> None:
    settings = documented()
    del settings["spark.executor.memoryOverhead"]
    made = render(tmp_path, settings)
    assert made.driver.memory_mib == int(1024 * 1.4)
    assert made.executor.memory_mib == int(8192 * 1.4)
    assert made.executor_of_client.memory_mib == int(8192 * 1.1)


def test_all_pods_mount_the_spark_checkpoint_at_one_place(pods: Pods) -> None:
    for pod in (pods.driver, pods.executor):
        claim = pod.volume_at("/checkpoints")["persistentVolumeClaim"]
        assert (claim["claimName"], claim["readOnly"]) == ("checkpoints", False)


def test_local_state_lies_on_the_volume_of_the_settings(pods: Pods) -> None:
    """Millpond's folder is below Spark's local directory, which SPARK_LOCAL_DIRS names."""
    assert pods.executor.environment["SPARK_LOCAL_DIRS"] == "/var/spark"
    assert pods.executor.volume_at("/var/spark")["emptyDir"]["sizeLimit"] == "50Gi"


def test_local_state_without_a_volume_of_its_own(tmp_path: Path) -> None:
    """Spark mounts a folder of the node's disk, without a limit of its size."""
    settings = {k: v for k, v in documented().items() if "spark-local-dir" not in k}
    executor = render(tmp_path, settings).executor
    place = executor.environment["SPARK_LOCAL_DIRS"]
    assert place.startswith("/var/data/spark-")
    assert executor.volume_at(place)["emptyDir"] == {}


def test_a_disk_for_each_executor(tmp_path: Path) -> None:
    both = documented("persistentVolumeClaim.spark-local-dir")
    settings = {k: v for k, v in both.items() if "emptyDir" not in k}
    executor = render(tmp_path, settings).executor
    assert executor.environment["SPARK_LOCAL_DIRS"] == "/var/spark"
    claim = executor.volume_at("/var/spark")["persistentVolumeClaim"]["claimName"]
    assert claim.startswith(executor.json["metadata"]["name"]), "a claim of this executor"


def test_local_state_in_memory_has_no_room_of_its_own(tmp_path: Path) -> None:
    """With tmpfs the local files of the state count as the pod's memory."""
    settings = {k: v for k, v in documented().items() if "spark-local-dir" not in k}
    executor = render(tmp_path, settings | {"spark.kubernetes.local.dirs.tmpfs": "true"}).executor
    place = executor.environment["SPARK_LOCAL_DIRS"]
    assert executor.volume_at(place)["emptyDir"]["medium"] == "Memory"
    assert executor.memory_mib == 13 * 1024, "no more than without"


def test_the_python_and_the_jar_of_the_image(pods: Pods) -> None:
    """Spark names the Python in the driver's pod. Executors get it as a setting, and the image says
    the same.
    """
    python, jar = documented()["spark.pyspark.python"], documented()["spark.jars"]
    image = (REPO / "conf" / "Dockerfile").read_text()
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        assert pods.driver.environment[name] == python
        assert name not in pods.executor.environment
        assert f"{name}={python}" in image
    assert re.search(rf" {re.escape(jar.removeprefix('local://'))}( |$)", image, re.MULTILINE)


def test_the_pod_template(tmp_path: Path) -> None:
    """The group of the volumes is that of the template. The rest stays as it was."""
    made = render(tmp_path, documented("podTemplateFile"))
    for pod in (made.driver, made.executor, made.executor_of_client):
        assert pod.json["spec"]["securityContext"]["fsGroup"] == 185
    assert made.executor.memory_mib == 13 * 1024
    assert made.executor.environment["SPARK_LOCAL_DIRS"] == "/var/spark"


def test_credentials_of_s3_from_a_secret(tmp_path: Path) -> None:
    """Each pod has them in its environment, where Millpond's agent finds them."""
    page = (REPO / "docs" / "guides" / "cluster.md").read_text()
    said = dict(re.findall(r"^ *(spark\.kubernetes\.\S+\.secretKeyRef\.\S+) +(\S+)$", page, re.M))
    made = render(tmp_path, documented() | said)
    for pod in (made.driver, made.executor):
        assert pod.secrets == {
            "AWS_ACCESS_KEY_ID": ("s3", "access-key"),
            "AWS_SECRET_ACCESS_KEY": ("s3", "secret-key"),
        }


def test_the_service_account_of_executors(tmp_path: Path) -> None:
    """Its role may be what S3 asks for."""
    name = "spark.kubernetes.authenticate.executor.serviceAccountName"
    assert f"`{name}`" in (REPO / "docs" / "guides" / "cluster.md").read_text()
    made = render(tmp_path, documented() | {name: "state"})
    assert made.executor.json["spec"]["serviceAccountName"] == "state"
    assert "serviceAccountName" not in made.driver.json["spec"]
