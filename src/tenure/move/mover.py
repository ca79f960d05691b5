"""The move itself: freeze the source, copy table by table, compare, and open the destination.

Whatever ends it on the way, the same command goes on where it was: both databases have a line of the same id in their
ledgers, and the destination notes with every batch how far its table has come.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from typing import Final

from tenure.client.connect import is_file_to_make, open_store
from tenure.errors import IllegalMove, SchemaBehind, StoreBusy, TenureError
from tenure.model.frozen import frozen
from tenure.model.ids import new_job_id
from tenure.model.plural import counted
from tenure.model.url import shown_url
from tenure.move.digest import plus, row_hash
from tenure.move.plan import SEEDS, Table, plan
from tenure.store.access import NewAudit, WriteAudit
from tenure.store.admin import SetGate
from tenure.store.contract import Reap, Store
from tenure.store.flow import SweepFlow
from tenure.store.moving import MASTER, Copied, Leases, Move, Row, TableAccess
from tenure.store.queries import ListGates, ListProfiles
from tenure.store.summary import Inspect

BATCH_ROWS: Final = 2000
BATCH_BYTES: Final = 4 << 20
"""A batch ends with the row that reaches either."""
WAIT_SECONDS: Final = 300.0
POLL_SECONDS: Final = 0.2
FREEZE_TRIES: Final = 50

Tell = Callable[[str, int], None]
"""Is told what is being done, and by how many rows it went on."""


@frozen
class MovedTable:
    """One table of a move."""

    table: str
    rows: int
    digest: str
    """The sum of the hashes of its rows, equal on both sides. Empty in a dry run."""


@frozen
class Moved:
    """What a move did, or would do."""

    id: str | None
    source: str
    destination: str
    tables: list[MovedTable]
    rows: int
    held: int
    """Jobs that workers held: carried over with their leases, or still to be drained in a dry run."""
    profiles: list[str]
    """Profiles whose views were made in the destination."""
    profiles_missing: list[str]
    """Profiles that do not come with Tenure: install them there from their files."""


@frozen
class Reopened:
    """A move that was given up."""

    id: str
    source: str
    moved_to: str


def move(
    source: str,
    destination: str,
    *,
    leases: Leases = "drain",
    wait_seconds: float = WAIT_SECONDS,
    actor: str,
    tell: Tell = lambda _what, _by: None,
) -> Moved:
    """Move everything from one database to another, or go on with a move that was cut short.

    Raises: IllegalMove (the destination is not empty, or one of them belongs to another move, or jobs are still held
    after `wait_seconds`), SchemaError, StoreUnavailable (run it again), AccessDenied.
    """
    if shown_url(source) == shown_url(destination):
        raise IllegalMove("Source and destination are the same database. Nothing was changed.")
    with (
        closing(_opened(source)) as ours,
        closing(open_store(destination, "always")) as theirs,
        closing(ours.tables()) as reading,
        closing(theirs.tables()) as writing,
    ):
        return _Mover(ours, theirs, reading, writing, actor, tell).run(leases, wait_seconds)


def size(source: str) -> int:
    """How many rows a move of this database handles: each is copied and compared."""
    with closing(_opened(source)) as store, closing(store.tables()) as tables:
        return 2 * sum(tables.count(name) for name in _names(tables))


def look(source: str, destination: str) -> Moved:
    """What `move` would do. Changes nothing.

    Raises: as `move` does.
    """
    with closing(_opened(source)) as ours, closing(ours.tables()) as reading:
        found = shapes = reading.tables()
        if not is_file_to_make(destination):
            with closing(open_store(destination, "never")) as theirs:
                if theirs.schema_version():
                    with closing(theirs.tables()) as writing:
                        found = writing.tables()
                        _refuse_filled(writing, plan(shapes, found), shown_url(destination))
        counts = [MovedTable(table.name, reading.count(table.name), "") for table in plan(shapes, found)]
        profiles, missing = _profiles(ours)
        rows = sum(one.rows for one in counts)
        urls = shown_url(source), shown_url(destination)
        return Moved(None, *urls, counts, rows, reading.held(), profiles, missing)


def reopen(source: str, *, actor: str) -> Reopened:
    """Let a source take writes again. The move is over: what was copied is worth nothing.

    Raises: IllegalMove (nothing was moved away from here, or it is a destination that is not complete).
    """
    with closing(_opened(source, is_used=False)) as store, closing(store.tables()) as tables:
        moves = tables.moves()
        newest = moves[-1] if moves else None
        if newest is None or newest.role != "source" or newest.phase == "reopened":
            raise IllegalMove(
                f"{shown_url(source)} is not the source of a move, so there is nothing to reopen."
                + (" It is the destination of one that is not complete." if _is_filling(newest) else "")
            )
        opened = replace(newest, phase="reopened", ended_at=store.now())
        tables.thaw(opened, _names(tables))
        if newest.phase == "draining":
            _restore_gate(store, newest, actor)
        store.do(WriteAudit([NewAudit(actor, "reopen", newest.other, None, {"move": newest.id})]))
        return Reopened(newest.id, shown_url(source), newest.other)


class _Mover:
    def __init__(
        self, ours: Store, theirs: Store, reading: TableAccess, writing: TableAccess, actor: str, tell: Tell
    ) -> None:
        self._ours, self._theirs = ours, theirs
        self._reading, self._writing = reading, writing
        self._actor, self._tell = actor, tell
        self._source, self._destination = shown_url(ours.url), shown_url(theirs.url)
        self._tables = plan(reading.tables(), writing.tables())
        self._names = [table.name for table in self._tables]

    def run(self, leases: Leases, wait_seconds: float) -> Moved:
        move = self._source_line(leases)
        target = self._destination_line(move)
        if move.phase == "draining":
            move = self._frozen(move, wait_seconds)
        if target is None:
            target = self._begun(move)
        if target.phase == "copying":
            self._writing.clear(move.id, list(SEEDS))
            for table in self._tables:
                self._copy(move.id, table)
            for table in self._tables:
                self._compare(move.id, table)
            target = self._advanced(target, "verified")
        if target.phase == "verified":
            self._take_over_counters()
            self._writing.analyze()
            target = replace(target, phase="opened")
            self._writing.thaw(target, self._names)
        return self._ended(move, target)

    def _source_line(self, leases: Leases) -> Move:
        """The line of this move in the source's ledger: the one that is open, or a new one."""
        moves = self._reading.moves()
        newest = moves[-1] if moves else None
        if newest is not None and newest.phase == "draining":
            return replace(newest, leases=leases, other=self._destination)
        if newest is None or newest.phase in {"reopened", "done"}:
            return Move(new_job_id(), "source", self._destination, "draining", leases, self._master(), self._ours.now())
        if newest.role == "destination":
            raise IllegalMove(
                f"{self._source} is itself the destination of a move from {newest.other} that is not complete. "
                "Nothing was changed. Run that move to its end first."
            )
        if newest.phase == "moved":
            raise IllegalMove(
                f"{self._source} was moved to {newest.other} already. Nothing was changed. "
                f"`tenure move --reopen {self._source}` lets it take writes again."
            )
        return newest

    def _destination_line(self, move: Move) -> Move | None:
        """The line of this move in the destination's ledger, None if it has not begun there."""
        for line in self._writing.moves():
            if line.id == move.id:
                return line
            if _is_filling(line):
                raise IllegalMove(
                    f"{self._destination} is being filled by a move from {line.other}. Nothing was changed. Run that "
                    "one to its end, or use another database."
                )
        if move.phase != "draining" and move.other != self._destination:
            raise IllegalMove(
                f"{self._source} is being moved to {move.other}. Nothing was changed. Run that move to its end, or "
                f"give it up with `tenure move --reopen {self._source}`."
            )
        _refuse_filled(self._writing, self._tables, self._destination)
        return None

    def _frozen(self, move: Move, wait_seconds: float) -> Move:
        """Stop new work in the source, wait for what is held if it is to be drained, then refuse every write."""
        self._tell("draining" if move.leases == "drain" else "freezing", 0)
        self._reading.record(move)
        self._ours.do(SetGate(MASTER, False, self._actor, f"moving to {self._destination}"))
        try:
            frozen = replace(move, phase="frozen")
            detail = {"move": move.id, "leases": move.leases}
            self._drain(move, wait_seconds)
            self._ours.do(WriteAudit([NewAudit(self._actor, "move", self._destination, None, detail)]))
            for _ in range(FREEZE_TRIES):
                while self._ours.do(SweepFlow()).more:
                    pass
                if self._freeze_once(frozen):
                    return frozen
                self._drain(move, wait_seconds)
            raise StoreBusy(
                f"{self._source} is written to so much that it could not be frozen. Nothing was moved. Stop its "
                "workers and producers, then run the command again."
            )
        except BaseException:
            # If the database is away too, the line stays as it is, and the next run goes on from there.
            with suppress(TenureError):
                self._reading.thaw(replace(move, phase="reopened", ended_at=self._ours.now()), self._names)
                _restore_gate(self._ours, move, self._actor)
            raise

    def _freeze_once(self, frozen: Move) -> bool:
        try:
            return self._reading.freeze(
                frozen,
                self._names,
                f"This database is moved to {self._destination} and takes no more writes. Nothing was changed. "
                "Point this process at that database.",
                self._actor,
            )
        except StoreBusy:
            return False  # a lock was not to be had; writers go on meanwhile

    def _drain(self, move: Move, wait_seconds: float) -> None:
        if move.leases == "carry":
            return
        until = time.monotonic() + wait_seconds
        while held := self._reading.held():
            self._tell(f"waiting for {counted(held, 'held job')} to end", 0)
            if time.monotonic() > until:
                raise IllegalMove(
                    f"Workers still hold {counted(held, 'job')} of {self._source} after {wait_seconds:g} s. "
                    "Nothing was moved, and work there goes on. Wait longer with --wait, stop the workers, or take the "
                    "leases along with --leases carry."
                )
            self._ours.do(Reap())
            time.sleep(POLL_SECONDS)

    def _begun(self, move: Move) -> Move:
        """The destination refuses every write but ours from here on."""
        line = replace(
            move, role="destination", other=self._source, phase="copying", started_at=self._theirs.now(), leases="carry"
        )
        for _ in range(FREEZE_TRIES):
            if self._writing.freeze(
                line,
                self._names,
                f"This database is being filled from {self._source} by `tenure move`. Nothing was changed. Wait until "
                "that is complete.",
                self._actor,
            ):
                return line
        raise StoreBusy(f"{self._destination} could not be kept from others. Nothing was moved; run it again.")

    def _copy(self, move_id: str, table: Table) -> None:
        so_far = self._writing.copied(move_id).get(table.name) or Copied(table.name, None, 0, 0, is_done=False)
        self._tell(f"copying {table.name}", so_far.rows)
        if so_far.is_done:
            return
        places = [table.columns.index(name) for name in table.source.key]
        with closing(self._reading.rows(table.source, table.columns, so_far.after)) as rows:
            for batch in _batches(rows):
                digest = so_far.digest
                for row in batch:
                    digest = plus(digest, row_hash(row, table.loose))
                after = tuple(batch[-1][place] for place in places)
                now = Copied(table.name, after, so_far.rows + len(batch), digest, is_done=False)
                try:
                    self._writing.write(move_id, table.destination, table.columns, batch, so_far, now)
                except TenureError as exc:
                    exc.add_note(f"Table {table.name}, rows behind {so_far.after}.")
                    raise
                self._tell(f"copying {table.name}", len(batch))
                so_far = now
        done = replace(so_far, is_done=True)
        self._writing.write(move_id, table.destination, table.columns, [], so_far, done)

    def _compare(self, move_id: str, table: Table) -> None:
        """Read the table back, and count it in the source. Raises: IllegalMove."""
        copied = self._writing.copied(move_id)[table.name]
        digest = rows = 0
        with closing(self._writing.rows(table.destination, table.columns)) as found:
            for row in found:
                digest = plus(digest, row_hash(row, table.loose))
                rows += 1
                if rows % BATCH_ROWS == 0:
                    self._tell(f"comparing {table.name}", BATCH_ROWS)
        self._tell(f"comparing {table.name}", rows % BATCH_ROWS)
        there = self._reading.count(table.name)
        if (rows, digest) != (copied.rows, copied.digest) or there != rows:
            raise IllegalMove(
                f"Table {table.name!r} is not the same on both sides: {there:,} rows in {self._source}, {rows:,} in "
                f"{self._destination}{', and their hashes differ' if there == rows else ''}. The destination stays "
                f"closed. Drop it, reopen the source with `tenure move --reopen {self._source}`, and report this."
            )

    def _take_over_counters(self) -> None:
        for table in self._tables:
            if table.source.counter is not None and table.source.counter == table.destination.counter:
                self._writing.set_counter(table.destination, self._reading.counter(table.source))

    def _advanced(self, line: Move, phase: str) -> Move:
        line = replace(line, phase=phase)  # type: ignore[arg-type]
        self._writing.record(line)
        return line

    def _ended(self, move: Move, target: Move) -> Moved:
        """Make the views of profiles, and close both ledgers."""
        profiles, missing = _profiles(self._ours)
        if target.phase == "opened":
            _install(self._theirs, profiles, self._actor)
            self._writing.record(replace(target, phase="done", ended_at=self._theirs.now()))
        self._reading.record(replace(move, phase="moved", ended_at=self._ours.now()))
        copied = self._writing.copied(move.id)
        tables = [MovedTable(name, copied[name].rows, f"{copied[name].digest:064x}") for name in self._names]
        rows = sum(one.rows for one in tables)
        held = self._reading.held()
        return Moved(move.id, self._source, self._destination, tables, rows, held, profiles, missing)

    def _master(self) -> bool | None:
        return next((gate.is_open for gate in self._ours.do(ListGates()) if gate.name == MASTER), None)


def _opened(url: str, *, is_used: bool = True) -> Store:
    """The database with the jobs. `is_used`: its rows are read, so its schema has to be that of this version."""
    store = open_store(url, "never")
    try:
        version = store.schema_version()
        if version == 0:
            raise SchemaBehind(f"{shown_url(url)} has no schema of Tenure's, so there is nothing to move.")
        if is_used and version < (wanted := store.do(Inspect()).schema_wanted):
            raise SchemaBehind(
                f"The schema of {shown_url(url)} is at migration {version}, and this version of Tenure needs {wanted}. "
                f"Nothing was changed. Run `tenure migrate --url {shown_url(url)}` first."
            )
    except BaseException:
        store.close()
        raise
    return store


def _names(tables: TableAccess) -> list[str]:
    shapes = tables.tables()
    return [table.name for table in plan(shapes, shapes)]


def _batches(rows: Iterator[Row]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += sum(len(value) for value in row if isinstance(value, str | bytes))
        if len(batch) == BATCH_ROWS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _is_filling(line: Move | None) -> bool:
    return line is not None and line.role == "destination" and line.phase != "done"


def _refuse_filled(tables: TableAccess, planned: list[Table], url: str) -> None:
    found = {table.name: tables.count(table.name) for table in planned}
    filled = [f"{rows:,} in {name}" for name, rows in found.items() if rows > SEEDS.get(name, 0)]
    if filled:
        raise IllegalMove(
            f"{url} is not empty: it has rows, {', '.join(filled[:5])}. Nothing was changed. A move fills an empty "
            "database: name another one, or drop what is in this one."
        )


def _profiles(store: Store) -> tuple[list[str], list[str]]:
    """The profiles of a database: those that come with Tenure, and others."""
    from tenure.profiles import loader

    installed = [row.name for row in store.do(ListProfiles())]
    shipped = set(loader.shipped())
    return [name for name in installed if name in shipped], [name for name in installed if name not in shipped]


def _install(store: Store, names: list[str], actor: str) -> None:
    from tenure.client.connect import scheme_of
    from tenure.profiles import loader
    from tenure.store.admin import InstallProfile

    engine = "sqlite" if scheme_of(store.url) == "sqlite" else "postgres"
    for name in names:
        found = loader.load(name)
        store.install_profile(InstallProfile(found.profile, found.scripts[engine], found.checksum, actor))


def _restore_gate(store: Store, move: Move, actor: str) -> None:
    """The gate `master` as it was before the move. A gate without a row is open."""
    store.do(SetGate(MASTER, move.master is not False, actor, "the move is over"))
