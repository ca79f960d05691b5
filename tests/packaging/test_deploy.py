"""The files in deploy/ and .github/: they parse, and name commands, options and values that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tenure.cli.main import find_command

ROOT = Path(__file__).parents[2]
PLAIN = [
    *ROOT.glob(".github/**/*.yml"),
    ROOT / "deploy" / "compose.yaml",
    *(ROOT / "deploy" / "helm" / "tenure" / name for name in ("Chart.yaml", "values.yaml")),
]
TEMPLATES = sorted((ROOT / "deploy" / "helm" / "tenure" / "templates").glob("*.yaml"))


def options(command: str) -> set[str]:
    """The options that a command of `tenure` takes."""
    found: Any = find_command(command)
    return {option for parameter in found.params for option in parameter.opts if option.startswith("--")}


@pytest.mark.parametrize("path", PLAIN, ids=lambda path: path.name)
def test_a_yaml_file_parses(path: Path) -> None:
    assert yaml.safe_load(path.read_text())


def test_the_workers_of_compose_and_the_chart_take_options_that_exist() -> None:
    compose = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
    values = yaml.safe_load((ROOT / "deploy" / "helm" / "tenure" / "values.yaml").read_text())
    known = options("worker")

    given = [*compose["services"]["worker"]["command"], *values["workers"][0]["options"]]

    assert compose["services"]["worker"]["command"][0] == "worker"
    assert compose["services"]["migrate"]["command"] == ["migrate"]
    assert {word for word in given if word.startswith("--")} <= known


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_a_template_uses_values_that_exist_and_closes_what_it_opens(path: Path) -> None:
    values = yaml.safe_load((ROOT / "deploy" / "helm" / "tenure" / "values.yaml").read_text())
    text = path.read_text()

    for name in re.findall(r"\.Values\.([\w.]+)", text):
        found: Any = values
        for part in name.split("."):
            assert part in found, name
            found = found[part]
    opened = len(re.findall(r"{{-? (?:if|range|with) ", text))
    assert opened == len(re.findall(r"{{-? end }}", text))


def test_the_units_start_commands_that_exist_and_give_workers_time_to_stop() -> None:
    units = {path.name: path.read_text() for path in (ROOT / "deploy" / "systemd").glob("*.service")}

    commands = {name: re.search(r"^ExecStart=\S+/tenure (\w+)", text, re.MULTILINE) for name, text in units.items()}

    assert {found.group(1) for found in commands.values() if found} == {"worker", "serve"}
    assert "KillSignal=SIGTERM" in units["tenure-worker@.service"]
    for text in units.values():
        assert "NoNewPrivileges=yes" in text
        assert not re.search(r"://[^\s/]*:[^\s/]*@", text), "a password"


def test_ci_runs_every_python_and_postgresql_that_is_supported_and_targets_that_exist() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    classifiers = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == classifiers
    assert workflow["jobs"]["postgres"]["strategy"]["matrix"]["postgres"] == ["14", "15", "16", "17", "18"]
    runs = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]
    used = {word for run in [*runs, (ROOT / ".ci" / "run").read_text()] for word in made(run)}
    assert {"check", "test", "audit", "sbom", "types", "docs-site"} <= used <= targets


def made(script: str) -> list[str]:
    """The targets that a script makes."""
    found = []
    for line in re.findall(r"^\s*make ([^\n]*)", script, re.MULTILINE):
        found += [word for word in re.sub(r"'[^']*'", "", line).split() if re.fullmatch(r"[a-z-]+", word)]
    return found


def test_actions_have_no_more_rights_than_they_need_and_are_pinned_to_a_commit() -> None:
    """A tag can be moved to other code; the comment tells which release the commit is."""
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text()

    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}
    for action in re.findall(r"uses: (.+)", text):
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", action), action
    assert "pull_request_target" not in text


def test_the_image_copies_what_exists_and_does_not_run_as_root() -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text()

    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert next(line for line in ignored if not line.startswith("#")) == "*"
    for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE):
        for source in sources.split():
            assert (ROOT / source).exists(), source
            assert any(f"!{start}" in ignored for start in (source, source.partition("/")[0])), source
    assert re.findall(r"^USER (.+)$", text, re.MULTILINE)[-1] == "10001:10001"
    assert not re.search(r"^(ENV|ARG) .*(PASSWORD|SECRET|TOKEN|URL)", text, re.MULTILINE)
    assert "--require-hashes -r /tmp/image.txt" in text
