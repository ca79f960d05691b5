"""Maintenance: taking back expired leases, sweeping, counting minutes, schedules.

The leader, one named lease with a term, sweeps for all, counts what happened minute by minute, and carries out the
schedules. Two workers that both believe to lead do no harm: sweeps are safe to repeat, a mark decides that a minute is
counted once, and the row of a schedule that a tick happens once.

Every claim takes back leases that ran out. The leader does so too: where all workers are busy for long, or a gate keeps
them from claiming, there is no claim.

Each profile has a leader of its own besides, a worker of its queues, by the lease `leader:PROFILE`: it removes workers
that fell silent, and the profile's view of workers shows it (specification 003).

A duty that the worker's login has no right to is named once in the log and shown in the worker's row, where
`tenure doctor` finds it; the other duties go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from tenure.errors import AccessDenied, StoreUnavailable, TenureError
from tenure.model.clock import steady_now
from tenure.model.ids import WorkerId
from tenure.model.log_event import ERROR, INFO, WARNING
from tenure.model.schedule import Schedule
from tenure.store.admin import AcquireLease, ReleaseLease, RemoveWorkers
from tenure.store.contract import Prune, Reap, Store
from tenure.store.flow import SweepFlow
from tenure.store.metrics import RollUp
from tenure.store.schedules import ListSchedules, ScheduleRow, SetSchedules, TickSchedule
from tenure.store.workflows import AdvanceWorkflows, AreWorkflowsDue, TendWorkflows
from tenure.worker.config import WorkerConfig
from tenure.worker.log import WorkerLog, code_of
from tenure.worker.policies import REFRESH_SECONDS

LEADER = "leader"
"""The named lease of the whole database's leader; that of a profile's has `:PROFILE` behind it."""
LEADER_SECONDS = 30.0
ELECTION_SECONDS = 10.0
REAP_SECONDS = 30.0
REAP_LIMIT = 500
SWEEP_SECONDS = 60.0
SWEEP_LIMIT = 1000
ROUNDS = 20
"""Batches in one sweep at most; the next sweep goes on."""
PRUNE_SECONDS = 50.0
"""For so long of each SWEEP_SECONDS the leader prunes at most, if there is so much to prune."""
UNKNOWN_KINDS_SECONDS = 300.0
"""How often the worker looks for kinds that wait in its queues without a handler here."""
ROLL_UP_SECONDS = 60.0
FLOW_SECONDS, FLOW_SECONDS_ALONE = 1.0, 5.0
"""How often the leader sweeps flow events that no worker has swept: on a store that machines share, and on SQLite,
where only work that is paged leaves events."""
ORCHESTRATOR = "orchestrator"
"""The named lease under which deadlines and escalations of workflows are kept."""
ORCHESTRATE_SECONDS = 1.0
SCHEDULES_SECONDS = 15.0
"""How often the leader looks for schedules that are new, changed or paused."""
GOODBYE_SECONDS = 2.0
DENIED = {
    "prune": "This worker leads, but its login may not prune: payloads of ended jobs are kept beyond their queue's "
    "retention. Grant the login tenure_operator beside tenure_worker, or run `tenure prune --yes` daily as one that "
    "may. All other duties go on.",
    "remove_workers": "This worker leads, but its login may not remove the rows of dead workers. Grant it "
    "tenure_worker. Their jobs come back all the same, as leases run out.",
    "orchestrate": "This worker leads, but its login may not tend workflows, so their deadlines and escalations stand "
    "still. Grant it tenure_worker; if it has that, run `tenure migrate`, which grants what is new.",
    "roll_up": "This worker leads, but its login may not count minutes, so `tenure stats --minutes` shows none. Grant "
    "it tenure_worker; if it has that, run `tenure migrate`, which grants what is new.",
    "sweep_flow": "This worker leads, but its login may not sweep flow events, so jobs that wait for children or "
    "signals may not be woken. Grant it tenure_worker; if it has that, run `tenure migrate`, which grants what is new.",
}
"""What a duty left undone means, and what to do."""
ELSEWHERE = "This worker's login may not do this duty, so it is left to workers with the role tenure_worker; run one."


class Leader:
    """One worker's share in the maintenance: its own duties, and those of the leader while it leads."""

    def __init__(
        self,
        store: Store,
        worker: WorkerId,
        config: WorkerConfig,
        schedules: Sequence[Schedule],
        log: WorkerLog,
        refresh: Callable[[], Awaitable[None]],
        log_unknown_kinds: Callable[[], Awaitable[None]] | None = None,
        profiles: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._store = store
        self._worker = worker
        self._config = config
        self._schedules = schedules
        self._log = log
        self._refresh = refresh
        self._log_unknown_kinds = log_unknown_kinds
        self._profiles = profiles
        """The profiles of this worker's queues."""
        self._profile_terms: dict[str, int] = {}
        self._term: int | None = None
        self._leads_until = 0.0
        self._leading = asyncio.Event()
        """Cleared while another worker leads, so that the duties of the leader sleep."""
        self._rows: list[tuple[ScheduleRow, Schedule]] = []
        self._rows_read_at: float | None = None
        self._offset = timedelta()
        self._unreadable: set[str] = set()
        self.denied: dict[str, str] = {}
        """Duties that the store does not let this worker do, and what it said."""

    @property
    def is_leader(self) -> bool:
        """Whether this worker believes to lead. Judged by its own steady clock, and earlier than the store would."""
        return self._term is not None and steady_now() < self._leads_until

    async def run(self) -> None:
        """Do the maintenance until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._repeat(self._refresh, REFRESH_SECONDS))
            if self._log_unknown_kinds is not None:
                group.create_task(self._repeat(self._log_unknown_kinds, UNKNOWN_KINDS_SECONDS, at_once=True))
            if self._config.maintain:
                group.create_task(self._repeat(self.stand_for_election, ELECTION_SECONDS, at_once=True))
                group.create_task(self._repeat(self.stand_for_profiles, ELECTION_SECONDS, at_once=True))
                group.create_task(self._repeat(self._remove_as_profile_leader, SWEEP_SECONDS))
                group.create_task(self._repeat(self._reap_as_leader, REAP_SECONDS))
                group.create_task(self._repeat(self._sweep_as_leader, SWEEP_SECONDS))
                group.create_task(self._repeat(self._roll_up_as_leader, ROLL_UP_SECONDS))
                group.create_task(self._repeat(self._sweep_flow_as_leader, self._flow_seconds()))
                group.create_task(self._keep_schedules())
                group.create_task(self._repeat(self._orchestrate_as_leader, ORCHESTRATE_SECONDS))

    async def declare(self) -> None:
        """Make this worker's schedules known to the store, so that any leader can carry them out."""
        if self._schedules:
            await self._store.ado(SetSchedules({s.name: s.spec() for s in self._schedules}, self._worker))

    async def reap(self) -> None:
        """Take back a bounded number of expired leases."""
        for _ in range(ROUNDS):
            taken = await self._store.ado(Reap(REAP_LIMIT))
            self._log.taken_back(taken)
            if len(taken) < REAP_LIMIT:
                return

    async def stand_for_election(self) -> None:
        """Take the leader's lease if it is free, or keep it."""
        asked_at = steady_now()
        lease = await self._store.ado(AcquireLease(LEADER, self._worker, LEADER_SECONDS))
        if lease.acquired:
            self._leading.set()
            self._leads_until = asked_at + LEADER_SECONDS * 0.9
            if self._term != lease.term:
                self._log.event("leading", INFO, term=lease.term)
                self._rows_read_at = None
        self._term = lease.term if lease.acquired else None

    async def stand_for_profiles(self) -> None:
        """Take the leader's lease of each profile of this worker's queues if it is free, or keep it."""
        profiles = sorted(self._profiles())
        self._profile_terms = {name: term for name, term in self._profile_terms.items() if name in profiles}
        for profile in profiles:
            lease = await self._store.ado(AcquireLease(f"{LEADER}:{profile}", self._worker, LEADER_SECONDS))
            if not lease.acquired:
                self._profile_terms.pop(profile, None)
            elif self._profile_terms.get(profile) != lease.term:
                self._profile_terms[profile] = lease.term
                self._log.event("leading", INFO, term=lease.term, profile=profile)

    async def sweep(self) -> None:
        """Remove dead workers, handing back what they held, and what retention lets go."""
        await self._duty("remove_workers", self._remove_workers)
        await self._duty("prune", self._prune)

    async def sweep_flow(self) -> None:
        """Wake those whose condition is met, and do what else flow events ask for."""
        await self._duty("sweep_flow", self._sweep_flow)

    async def roll_up(self) -> None:
        """Count the minutes that are over."""
        await self._duty("roll_up", self._roll_up)

    async def orchestrate(self) -> None:
        """Fold what workers left unfolded, and carry out what is due by time in workflows."""
        if not await self._store.ado(AreWorkflowsDue()):
            return
        lease = await self._store.ado(AcquireLease(ORCHESTRATOR, self._worker, LEADER_SECONDS))
        if lease.acquired:
            await self._store.ado(TendWorkflows())
        for _ in range(ROUNDS):
            if not (await self._store.ado(AdvanceWorkflows())).more:
                return

    async def read_schedules(self) -> None:
        """Look up every schedule in the store, and its clock."""
        rows = await self._store.ado(ListSchedules())
        known = {(row.name, row.spec): schedule for row, schedule in self._rows}
        self._rows = []
        for row in rows:
            schedule = known.get((row.name, row.spec)) or self._parse(row)
            if schedule is not None and row.paused_at is None:
                self._rows.append((row, schedule))
        if self._rows:
            now = await asyncio.to_thread(self._store.now)
            self._offset = now - _steady_moment()
        self._rows_read_at = steady_now()

    async def tick_schedules(self) -> datetime | None:
        """Carry out every tick that is due. Answers the next one."""
        now = _steady_moment() + self._offset
        following: datetime | None = None
        kept: list[tuple[ScheduleRow, Schedule]] = []
        for row, schedule in self._rows:
            due = schedule.due(row.last_tick, now)
            if due is not None and not await self._tick(row, schedule, *due):
                continue  # until the next look at the schedules
            kept.append((row if due is None else replace(row, last_tick=due[0]), schedule))
            upcoming = schedule.next_tick(now)
            following = upcoming if following is None else min(following, upcoming)
        self._rows = kept
        return following

    async def say_goodbye(self) -> None:
        """Give back what others would otherwise wait for: the leader's lease, and this worker's row."""
        with contextlib.suppress(TenureError, TimeoutError):
            async with asyncio.timeout(GOODBYE_SECONDS):
                if self._term is not None:
                    await self._store.ado(ReleaseLease(LEADER, self._worker, self._term))
                for profile, term in self._profile_terms.items():
                    await self._store.ado(ReleaseLease(f"{LEADER}:{profile}", self._worker, term))
                await self._store.ado(RemoveWorkers(ids=[self._worker]))

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _repeat(self, act: Callable[[], Awaitable[None]], seconds: float, *, at_once: bool = False) -> None:
        """Do something again and again, with jitter, so that a fleet that started together does not act together."""
        if not at_once:
            await asyncio.sleep(seconds * random.uniform(0.3, 1.0))
        while True:
            try:
                await act()
            except AccessDenied as exc:
                self._tell_denied(act.__name__.strip("_"), exc)
            except StoreUnavailable:
                pass  # the fetcher logs it already, and the next round comes
            except Exception as exc:  # noqa: BLE001 - a duty that fails must end neither the others nor the worker
                self._log.event("upkeep_failed", ERROR, str(exc), code=code_of(exc))
            await asyncio.sleep(seconds * random.uniform(0.7, 1.0))

    async def _orchestrate_as_leader(self) -> None:
        await self._until_leading()
        await self._duty("orchestrate", self.orchestrate)

    async def _reap_as_leader(self) -> None:
        await self._until_leading()
        await self.reap()

    async def _sweep_as_leader(self) -> None:
        await self._until_leading()
        await self.sweep()

    async def _remove_as_profile_leader(self) -> None:
        if self._profile_terms and not self.is_leader:
            await self._duty("remove_workers", self._remove_workers)

    async def _roll_up_as_leader(self) -> None:
        await self._until_leading()
        await self.roll_up()

    async def _sweep_flow_as_leader(self) -> None:
        await self._until_leading()
        await self.sweep_flow()

    def _flow_seconds(self) -> float:
        return FLOW_SECONDS_ALONE if self._store.url.startswith("sqlite") else FLOW_SECONDS

    async def _until_leading(self) -> None:
        """Sleep for as long as another worker leads."""
        while not self.is_leader:
            self._leading.clear()
            await self._leading.wait()

    async def _duty(self, name: str, act: Callable[[], Awaitable[None]]) -> None:
        """Do one of several duties. Where the right to it is missing, say so once; the others go on."""
        try:
            await act()
        except AccessDenied as exc:
            self._tell_denied(name, exc)
        else:
            self.denied.pop(name, None)

    def _tell_denied(self, name: str, exc: AccessDenied) -> None:
        if name not in self.denied:
            self._log.event("upkeep_denied", WARNING, f"{DENIED.get(name, ELSEWHERE)} {exc}", duty=name, code=exc.code)
        self.denied[name] = str(exc)

    async def _remove_workers(self) -> None:
        gone = await self._store.ado(RemoveWorkers(unseen_seconds=self._config.worker_timeout))
        for worker in gone:
            self._log.event("worker_removed", WARNING, f"{worker} was not seen for long, so its row was removed")

    async def _prune(self) -> None:
        request = Prune(
            SWEEP_LIMIT,
            delete_after_seconds=self._config.delete_after_seconds,
            metric_seconds=self._config.metric_seconds,
        )
        # A number of rounds would bound the jobs that a fleet can end per minute. Time bounds the load instead: after
        # each batch the store is left alone for as long as the batch took.
        begun = steady_now()
        while True:
            asked_at = steady_now()
            more = (await self._store.ado(request)).more
            now = steady_now()
            if not more or now - begun >= PRUNE_SECONDS:
                return
            await asyncio.sleep(now - asked_at)

    async def _sweep_flow(self) -> None:
        # A sweep that finds no event does what is by time. While there are events both take turns, so that neither
        # waits for the other to run dry.
        for number in range(ROUNDS):
            swept = await self._store.ado(SweepFlow(by_time=number % 2 == 1))
            if not swept.more and (number or not swept.events):
                return

    async def _roll_up(self) -> None:
        counted: datetime | None = None
        for _ in range(ROUNDS):
            rolled = await self._store.ado(RollUp())
            if not rolled.more or rolled.until == counted:  # done, or another transaction is still writing
                return
            counted = rolled.until

    async def _keep_schedules(self) -> None:
        while True:
            await self._until_leading()
            delay = SCHEDULES_SECONDS
            try:
                if self._rows_read_at is None or steady_now() - self._rows_read_at > SCHEDULES_SECONDS:
                    await self.read_schedules()
                following = await self.tick_schedules()
                if following is not None:
                    delay = min(1.0, max(0.0, (following - _steady_moment() - self._offset).total_seconds()))
            except StoreUnavailable:
                self._rows_read_at = None
                delay = 1.0
            except Exception as exc:  # noqa: BLE001 - see _repeat
                self._rows_read_at = None
                self._log.event("schedule_failed", ERROR, str(exc), code=code_of(exc))
            await asyncio.sleep(delay + random.uniform(0.0, 0.05))

    async def _tick(self, row: ScheduleRow, schedule: Schedule, tick: datetime, runs: list[datetime]) -> bool:
        """Carry out one tick. False if the store refuses its jobs, which must not hold up other schedules."""
        jobs = [schedule.job(run) for run in runs]
        try:
            done = await self._store.ado(TickSchedule(row.name, row.last_tick, tick, jobs))
        except StoreUnavailable:
            raise
        except TenureError as exc:
            self._log.event("schedule_failed", ERROR, str(exc), code=exc.code, schedule=row.name)
            return False
        if done:
            self._log.event("ticked", INFO, schedule=row.name, tick=tick.isoformat(), jobs=len(jobs))
            self._log.queued(jobs)
        else:
            self._rows_read_at = None  # another leader was first, or it was paused: look again
        return True

    def _parse(self, row: ScheduleRow) -> Schedule | None:
        try:
            return Schedule.from_spec(row.name, row.spec)
        except ValueError as exc:
            if row.name not in self._unreadable:
                self._unreadable.add(row.name)
                self._log.event("schedule_unreadable", ERROR, str(exc), schedule=row.name)
            return None


_EPOCH = datetime.fromisoformat("2000-01-01T00:00:00+00:00")


def _steady_moment() -> datetime:
    """The steady clock as a datetime; with the offset to the store's clock it is the time."""
    return _EPOCH + timedelta(seconds=steady_now())
