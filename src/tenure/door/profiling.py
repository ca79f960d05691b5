"""Profiles at the front door: which there are, installing them, and the one act that a specification names itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from tenure.door.opening import scheme_of
from tenure.door.talk import Door, Talk, ask, atwin, twin
from tenure.errors import Forbidden, InvalidArgument, UnknownProfile, nearest
from tenure.handler import arguments
from tenure.handler.building import MISSING, JobOptions
from tenure.model.job import Enqueued, NewJob
from tenure.model.profile import Profile
from tenure.store.admin import InstalledProfile, InstallProfile
from tenure.store.contract import Enqueue
from tenure.store.queries import ListProfiles, ListQueues, ProfileRow

TASK_FIELDS = ("workflow_id", "agent_name", "task_type", "payload", "priority", "max_attempts")
LOWEST_TASK_PRIORITY = 3


class Profiling(Door):
    """Installs profiles and shows them."""

    _agents: set[str]
    """Agents whose queues are known to be of the profile, in the database at hand."""

    @property
    def url(self) -> str:
        """See App.url."""
        raise NotImplementedError

    def new_job(self, kind: str, payload: Any = MISSING, **options: Unpack[JobOptions]) -> NewJob:
        """See App.new_job."""
        raise NotImplementedError

    @staticmethod
    def known_profiles() -> list[Profile]:
        """The profiles that come with Tenure, by name. No database is asked."""
        from tenure.profiles import loader

        return [loader.load(name).profile for name in loader.shipped()]

    @staticmethod
    def read_profile(name: str) -> Profile:
        """A profile by its name, or by the path of a .toml file. Raises: UnknownProfile, ConfigError."""
        from tenure.profiles import loader

        return loader.load(name).profile

    def install_profile(self, name: str, *, actor: str | None = None) -> InstalledProfile:
        """Make a profile's views, functions, queues and closed gates. `name`: a shipped one, or a path to a .toml file.

        In one transaction, and repeatable: what operators have set since stays. On PostgreSQL it takes the rights of
        whoever migrates. Raises: UnknownProfile, ConfigError, IllegalMove (its queue belongs to another profile).
        """
        from tenure.door.settings import check_policy
        from tenure.profiles import loader

        found = loader.load(name)
        check_policy(found.profile.policy)
        engine = "sqlite" if scheme_of(self.url) == "sqlite" else "postgres"
        by = self.actor if actor is None else arguments.text("actor", actor)
        answer = self.open_store().install_profile(
            InstallProfile(found.profile, found.scripts[engine], found.checksum, by)
        )
        self._agents.clear()
        return answer

    async def ainstall_profile(self, name: str, *, actor: str | None = None) -> InstalledProfile:
        """The same without blocking the event loop."""
        import asyncio

        return await asyncio.to_thread(self.install_profile, name, actor=actor)

    def _profiles(self) -> Talk[list[ProfileRow]]:
        """The profiles that are installed in this database, by name."""
        return (yield from ask(ListProfiles()))

    def _create_task(self, task: Mapping[str, Any]) -> Talk[Enqueued]:
        """Create a task for an agent, as an AutoMechanica orchestrator does: `workflow_id`, `agent_name`, `task_type`,
        `payload`, `priority` (0 critical to 3 low) and `max_attempts`. The agent's queue is made with its first task.

        Raises: InvalidArgument, UnknownProfile (automechanica is not installed), Forbidden (the queue is no agent's).
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
        if agent not in self._agents:
            rows = {row.name: row for row in (yield from ask(ListQueues([agent, "automechanica"])))}
            pattern = rows.get("automechanica")
            if pattern is None:
                raise UnknownProfile("'automechanica' is not installed: run `tenure profile install automechanica`.")
            if agent in rows and rows[agent].policy.profile != pattern.policy.profile:
                raise Forbidden(f"Queue {agent!r} belongs to profile {rows[agent].policy.profile!r}; it is no agent's.")
            create = {} if agent in rows else {agent: pattern.policy}
        (answer,) = yield from ask(Enqueue([job], create))
        self._agents.add(agent)
        return answer

    profiles = twin(_profiles)
    aprofiles = atwin(_profiles)
    create_task = twin(_create_task)
    acreate_task = atwin(_create_task)
