"""A queue that belongs to a profile has its rules, however and whenever it came to belong to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tenure import App, Forbidden, ForbiddenKey, IllegalMove, KeyRequired, QueuePolicy, UnknownProfile
from tenure.cli.main import run
from tenure.profiles import loader
from tenure.store.contract import Enqueue
from tests.profiles.ground import PROFILES, Ground
from tests.profiles.test_own_profile import MINE

RULES = MINE.replace("max_attempts = 2", 'max_attempts = 2\nkey_required = true\nforbidden_keys = ["password"]')


@pytest.fixture
def bakery(tmp_path: Path) -> str:
    (tmp_path / "bakery.toml").write_text(RULES.replace('shows = ["loaves"]\n', ""))
    return str(tmp_path / "bakery.toml")


def policy_of(name: str) -> QueuePolicy:
    return loader.load(name).profile.policy


def start_worker(app: App, queue: str) -> None:
    """A worker that is started for a queue before anything else happened there. It makes the queue."""

    @app.job(kind="idle", queue=queue)
    def idle() -> None: ...

    app.run_worker(queues=[queue], drain=True, handle_signals=False, maintain=False)


def assert_bakery_rules(ground: Ground) -> None:
    (row,) = ground.app.queues.all("oven")
    assert (row.policy.profile, row.policy.lease_seconds, row.policy.backoff.shape) == ("bakery", 45, "constant")
    with pytest.raises(ForbiddenKey, match="password"):
        ground.app.enqueue("rye", {"password": "x"}, queue="oven", key="a")
    with pytest.raises(KeyRequired, match="oven"):
        ground.app.enqueue("rye", {}, queue="oven")
    low, high = (ground.app.enqueue("rye", {}, queue="oven", key=f"k{n}", priority=n).id for n in (5, 1))
    assert [ground.claim("oven", worker=f"w{n}").id for n in (1, 2)] == [high, low]


def test_a_profile_adopts_the_queue_that_a_worker_made_before_it(ground: Ground, bakery: str) -> None:
    start_worker(ground.app, "oven")

    made = ground.app.profiles.install(bakery)

    assert (list(made.queues), list(made.adopted)) == ([], ["oven"])
    assert_bakery_rules(ground)
    assert list(ground.app.profiles.install(bakery).adopted) == []


def test_a_queue_with_settings_of_its_own_is_adopted_as_a_whole_and_the_audit_says_so(
    ground: Ground, bakery: str
) -> None:
    ground.app.queues.set("oven", max_attempts=7, key_scope="forever")

    ground.app.profiles.install(bakery)

    assert ground.app.queues.all("oven")[0].policy.max_attempts == 2
    assert_bakery_rules(ground)
    newest = ground.app.access.audit(subject="oven")[0]
    assert (newest.act, newest.detail["profile"]) == ("set_queue", "bakery")


def test_a_queue_with_live_jobs_is_not_adopted_and_the_advice_works(ground: Ground, bakery: str) -> None:
    job = ground.app.enqueue("rye", {}, queue=ground.app.queues.set("oven").name)

    with pytest.raises(IllegalMove, match="oven"):
        ground.app.profiles.install(bakery)

    assert ground.app.queues.all("oven")[0].policy == QueuePolicy()
    assert "bakery" not in {row.name for row in ground.app.profiles.installed()}
    ground.app.cancel(job.id)
    ground.app.profiles.install(bakery)
    assert_bakery_rules(ground)


def test_a_queue_of_another_profile_is_not_adopted_and_the_advice_works(ground: Ground, bakery: str) -> None:
    ground.app.queues.set("oven", profile="outbox")

    with pytest.raises(IllegalMove, match="queues set oven profile=default"):
        ground.app.profiles.install(bakery)

    ground.app.queues.set("oven", profile="default")
    assert ground.app.queues.all("oven")[0].policy == QueuePolicy()
    ground.app.profiles.install(bakery)
    assert_bakery_rules(ground)


@pytest.mark.parametrize("name", PROFILES)
def test_setting_the_profile_of_a_queue_brings_its_rules(ground: Ground, name: str) -> None:
    ground.app.queues.set("mine", max_attempts=9, key_scope="none", lease_seconds=7)

    row = ground.app.queues.set("mine", profile=name)

    assert row.policy == policy_of(name)


def test_settings_beside_the_profile_change_its_rules_and_later_ones_keep_them(ground: Ground) -> None:
    first = ground.app.queues.set("mine", profile="substrate", max_attempts=9)
    again = ground.app.queues.set("mine", profile="substrate", lease_seconds=11)

    assert first.policy == replace(policy_of("substrate"), max_attempts=9)
    assert again.policy == replace(policy_of("substrate"), max_attempts=9, lease_seconds=11)


def test_a_profile_that_is_not_installed_has_no_rules_to_give(ground: Ground) -> None:
    with pytest.raises(UnknownProfile, match="profile install bakery"):
        ground.app.queues.set("mine", profile="bakery")

    assert ground.app.queues.all("mine") == []


def test_the_command_sets_the_rules_with_the_profile(file_ground: Ground, capsys: pytest.CaptureFixture[str]) -> None:
    run(["queues", "set", "mine", "profile=substrate", "--json", "--url", file_ground.app.url])

    assert json.loads(capsys.readouterr().out)["queues"][0]["policy"]["key_required"] is True
    assert file_ground.app.queues.all("mine")[0].policy == policy_of("substrate")


@pytest.mark.postgres
def test_setting_the_profile_in_sql_brings_its_rules(server_ground: Ground) -> None:
    def set_queue(**columns: Any) -> None:
        request = {"policies": {"mine": columns}, "actor": "ann"}
        server_ground.execute("SELECT tenure.set_queues(?)", json.dumps(request))

    set_queue(max_attempts=9)
    set_queue(profile="substrate", lease_seconds=11)
    found = server_ground.app.queues.all("mine")[0].policy
    with pytest.raises(psycopg.Error, match="not installed"):
        set_queue(profile="bakery")
    set_queue(profile="default")

    assert found == replace(policy_of("substrate"), lease_seconds=11)
    assert server_ground.app.queues.all("mine")[0].policy == QueuePolicy()


def test_a_queue_that_the_code_gives_to_a_profile_has_its_rules(ground: Ground) -> None:
    declared = ground.app.queue("mine", profile="orchestrator", max_attempts=2)

    ground.app.enqueue("email:send", {}, queue="mine")

    assert declared == replace(policy_of("orchestrator"), max_attempts=2)
    assert ground.app.queues.all("mine")[0].policy == declared


def by_app(ground: Ground) -> None:
    ground.app.create_task({"agent_name": "FitmentAgent", "task_type": "generate_fitment"})


def by_insert(ground: Ground) -> None:
    ground.execute(
        f"INSERT INTO {ground.view('automechanica.tasks')} (agent_name, task_type) "
        "VALUES ('FitmentAgent', 'generate_fitment')"
    )


@pytest.mark.parametrize("create", [by_app, by_insert])
def test_an_agents_worker_may_start_before_the_agents_first_task(
    ground: Ground, create: Callable[[Ground], None]
) -> None:
    start_worker(ground.app, "FitmentAgent")
    assert ground.app.queues.all("FitmentAgent")[0].policy == QueuePolicy()

    create(ground)

    assert ground.app.queues.all("FitmentAgent")[0].policy == policy_of("automechanica")
    assert [row["agent_name"] for row in ground.rows("automechanica.tasks")] == ["FitmentAgent"]


@pytest.mark.parametrize("create", [by_app, by_insert])
@pytest.mark.parametrize("used", ["a job that ended", "a setting"])
def test_a_queue_in_use_never_becomes_an_agents_by_a_task(
    ground: Ground, create: Callable[[Ground], None], used: str
) -> None:
    """A producer's login may create tasks: it must not change the rules of a queue that others use."""
    ground.app.queues.set("FitmentAgent", max_attempts=4 if used == "a setting" else 3)
    if used != "a setting":
        ground.app.enqueue("rye", {}, queue="FitmentAgent")
        ground.app.complete(ground.claim("FitmentAgent"))
    before = ground.app.queues.all("FitmentAgent")[0].policy

    with pytest.raises(Exception, match=r"belongs to profile|no such queue in this profile"):
        create(ground)

    assert ground.app.queues.all("FitmentAgent")[0].policy == before
    assert ground.rows("automechanica.tasks") == []
    ground.app.queues.set("FitmentAgent", profile="automechanica")
    create(ground)
    assert len(ground.rows("automechanica.tasks")) == 1


def test_the_queue_default_never_becomes_an_agents(ground: Ground) -> None:
    with pytest.raises(Forbidden, match="default"):
        ground.app.create_task({"agent_name": "default", "task_type": "generate_fitment"})

    assert ground.app.queues.all("default")[0].policy.profile == "default"


def test_a_job_of_a_declared_profile_does_not_go_into_a_queue_with_other_rules(ground: Ground) -> None:
    ground.app.queues.set("mine", max_attempts=9)
    job = ground.app.new_job("email:send", {}, queue="mine")

    with pytest.raises(Forbidden, match="queues set mine profile=orchestrator"):
        ground.app.store.do(Enqueue([job], {"mine": policy_of("orchestrator")}))

    assert ground.app.jobs(queue="mine").items == []
