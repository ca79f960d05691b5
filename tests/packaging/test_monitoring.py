"""The alert rules, the dashboard and the autoscaler examples use metrics, labels, functions and paths that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from tenure.cli.main import COMMANDS
from tenure.model.access import EVERYTHING
from tenure.observe.prometheus import FAMILIES
from tenure.store.postgres.store import PostgresStore

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
BY_NAME = {family.name: family for family in FAMILIES}
SERIES = {
    name + suffix: {*family.labels, *(["le"] if suffix == "_bucket" else [])}
    for name, family in BY_NAME.items()
    for suffix in (("_bucket", "_sum", "_count") if family.sort == "histogram" else ("",))
}
"""Every series that a scrape holds, with its labels."""


def rules() -> list[dict[str, Any]]:
    found = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    return [rule for group in found["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / "grafana" / "tenure.json").read_text())
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """Every expression with the name of what uses it."""
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["definition"]


def faults(expression: str) -> list[str]:
    """What an expression names that no scrape has: series, labels in braces, labels of `by` and `on`."""
    used = re.findall(r"\b(tenure_\w+)(?:\{([^}]*)\})?", expression)
    found = [name for name, _ in used if name not in SERIES]
    known = [SERIES.get(name, set()) for name, _ in used]
    for (name, inside), labels in zip(used, known, strict=True):
        found += [f"{name}{{{label}}}" for label in re.findall(r"(\w+)\s*[=!]~?", inside) if label not in labels]
    for grouped in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", expression):
        wanted = {label.strip() for label in grouped.split(",") if label.strip()} - {"instance"}  # Prometheus's own
        found += [f"by ({label})" for label in wanted if not any(label in labels for labels in known)]
    if expression.count("(") != expression.count(")") or expression.count("{") != expression.count("}"):
        found.append("brackets")
    return found


@pytest.mark.parametrize(("used_by", "expression"), list(expressions()), ids=lambda text: text[:40])
def test_an_expression_uses_only_what_a_scrape_holds(used_by: str, expression: str) -> None:
    assert re.search(r"tenure_\w+", expression), "an expression without a metric of ours"
    assert faults(expression) == [], used_by


def test_an_expression_with_a_fault_is_found() -> None:
    assert faults("tenure_jobs_redy > 0") == ["tenure_jobs_redy"]
    assert faults('tenure_jobs_ready{queu="x"}') == ["tenure_jobs_ready{queu}"]
    assert faults("sum by (kind) (tenure_jobs_ready)") == ["by (kind)"]
    assert faults("rate(tenure_job_run_seconds[5m])") == ["tenure_job_run_seconds"]
    assert faults("sum(tenure_jobs_ready") == ["brackets"]


def test_the_first_alert_is_about_the_age_of_the_oldest_job_and_all_say_what_to_do() -> None:
    found = rules()

    assert "tenure_queue_oldest_ready_seconds" in found[0]["expr"]
    assert len({rule["alert"] for rule in found}) == len(found) >= 8
    for rule in found:
        assert set(rule["annotations"]) == {"summary", "description"}, rule["alert"]
        assert rule["labels"]["severity"] in {"page", "ticket"}
        for command in re.findall(r"`tenure ([a-z-]+)", rule["annotations"]["description"]):
            assert command in COMMANDS, rule["alert"]
        for label in re.findall(r"\$labels\.(\w+)", str(rule["annotations"])):
            assert any(label in family.labels for name, family in BY_NAME.items() if name in rule["expr"]), rule[
                "alert"
            ]


def test_every_metric_is_shown_on_the_dashboard() -> None:
    shown = "\n".join(target["expr"] for panel in dashboard()["panels"] for target in panel["targets"])

    missing = {name for name in BY_NAME if name not in shown}
    assert missing <= {"tenure_queue_backlog"}  # ready and held together: for scalers
    assert "tenure_queue_oldest_ready_seconds" in dashboard()["panels"][0]["targets"][0]["expr"]
    assert len({panel["id"] for panel in dashboard()["panels"]}) == len(dashboard()["panels"])


def scaled_objects(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The trigger, and the authentication beside it."""
    access, scaled = yaml.safe_load_all((DEPLOY / "keda" / name).read_text())
    assert (access["kind"], scaled["kind"]) == ("TriggerAuthentication", "ScaledObject")
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["authenticationRef"]["name"] == access["metadata"]["name"]
    template = (DEPLOY / "helm" / "tenure" / "templates" / "workers.yaml").read_text()
    assert "{{ $.Release.Name }}-worker-{{ .name }}" in template
    assert scaled["spec"]["scaleTargetRef"]["name"] == "jobs-worker-mail"
    return trigger, access


@pytest.mark.postgres
def test_the_query_of_the_postgresql_scaler_answers_one_number(postgres_url: str) -> None:
    trigger, access = scaled_objects("postgresql.yaml")
    store = PostgresStore(postgres_url)
    store.migrate()
    store.close()

    with psycopg.connect(postgres_url) as connection:
        connection.execute("INSERT INTO tenure.queue (name, created_at, updated_at) VALUES ('mail', now(), now())")
        connection.execute("SET ROLE tenure_reader")
        assert connection.execute(trigger["metadata"]["query"].encode()).fetchall() == [(0,)]
    assert access["spec"]["secretTargetRef"][0]["parameter"] == "connection"


def test_the_path_of_the_http_scaler_is_a_route_and_its_field_is_in_the_answer() -> None:
    from tenure.web.api.operate import ROUTES

    trigger, access = scaled_objects("http.yaml")
    path = re.sub(r"^http://[^/]+", "", trigger["metadata"]["url"]).replace("/mail/", "/{name}/")
    (route,) = [one for one in ROUTES if (one.verb, one.path) == ("GET", path)]

    assert route.scope == "read:meta"
    assert trigger["metadata"]["valueLocation"] == "item.backlog"
    assert access["spec"]["secretTargetRef"][0]["parameter"] == "token"


def test_the_scrape_configuration_names_the_path_and_a_scope_that_exist() -> None:
    text = (DEPLOY / "prometheus" / "scrape.yml").read_text()
    (job,) = yaml.safe_load(text)["scrape_configs"]

    assert job["metrics_path"] == "/metrics"
    found = re.search(r"--scope (\S+)", text)
    assert found is not None
    assert found.group(1) in EVERYTHING
