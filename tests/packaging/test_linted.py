"""What other people's tools say of the files in deploy/ and .github/. `make check-deploy` brings most of them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "tenure"
BROUGHT = ROOT / ".venv-deploy" / "bin"
RULES = Path(__file__).parent / "alerts_test.yml"


def tool(name: str, otherwise: str = "`make check-deploy` brings it") -> str:
    """The path of a program. Skips the test where it is not there."""
    found = shutil.which(name, path=os.pathsep.join([str(BROUGHT), os.environ.get("PATH", "")]))
    if found is None:
        pytest.skip(f"{name} is not there: {otherwise}")
    return found


def run(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


def rendered(*settings: str) -> list[dict[str, Any]]:
    """What the chart makes of these values, by helm itself."""
    done = run(tool("helm"), "template", "jobs", str(CHART), *settings)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def test_helm_finds_nothing_against_the_chart() -> None:
    done = run(tool("helm"), "lint", "--strict", str(CHART))

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_chart_makes_a_migration_and_a_deployment_for_each_group_of_workers() -> None:
    groups = [
        {"name": "mail", "replicas": 3, "options": ["--queue", "mail"], "resources": {"limits": {"memory": "1Gi"}}},
        {"name": "scaled"},  # an autoscaler sets the number of its replicas
    ]

    migrate, *workers = sorted(
        rendered("--set-json", f"workers={json.dumps(groups)}", "--set", "image.tag=9.8,app=shop.tasks:queue"),
        key=lambda one: str(one["kind"] != "Job") + str(one["metadata"]["name"]),
    )

    assert (migrate["kind"], migrate["metadata"]["annotations"]["helm.sh/hook"]) == ("Job", "pre-install,pre-upgrade")
    assert [one["metadata"]["name"] for one in workers] == ["jobs-worker-mail", "jobs-worker-scaled"]
    assert [one["spec"].get("replicas") for one in workers] == [3, None]
    for one in [migrate, *workers]:
        pod = one["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert container["image"] == "tenure:9.8"
        assert container["env"][0]["valueFrom"]["secretKeyRef"] == {"name": "tenure-url", "key": "TENURE_URL"}
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert pod["securityContext"] == {
            "runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"},
        }  # fmt: skip
    for one in workers:
        wanted = one["spec"]["selector"]["matchLabels"].items()
        assert wanted <= one["spec"]["template"]["metadata"]["labels"].items()
    args = [one["spec"]["template"]["spec"]["containers"][0]["args"] for one in workers]
    assert args == [["worker", "shop.tasks:queue", "--queue", "mail"], ["worker", "shop.tasks:queue"]]
    assert [one["kind"] for one in rendered("--set", "migrate=false")] == ["Deployment"]


def test_the_chart_gives_handlers_their_keys_and_pulls_from_a_private_registry() -> None:
    """A worker had TENURE_URL and nothing else, so an agent's worker had no key of its model."""
    settings = {
        "env": [{"name": "STAGE", "value": "production"}],
        "envFrom": [{"secretRef": {"name": "shop-keys"}}],
        "image": {"repository": "registry.example.com/shop", "pullSecrets": [{"name": "registry"}]},
    }

    given = [f"{name}={json.dumps(value)}" for name, value in settings.items()]

    made = rendered(*(word for one in given for word in ("--set-json", one)))

    pods = {one["kind"]: one["spec"]["template"]["spec"] for one in made}
    assert [pod["imagePullSecrets"] for pod in pods.values()] == [[{"name": "registry"}]] * 2
    (worker,) = pods["Deployment"]["containers"]
    assert [one["name"] for one in worker["env"]] == ["TENURE_URL", "STAGE"]
    assert (worker["env"][1:], worker["envFrom"]) == (settings["env"], settings["envFrom"])
    (migrate,) = pods["Job"]["containers"]
    assert [one["name"] for one in migrate["env"]] == ["TENURE_URL"]


@pytest.mark.parametrize(
    "settings",
    ["imge.tag=3", "app=tasks", "workers[0].name=x,workers[0].replcas=3", "workers[0].name=A_b", "image.tag="],
)
def test_the_chart_refuses_values_that_mean_nothing(settings: str) -> None:
    done = run(tool("helm"), "template", "jobs", str(CHART), "--set", settings)

    assert (done.returncode, "values don't meet the specifications of the schema" in done.stderr) == (1, True)


def test_hadolint_finds_nothing_against_the_image() -> None:
    done = run(tool("hadolint"), str(DEPLOY / "Dockerfile"))

    assert done.returncode == 0, done.stdout


def test_zizmor_finds_nothing_against_the_workflow() -> None:
    done = run(tool("zizmor"), "--offline", str(ROOT / ".github"))

    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", [".github/workflows/ci.yml"]),
        ("github-issue-forms", [".github/ISSUE_TEMPLATE/bug.yml", ".github/ISSUE_TEMPLATE/idea.yml"]),
        ("github-issue-config", [".github/ISSUE_TEMPLATE/config.yml"]),
        ("compose-spec", ["deploy/compose.yaml"]),
    ],
)
def test_a_file_keeps_the_schema_of_those_who_read_it(schema: str, files: list[str]) -> None:
    """One form had a comma outside of quotes and so an attribute of its own: the forge refused it."""
    done = run(tool("check-jsonschema"), "--builtin-schema", f"vendor.{schema}", *files)

    assert done.returncode == 0, done.stdout


def test_promtool_reads_the_rules_and_they_fire_when_they_should() -> None:
    program = tool("promtool", "Debian's package prometheus brings it")

    checked = run(program, "check", "rules", str(DEPLOY / "prometheus" / "alerts.yml"))
    tested = run(program, "test", "rules", str(RULES))

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_every_rule_is_tested_by_promtool() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    tests = yaml.safe_load(RULES.read_text())["tests"]

    fired = {one["alertname"] for test in tests for one in test["alert_rule_test"] if one.get("exp_alerts")}
    silent = {one["alertname"] for test in tests for one in test["alert_rule_test"] if not one.get("exp_alerts")}

    names = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    assert fired == names
    assert silent >= names - {"TenureNotScraped"}


def test_promtool_reads_the_scrape_configuration(tmp_path: Path) -> None:
    program = tool("promtool", "Debian's package prometheus brings it")
    token = tmp_path / "tenure.token"
    token.write_text("x")
    given = (DEPLOY / "prometheus" / "scrape.yml").read_text().replace("/etc/prometheus/tenure.token", str(token))
    (tmp_path / "prometheus.yml").write_text(given)

    done = run(program, "check", "config", "prometheus.yml", cwd=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("unit", ["tenure-worker@.service", "tenure-serve.service"])
def test_systemd_reads_the_units(unit: str, tmp_path: Path) -> None:
    """Programs and folders that are not on this machine are put where they are."""
    program = tool("systemd-analyze", "systemd brings it")
    text = (DEPLOY / "systemd" / unit).read_text()
    text = re.sub(r"^ExecStart=\S+", f"ExecStart={shutil.which('true')}", text, flags=re.MULTILINE)
    (tmp_path / unit).write_text(re.sub(r"^(User=).*", r"\1root", text, flags=re.MULTILINE))

    done = run(program, "verify", "--man=no", str(tmp_path / unit.replace("@", "@mail")))

    if "Failed to initialize manager" in done.stderr or "not been booted" in done.stderr:
        pytest.skip(f"systemd-analyze cannot work here: {done.stderr.strip()}")
    assert [line for line in done.stderr.splitlines() if unit.partition(".")[0].rstrip("@") in line] == [], done.stderr
