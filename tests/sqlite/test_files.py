"""The file: its mode, its place, and what happens when it is not what it was."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import tenure
from tenure.errors import AccessDenied, ConfigError, Corrupt, ReadOnly, SchemaBehind, StoreUnavailable, TenureError
from tenure.model.ids import new_job_id
from tenure.store.queries import GetJobs
from tenure.store.sqlite import files
from tenure.store.sqlite.connection import open_reader, open_writer
from tenure.store.sqlite.store import SqliteStore
from tests.sqlite.bed import in_fork, put

NOBODY = 65534


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def opened(path: Path) -> SqliteStore:
    store = SqliteStore(f"sqlite:///{path}")
    store.migrate()
    return store


def refusal(path: Path) -> TenureError:
    """The error that opening and writing to a file gives."""
    with pytest.raises(TenureError) as caught:
        opened(path)
    return caught.value


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_all_files_are_for_their_owner_only_whatever_the_umask(path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        store = opened(path)
        put(store)
        subscription = store.subscribe(["default"], lambda: None)
    finally:
        os.umask(before)

    assert [mode(path), mode(Path(f"{path}-wal")), mode(Path(f"{path}-shm"))] == [0o600] * 3
    assert mode(Path(f"{path}-tenure")) == 0o700
    subscription.close()
    store.close()


def test_a_file_that_was_there_keeps_its_mode(path: Path) -> None:
    path.touch()
    path.chmod(0o640)

    opened(path).close()

    assert mode(path) == 0o640


def test_the_folder_is_synced_after_the_file_was_made(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync_folder", synced.append)

    opened(path).close()
    opened(path).close()

    assert synced == [path.parent]


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "9p", "fuse.sshfs", "fuse", "smb3", "virtiofs"])
def test_a_filesystem_that_machines_share_is_refused(path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "filesystem_kind", lambda folder: kind)

    error = refusal(path)

    assert type(error) is ConfigError
    assert kind in str(error)
    assert "PostgreSQL" in str(error)
    assert not path.exists()


def test_the_kind_of_a_filesystem_is_read_from_the_kernel(tmp_path: Path) -> None:
    assert files.filesystem_kind(Path("/proc")) == "proc"
    assert files.filesystem_kind(tmp_path.resolve()) not in {"", "proc"}


@pytest.mark.parametrize("url", ["sqlite:///", "sqlite://jobs.db", "sqlite:///folder/", "postgresql://x/y", "jobs.db"])
def test_a_url_that_names_no_file_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="sqlite:///"):
        SqliteStore(url)


def test_a_database_in_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match="lose"):
        SqliteStore("sqlite:///:memory:")


def test_a_folder_is_no_database(tmp_path: Path) -> None:
    assert type(refusal(tmp_path)) is ConfigError


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    error = refusal(tmp_path / "nowhere" / "jobs.db")

    assert type(error) is StoreUnavailable
    assert "nowhere" in str(error)


def test_a_file_that_is_no_database_is_left_as_it_is(path: Path) -> None:
    text = "Dear diary, today I was taken for a database.\n" * 100
    path.write_text(text)

    error = refusal(path)

    assert type(error) is Corrupt
    assert path.read_text() == text


def test_a_link_is_refused_and_what_it_leads_to_is_left_as_it_is(path: Path, tmp_path: Path) -> None:
    """V10: a link that another user made led the schema into another database."""
    aim = tmp_path / "aim.db"
    aim.touch()
    path.symlink_to(aim)

    error = refusal(path)

    assert type(error) is AccessDenied
    assert str(aim) in str(error)
    assert aim.read_bytes() == b""


def test_a_file_that_every_user_may_write_is_refused(path: Path) -> None:
    """V10."""
    opened(path).close()
    path.chmod(0o666)

    error = refusal(path)

    assert type(error) is AccessDenied
    assert "chmod 600" in str(error)


def test_a_folder_that_every_user_may_write_is_refused_unless_it_is_sticky(path: Path) -> None:
    """V10."""
    path.parent.chmod(0o777)
    assert type(refusal(path)) is AccessDenied
    assert not path.exists()

    path.parent.chmod(0o1777)
    opened(path).close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused_unless_it_is_shared_with_a_group_of_ours(path: Path) -> None:
    """V10: root used a file that any user had put there."""
    opened(path).close()
    os.chown(path, NOBODY, NOBODY)
    assert type(refusal(path)) is AccessDenied

    os.chown(path, NOBODY, os.getgid())
    path.chmod(0o660)
    opened(path).close()


def test_the_database_of_another_program_is_not_migrated_by_itself(path: Path) -> None:
    """V10: opening an App made a queue of whatever database the URL named."""
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE account (id INTEGER)")
    path.chmod(0o600)
    url = f"sqlite:///{path}"

    with tenure.App(url) as app, pytest.raises(SchemaBehind, match="account"):
        app.queues.all()
    with contextlib.closing(sqlite3.connect(path)) as other:
        assert [row[0] for row in other.execute("SELECT name FROM sqlite_schema")] == ["account"]

    with tenure.App(url, migrate="always") as app:
        assert [row.name for row in app.queues.all()] == ["default"]
    with tenure.App(url) as app:
        app.queues.all()


def test_broken_cells_are_found_when_a_page_is_read(store: SqliteStore, path: Path) -> None:
    put(store)
    connections = [open_writer(path, 1.0), open_reader(path)]

    settings = [each.execute("PRAGMA cell_size_check").fetchone()[0] for each in connections]

    for each in connections:
        each.close()
    assert settings == [1, 1]


def test_a_file_that_does_not_exist_is_made_by_migrate_alone(path: Path) -> None:
    store = SqliteStore(f"sqlite:///{path}")

    for look in (lambda: put(store), lambda: store.do(GetJobs([new_job_id()])), store.schema_version):
        with pytest.raises(StoreUnavailable, match="There is no database file"):
            look()
    assert list(path.parent.iterdir()) == []

    assert store.migrate() == ["0001_schema"]
    assert mode(path) == 0o600
    path.unlink()
    with pytest.raises(StoreUnavailable, match="is gone"):  # one that was taken away stays away
        store.migrate()

    store.close()


def test_a_file_without_the_schema_says_what_to_do(path: Path) -> None:
    path.touch(mode=0o600)
    store = SqliteStore(f"sqlite:///{path}")

    with pytest.raises(SchemaBehind, match="tenure migrate"):
        put(store)
    with pytest.raises(SchemaBehind):
        store.do(GetJobs([new_job_id()]))
    assert store.schema_version() == 0

    store.close()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that another user may enter."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def as_nobody(path: Path) -> tuple[type, str]:
    """The error that a user without rights gets."""

    def act() -> tuple[type, str]:
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        error = refusal(path)
        return type(error), str(error)

    return in_fork(act)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_file_that_may_be_read_but_not_written_is_called_read_only(open_folder: Path) -> None:
    path = open_folder / "jobs.db"
    opened(path).close()
    path.chmod(0o644)

    kind, sentence = as_nobody(path)

    assert kind is ReadOnly
    assert str(path) in sentence


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_file_of_somebody_else_is_denied(open_folder: Path) -> None:
    path = open_folder / "jobs.db"
    opened(path).close()

    assert as_nobody(path)[0] is AccessDenied


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_folder_in_which_nothing_may_be_made_is_denied(open_folder: Path) -> None:
    assert as_nobody(open_folder / "jobs.db")[0] is AccessDenied


def test_a_file_that_was_taken_away_is_noticed_and_not_made_anew(store: SqliteStore, path: Path) -> None:
    put(store)
    path.rename(path.with_name("elsewhere.db"))

    with pytest.raises(StoreUnavailable, match="replaced or taken away"):
        put(store)
    with pytest.raises(StoreUnavailable, match="gone"):
        put(store)
    with pytest.raises(StoreUnavailable, match="gone"):
        store.do(GetJobs([new_job_id()]))

    assert not path.exists()


def test_a_file_that_was_replaced_is_noticed_before_anything_is_written(
    store: SqliteStore, path: Path, tmp_path: Path
) -> None:
    first = put(store)
    (tmp_path / "other").mkdir()
    other = opened(tmp_path / "other" / "jobs.db")
    other.close()
    path.rename(tmp_path / "old.db")
    (tmp_path / "other" / "jobs.db").rename(path)

    with pytest.raises(StoreUnavailable, match="replaced"):
        put(store)
    # The old file's WAL still lies there: SQLite would play it into the new file.
    with pytest.raises(StoreUnavailable, match="-wal still belongs"):
        put(store)
    with pytest.raises(StoreUnavailable, match="-wal still belongs"):
        store.do(GetJobs([first]))
    Path(f"{path}-wal").unlink()
    Path(f"{path}-shm").unlink()

    second = put(store)
    assert [found is not None for found in store.do(GetJobs([first, second]))] == [False, True]


def test_a_damaged_file_is_called_so(path: Path) -> None:
    store = opened(path)
    for _ in range(50):
        put(store, payload='{"text": "' + "x" * 2000 + '"}')
    store.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        for page in range(1, size // 4096):
            file.seek(page * 4096)
            file.write(b"\xff" * 64)

    store = SqliteStore(f"sqlite:///{path}")
    with pytest.raises(Corrupt, match="damaged"):
        put(store)

    store.close()
