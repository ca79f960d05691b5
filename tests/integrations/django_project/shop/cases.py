"""What a backend for Django's tasks has to do, run by Django's own test runner on each engine.

The cases are those of Django's tests for its backends, written anew for one that keeps tasks.
"""

import asyncio
import copy
import dataclasses
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.db import connection, transaction
from django.test import TransactionTestCase, override_settings
from django.utils import timezone

from shop import jobs, tasks  # type: ignore[import-not-found]
from shop.models import Entry  # type: ignore[import-not-found]
from shop.task_api import (  # type: ignore[import-not-found]
    LOGGER,
    InvalidTaskError,
    TaskResultDoesNotExist,
    TaskResultMismatch,
    TaskResultStatus,
    default_task_backend,
    task,
    task_enqueued,
    task_finished,
    task_started,
)
from tenure.integrations.django import aenqueue, app, enqueue
from tenure.integrations.django.backend import TenureBackend
from tenure.testing import drain


def work() -> None:
    drain(app, raise_errors=False)


class Cases(TransactionTestCase):
    def tearDown(self) -> None:
        work()

    def heard(self, signal: Any) -> list[Any]:
        found: list[Any] = []

        def listen(sender: Any, task_result: Any, **_: Any) -> None:
            found.append((sender, task_result.id, task_result.status))

        signal.connect(listen, weak=False)
        self.addCleanup(signal.disconnect, listen)
        return found


class EnqueueCases(Cases):
    def test_the_backend_is_ours_and_has_every_feature(self) -> None:
        assert tasks.nothing.get_backend().__class__ is TenureBackend
        assert all(
            getattr(TenureBackend, f"supports_{name}") for name in ("defer", "async_task", "get_result", "priority")
        )

    def test_an_enqueued_task_is_ready(self) -> None:
        for one in (tasks.nothing, tasks.nothing_async):
            with self.subTest(one.name):
                result = one.enqueue(1, "two")
                assert (result.status, result.is_finished) == (TaskResultStatus.READY, False)
                assert (result.started_at, result.last_attempted_at, result.finished_at) == (None, None, None)
                assert result.enqueued_at is not None
                assert (result.task, result.args, result.kwargs, result.attempts) == (one, [1, "two"], {}, 0)
                with self.assertRaisesRegex(ValueError, "not finished"):
                    _ = result.return_value

    def test_an_async_caller_enqueues(self) -> None:
        result = asyncio.run(tasks.nothing.aenqueue(one=1))
        assert (result.status, result.kwargs) == (TaskResultStatus.READY, {"one": 1})

    def test_arguments_are_normalised_to_json(self) -> None:
        result = tasks.nothing.enqueue((1, 2), key={"a": (3,)})
        assert (result.args, result.kwargs) == ([[1, 2]], {"key": {"a": [3]}})
        assert default_task_backend.get_result(result.id).args == [[1, 2]]

    def test_arguments_that_are_not_json_are_refused(self) -> None:
        for wrong in (object(), b"\xff", {1, 2}):
            with self.subTest(repr(wrong)), self.assertRaises((TypeError, ValueError)):
                tasks.nothing.enqueue(wrong)

    def test_signals_tell_of_begin_and_end(self) -> None:
        enqueued, started, finished = self.heard(task_enqueued), self.heard(task_started), self.heard(task_finished)
        result = tasks.meaning_of_life.enqueue()
        assert enqueued == [(TenureBackend, result.id, TaskResultStatus.READY)]
        work()
        assert started == [(TenureBackend, result.id, TaskResultStatus.RUNNING)]
        assert finished == [(TenureBackend, result.id, TaskResultStatus.SUCCESSFUL)]

    def test_a_failure_is_signalled(self) -> None:
        finished = self.heard(task_finished)
        result = tasks.fails.enqueue()
        work()
        assert finished == [(TenureBackend, result.id, TaskResultStatus.FAILED)]

    def test_a_receiver_is_told_of_a_failure_with_its_traceback(self) -> None:
        """It was told repr(exception), where the other backends tell the lines that lead there."""
        told: list[Any] = []

        def listen(sender: Any, task_result: Any, **_: Any) -> None:
            told.extend(task_result.errors)

        task_finished.connect(listen, weak=False)
        self.addCleanup(task_finished.disconnect, listen)
        tasks.fails.enqueue()
        work()
        (error,) = told
        assert error.exception_class is ValueError
        assert "Traceback (most recent call last)" in error.traceback
        assert "in fails" in error.traceback

    def test_a_process_that_asks_to_exit_is_a_failure(self) -> None:
        finished = self.heard(task_finished)
        result = tasks.exits.enqueue()
        work()
        result.refresh()
        assert (result.status, result.errors[0].exception_class) == (TaskResultStatus.FAILED, SystemExit)
        assert finished == [(TenureBackend, result.id, TaskResultStatus.FAILED)]

    def test_what_happens_is_logged(self) -> None:
        for one, ends in ((tasks.nothing, "state=SUCCESSFUL"), (tasks.fails, "state=FAILED")):
            with self.subTest(one.name), self.assertLogs(LOGGER, level="DEBUG") as captured:
                result = one.enqueue()
                work()
                assert len(captured.output) == 3
                for line, word in zip(captured.output, ("enqueued", "state=RUNNING", ends), strict=True):
                    assert word in line
                    assert result.id in line
                    assert "NoneType" not in line

    def test_a_task_that_the_settings_no_longer_allow_is_refused_when_it_is_enqueued(self) -> None:
        elsewhere = tasks.nothing.using(queue_name="queue-1")
        changed = copy.deepcopy(settings.TASKS)
        changed["default"]["QUEUES"] = ["default"]
        with override_settings(TASKS=changed):
            with self.assertRaisesRegex(InvalidTaskError, "Queue 'queue-1'"):
                elsewhere.enqueue()
            with self.assertRaisesRegex(InvalidTaskError, "Queue 'queue-1'"):
                asyncio.run(elsewhere.aenqueue())

    def test_without_a_list_of_queues_every_queue_is_allowed(self) -> None:
        changed = copy.deepcopy(settings.TASKS)
        changed["default"]["QUEUES"] = []
        with override_settings(TASKS=changed):
            result = tasks.nothing.using(queue_name="anywhere").enqueue()
            drain(app, queues=["anywhere"])
            assert default_task_backend.get_result(result.id).status == TaskResultStatus.SUCCESSFUL


class RunCases(Cases):
    def test_a_task_runs_and_its_result_is_kept(self) -> None:
        result = tasks.add.enqueue(40, b=2)
        work()
        result.refresh()
        assert (result.status, result.return_value, result.is_finished) == (TaskResultStatus.SUCCESSFUL, 42, True)
        assert result.enqueued_at <= result.started_at <= result.finished_at
        assert (result.attempts, len(result.worker_ids), result.errors) == (1, 1, [])

    def test_an_async_task_runs(self) -> None:
        result = tasks.nothing_async.enqueue(1)
        work()
        asyncio.run(result.arefresh())
        assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, None)

    def test_errors_keep_their_class_and_traceback(self) -> None:
        for one, error in ((tasks.fails, ValueError), (tasks.fails_by_key, KeyError), (tasks.fails_oddly, tasks.Odd)):
            with self.subTest(one.name):
                result = one.enqueue()
                work()
                result.refresh()
                assert result.status == TaskResultStatus.FAILED
                (found,) = result.errors
                assert found.exception_class is error, found
                assert found.traceback.startswith("Traceback")
                assert "shop/tasks.py" in found.traceback
                with self.assertRaisesRegex(ValueError, "failed"):
                    _ = result.return_value

    def test_a_result_that_is_not_json_is_a_failure(self) -> None:
        result = tasks.returns_no_json.enqueue()
        work()
        result.refresh()
        assert result.status == TaskResultStatus.FAILED
        assert result.errors[0].exception_class is TypeError

    def test_a_task_knows_itself(self) -> None:
        result, counted = tasks.own_id.enqueue(), tasks.attempts.enqueue(1)
        work()
        result.refresh()
        counted.refresh()
        assert result.return_value == result.id
        assert counted.return_value == 1

    def test_a_task_waits_for_its_time(self) -> None:
        later = timezone.now() + timedelta(hours=1)
        result = tasks.nothing.using(run_after=later).enqueue()
        work()
        found = default_task_backend.get_result(result.id)
        assert (found.status, found.task.run_after) == (TaskResultStatus.READY, later)

    def test_priority_and_queue_are_the_jobs_own(self) -> None:
        result = tasks.urgent.enqueue()
        other = tasks.urgent.using(queue_name="queue-1", priority=-3).enqueue()
        job = app.get(other.id)
        assert (app.get(result.id).queue, app.get(result.id).priority) == ("mail", 10)
        assert (job.queue, job.priority) == ("queue-1", -3)
        assert default_task_backend.get_result(other.id).task == tasks.urgent.using(queue_name="queue-1", priority=-3)

    def test_a_task_can_be_called(self) -> None:
        assert tasks.add.call(1, b=2) == 3
        assert asyncio.run(tasks.add.acall(1, b=2)) == 3


class ResultCases(Cases):
    def test_a_result_is_found_by_its_id(self) -> None:
        result = tasks.add.enqueue(1)
        for found in (default_task_backend.get_result(result.id), asyncio.run(tasks.add.aget_result(result.id))):
            assert (found.id, found.task, found.args, found.backend) == (result.id, tasks.add, [1], "default")

    def test_a_result_equals_itself_however_it_was_got(self) -> None:
        result = tasks.nothing.using(priority=7).enqueue(1, two=[3])
        before = dataclasses.asdict(result)
        assert default_task_backend.get_result(result.id) == result
        assert asyncio.run(tasks.nothing.aget_result(result.id)) == result
        result.refresh()
        asyncio.run(result.arefresh())
        assert dataclasses.asdict(result) == before

    def test_moments_are_naive_where_the_project_wants_them_so(self) -> None:
        with override_settings(USE_TZ=False):
            later = timezone.now() + timedelta(hours=1)
            waits, done = tasks.nothing.using(run_after=later).enqueue(), tasks.add.enqueue(1)
            work()
            waits.refresh()
            done.refresh()
            assert waits.task.run_after == later
            assert done.enqueued_at <= done.started_at <= done.finished_at <= timezone.now()

    def test_a_job_that_was_moved_beyond_what_tasks_may_is_still_found(self) -> None:
        result = tasks.nothing.enqueue()
        app.edit(result.id, priority=1_000, reason="a trial")
        app.queues.set("of-another-program")
        elsewhere = app.enqueue(tasks.nothing.module_path, {"args": [], "kwargs": {}}, queue="of-another-program")
        for identity in (result.id, elsewhere.id):
            found = default_task_backend.get_result(identity)
            assert (found.id, found.task, found.status) == (identity, tasks.nothing, TaskResultStatus.READY)

    def test_a_result_that_is_not_there(self) -> None:
        for identity in ("123", "01890000-0000-7000-8000-000000000000", "no id at all"):
            with self.subTest(identity), self.assertRaises(TaskResultDoesNotExist):
                default_task_backend.get_result(identity)
        with self.assertRaises(TaskResultDoesNotExist):
            asyncio.run(tasks.add.aget_result("123"))

    def test_a_result_of_another_task_is_a_mismatch(self) -> None:
        with self.assertRaisesRegex(TaskResultMismatch, "shop.tasks.add"):
            tasks.nothing.get_result(tasks.add.enqueue(1).id)

    def test_a_job_that_is_no_task_is_said_to_be_none(self) -> None:
        handle = jobs.record.enqueue("x")
        with self.assertRaisesRegex(TaskResultDoesNotExist, "record"):
            default_task_backend.get_result(handle.id)


class ValidationCases(Cases):
    def test_what_cannot_be_run_is_refused(self) -> None:
        def inner() -> None: ...

        refused: list[tuple[str, Any]] = [
            ("module level", lambda: task(inner)),
            ("priority must be", lambda: task(priority=101)(tasks.plain)),
            ("priority must be", lambda: tasks.nothing.using(priority=-101)),
            ("priority must be", lambda: tasks.nothing.using(priority=1.5)),
            ("Queue 'nowhere'", lambda: tasks.nothing.using(queue_name="nowhere")),
            ("first argument of 'context'", lambda: task(takes_context=True)(tasks.plain)),
            ("aware datetime", lambda: tasks.nothing.using(run_after=timezone.now().replace(tzinfo=None))),
        ]
        for sentence, act in refused:
            with self.subTest(sentence), self.assertRaisesRegex(InvalidTaskError, sentence):
                act()

    def test_the_system_checks_pass(self) -> None:
        call_command("check")


class TransactionCases(Cases):
    """The reason for a backend in the same database: no on_commit."""

    def test_a_rollback_takes_the_task_back(self) -> None:
        try:
            with transaction.atomic():
                Entry.objects.create(word="gone")
                result = tasks.nothing.enqueue()
                handle = enqueue(jobs.record, "gone")
                raise RuntimeError
        except RuntimeError:
            pass
        assert app.get_many([result.id, handle.id]) == [None, None]
        assert not Entry.objects.exists()

    def test_a_commit_brings_both(self) -> None:
        with transaction.atomic():
            Entry.objects.create(word="kept")
            result = tasks.nothing.enqueue()
            assert app.get_many([result.id]) == [None]
        work()
        result.refresh()
        assert result.status == TaskResultStatus.SUCCESSFUL

    def test_an_inner_rollback_takes_its_own_back_only(self) -> None:
        with transaction.atomic():
            kept = tasks.nothing.enqueue()
            try:
                with transaction.atomic():
                    gone = tasks.nothing.enqueue()
                    raise RuntimeError
            except RuntimeError:
                pass
        assert app.get_many([gone.id]) == [None]
        assert app.get(kept.id).state == "queued"

    def test_handlers_use_the_orm(self) -> None:
        first = enqueue(jobs.record, "one")
        work()
        second = asyncio.run(aenqueue(jobs.record_async, "two"))
        work()
        assert (app.get(first.id).result, app.get(second.id).result) == (1, 2)
        assert list(Entry.objects.order_by("id").values_list("word", flat=True)) == ["one", "two"]


class AdminCases(Cases):
    def test_jobs_are_shown_with_links_to_the_console(self) -> None:
        handle = jobs.record.enqueue("<b>")
        User.objects.create_superuser("root", password="x")
        self.client.login(username="root", password="x")
        page = self.client.get("/admin/tenure/job/?state=queued")
        self.assertContains(page, f'<a href="https://console.example/ui/jobs/{handle.id}">')
        self.assertContains(self.client.get("/admin/"), "/admin/tenure/job/")
        self.assertContains(self.client.get("/admin/tenure/job/?state=nonsense"), "errornote")

    def test_others_need_the_permission(self) -> None:
        user = User.objects.create_user("ann", password="x", is_staff=True)
        self.client.login(username="ann", password="x")
        assert self.client.get("/admin/tenure/job/").status_code == 403
        user.user_permissions.add(Permission.objects.get(codename="view_job"))
        assert self.client.get("/admin/tenure/job/").status_code == 200


class ConnectionCases(Cases):
    def test_a_handler_finds_a_connection_that_works_although_the_last_one_was_cut(self) -> None:
        """Of the thread that ran the first job; the worker of a drain is gone afterwards, so cut it in a job."""
        from tenure.integrations.django.project import refresh_connections

        connection.ensure_connection()
        before = connection.connection
        connection.connection.close()
        refresh_connections()
        assert Entry.objects.count() == 0
        assert connection.connection is not before
