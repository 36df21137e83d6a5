"""What lies in deploy/: manifests that parse, options that exist, metrics that are there."""

from __future__ import annotations

import json
import re
import shlex

import pytest
import typer

from bayestta import __version__
from bayestta.cli import app
from test_package import ROOT

pytest.importorskip("prometheus_client")
yaml = pytest.importorskip("yaml")

DEPLOY = ROOT / "deploy"


def documents(name: str) -> list[dict]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8")))


def check_command(words: list[str]) -> None:
    """`bayestta serve …` with options that the command has."""
    assert words[:2] == ["bayestta", "serve"]
    command = typer.main.get_command(app).commands["serve"]
    known = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known


def containers(part: object) -> list[dict]:
    """Every container of a manifest, at any depth."""
    if isinstance(part, list):
        return [each for item in part for each in containers(item)]
    if not isinstance(part, dict):
        return []
    own = [each for each in part.get("containers", []) if isinstance(each, dict)]
    return own + [
        each for key, item in part.items() if key != "containers" for each in containers(item)
    ]


def test_one_server_on_kubernetes():
    parts = {each["kind"]: each for each in documents("kubernetes.yaml")}
    assert set(parts) == {"Secret", "PersistentVolumeClaim", "StatefulSet", "Service"}
    assert all(each["apiVersion"] and each["metadata"]["name"] for each in parts.values())
    spec = parts["StatefulSet"]["spec"]
    assert spec["replicas"] == 1  # the store refuses a second
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    assert parts["Service"]["spec"]["selector"] == spec["selector"]["matchLabels"]
    pod = spec["template"]["spec"]
    (server,) = pod["containers"]
    assert server["image"] == f"bayestta:{__version__}"
    claim = pod["volumes"][0]["persistentVolumeClaim"]["claimName"]
    assert claim == parts["PersistentVolumeClaim"]["metadata"]["name"]
    key = server["env"][0]["valueFrom"]["secretKeyRef"]
    assert key["name"] == parts["Secret"]["metadata"]["name"]
    assert key["key"] in parts["Secret"]["stringData"]


def test_a_cluster_with_kuberay():
    parts = {each["kind"]: each for each in documents("kuberay.yaml")}
    assert set(parts) == {"PersistentVolumeClaim", "RayJob"}
    job = parts["RayJob"]["spec"]
    check_command(shlex.split(job["entrypoint"]))
    assert "--ray" in job["entrypoint"]
    found = containers(job)
    assert len(found) == 2
    for each in found:
        assert each["image"] == f"bayestta:{__version__}"
        assert each["volumeMounts"] == [{"name": "store", "mountPath": "/store"}]
    assert parts["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteMany"]


def test_the_container_file():
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    kinds = [line.split()[0] for line in lines]
    known = r"FROM|ENV|RUN|WORKDIR|COPY|ARG|USER|VOLUME|EXPOSE|HEALTHCHECK|CMD"
    assert kinds[0] == "FROM"
    assert all(re.fullmatch(known, kind) for kind in kinds)
    for line in lines:
        if line.startswith("COPY"):
            assert all((ROOT / name).exists() for name in line.split()[1:-1]), line
    check_command(json.loads(lines[-1].removeprefix("CMD ")))
    extras = re.findall(r"\.\[([\w,]+)\]", text)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert all(f"\n{extra} = [" in project for extra in extras[0].split(","))
    assert "USER bayestta" in text  # not root


def test_the_dashboard_shows_metrics_that_exist_and_all_of_the_conventions():
    from bayestta.serve.prometheus import Metrics

    board = json.loads((DEPLOY / "grafana.json").read_text(encoding="utf-8"))
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    asked = set(re.findall(r"bayestta_\w+", json.dumps(board)))
    metrics = Metrics()
    own = {name for each in metrics.registry.collect() for name in families(each.name, each.type)}
    assert asked <= own, asked - own
    shown = {re.sub("_bucket$", "", name) for name in asked}
    told = {name for name in own if not name.endswith(("_created", "_bucket", "_sum", "_count"))}
    assert told <= shown, told - shown


def families(name: str, kind: str) -> list[str]:
    """The series of a metric."""
    if kind == "histogram":
        return [name, f"{name}_bucket", f"{name}_sum", f"{name}_count"]
    return [f"{name}_total"] if kind == "counter" else [name]
