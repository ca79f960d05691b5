"""Profiles: list, read and install them; and `create_task`, which a specification names itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenure.client.connect import scheme_of
from tenure.client.enqueue import Enqueueing
from tenure.client.operations import AsyncClient, Blocking, Client, Steps, SyncClient, ask, operation
from tenure.client.settings import check_policy
from tenure.errors import InvalidArgument, UnknownProfile, nearest
from tenure.handler import arguments
from tenure.model.job import Enqueued
from tenure.model.profile import Profile
from tenure.store.admin import InstalledProfile, InstallProfile
from tenure.store.contract import Enqueue
from tenure.store.queries import ListProfiles, ListQueues, ProfileRow
from tenure.store.workflows import JoinWorkflow

TASK_FIELDS = ("workflow_id", "agent_name", "task_type", "payload", "priority", "max_attempts")
LOWEST_TASK_PRIORITY = 3


class Profiles(Client):
    """Profiles that come with Tenure, and those that the database has: `app.profiles`."""

    @staticmethod
    def known() -> list[Profile]:
        """The profiles that come with Tenure, by name. No database is asked."""
        from tenure.profiles import loader

        return [loader.load(name).profile for name in loader.shipped()]

    @staticmethod
    def read(name: str) -> Profile:
        """A profile by its name, or by the path of a .toml file. Raises: UnknownProfile, ConfigError."""
        from tenure.profiles import loader

        return loader.load(name).profile

    @staticmethod
    def script(name: str, engine: str) -> str:
        """The SQL that `install` runs: the profile's views, functions and rights. `engine`: postgres or sqlite.

        Raises: UnknownProfile, ConfigError, InvalidArgument (an engine that is none of the two).
        """
        from tenure.profiles import loader

        scripts = loader.load(name).scripts
        if engine not in scripts:
            raise InvalidArgument(f"engine: {engine!r} is none of {', '.join(sorted(scripts))}.")
        return scripts[engine]

    @operation
    def install(self, name: str, *, actor: str | None = None) -> Steps[InstalledProfile]:
        """Make a profile's views, functions, queues and closed gates. `name`: a shipped one, or a path to a .toml file.

        In one transaction, and repeatable: settings that operators changed since stay. On PostgreSQL it needs the
        rights of the role that migrates.

        A queue of its that is there in profile `default`, without live jobs, is adopted with the profile's policy.

        Raises: UnknownProfile, ConfigError, IllegalMove (its queue belongs to another profile, or has live jobs).
        """
        from tenure.profiles import loader

        found = loader.load(name)
        check_policy(found.profile.policy)
        engine = "sqlite" if scheme_of(self._state.url) == "sqlite" else "postgres"
        request = InstallProfile(found.profile, found.scripts[engine], found.checksum, self._by(actor))
        answer = yield from ask(Blocking(lambda store: store.install_profile(request)))
        self._state.seen_agents.clear()
        return answer

    @operation
    def installed(self) -> Steps[list[ProfileRow]]:
        """The profiles that are installed in this database, by name."""
        return (yield from ask(ListProfiles()))


class SyncProfiles(Profiles, SyncClient):
    """`app.profiles`."""


class AsyncProfiles(Profiles, AsyncClient):
    """`app.aio.profiles`."""


class AgentTasks(Enqueueing):
    """Tasks for agents, as an AutoMechanica orchestrator creates them."""

    @operation
    def create_task(self, task: Mapping[str, Any]) -> Steps[Enqueued]:
        """Create a task for an agent, as an AutoMechanica orchestrator does: `workflow_id`, `agent_name`, `task_type`,
        `payload`, `priority` (0 critical to 3 low) and `max_attempts`. The agent's queue is made with its first task.

        A task with the `workflow_id` of a running workflow joins it and counts in its total.

        Raises: InvalidArgument, UnknownProfile (automechanica is not installed), Forbidden (the queue is no agent's),
        IllegalMove (the workflow has ended).
        """
        for field in task:
            if field not in TASK_FIELDS:
                raise InvalidArgument(f"A task has no field {field!r}.{nearest(field, TASK_FIELDS)}")
        agent = arguments.name("agent_name", task.get("agent_name"))
        kind = arguments.name("task_type", task.get("task_type"))
        priority = task.get("priority")
        if priority is not None:
            arguments.whole("priority", priority, 0, LOWEST_TASK_PRIORITY)
        job = self.new_job(
            kind,
            task.get("payload", {}),
            queue=agent,
            workflow_id=task.get("workflow_id"),
            priority=priority,
            max_attempts=task.get("max_attempts"),
        )
        create = {}
        if agent not in self._state.seen_agents:
            rows = {row.name: row for row in (yield from ask(ListQueues([agent, "automechanica"])))}
            pattern = rows.get("automechanica")
            if pattern is None:
                raise UnknownProfile("'automechanica' is not installed: run `tenure profile install automechanica`.")
            create = {agent: pattern.policy}
        if job.workflow_id is None:
            (answer,) = yield from ask(Enqueue([job], create))
        else:  # a task of that workflow, if there is one: it counts in its total
            (answer,) = yield from ask(JoinWorkflow([job], create))
        self._state.seen_agents.add(agent)
        return answer
