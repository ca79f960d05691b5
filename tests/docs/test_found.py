"""What was once found wrong by users, by attack and against the specifications, each with tests that would fail again.

M: against a specification. U: against what a user expects. V: a weakness.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]

FOUND: Final = """
M1 a healthy job never dies of its neighbour
    fault/test_poison.py::test_healthy_jobs_survive_their_neighbour
M2 003's INSERT … ON CONFLICT runs as printed
    profiles/test_enqueue_once.py::test_the_printed_statement_makes_one_task_and_returns_its_id_again
    profiles/test_enqueue_once.py::test_the_doors_take_their_locks_in_one_order
M3 silence takes no lease that has not run out; fresh, warning and stale are all seen
    conformance/test_workers_and_leases.py::test_silence_takes_no_lease_that_has_not_run_out
    profiles/test_substrate_health.py::test_health_tells_fresh_from_warning_and_stale_by_the_threshold_and_twice_it
M4 a queue of a profile has its rules, however it came to belong to it
    profiles/test_belonging.py::test_a_profile_adopts_the_queue_that_a_worker_made_before_it
    profiles/test_belonging.py::test_setting_the_profile_of_a_queue_brings_its_rules
M5 a profile's leader is a worker of that profile
    profiles/test_orchestrator.py::test_a_worker_of_another_profile_that_leads_the_database_does_not_lead_this_one
M6 what a specification indexes is found by an index
    profiles/test_looks.py::test_on_postgresql_what_a_specification_indexes_reads_index_pages_only
    profiles/test_looks.py::test_on_sqlite_what_a_specification_indexes_takes_as_few_steps_beside_a_hundred_times_as_many_jobs
M7 one validator at every door
    profiles/test_one_validator.py::test_a_blank_kind_is_refused_at_every_door
    profiles/test_one_validator.py::test_a_negative_priority_of_002_is_refused_from_python
M8 001's orchestrator, agent events, embeddings, memory, console and analytics; pages that do not shorten
    profiles/test_automechanica.py::test_the_orchestrator_moves_a_workflow_by_the_ends_of_its_tasks_thresholds_and_escalation
    profiles/test_automechanica.py::test_a_completed_task_writes_an_agent_event_and_an_embedding_job
    profiles/test_analytics.py::test_a_day_out_of_bounds_is_reported_and_escalated_once
    profiles/test_spec_pages.py::test_a_page_quotes_its_specification_without_shortening_it
M9 agents create no work for other agents, from handlers neither
    worker/test_workflows.py::test_a_handler_of_an_agent_creates_work_for_no_other
    profiles/test_agents.py::test_tenures_own_worker_runs_under_an_agents_login
M10 each lifecycle event is logged once, at info
    client/test_lifecycle_log.py::test_a_good_life_and_what_follows_it
    client/test_lifecycle_log.py::test_a_reclaim_is_told_by_the_worker_whose_claim_made_it
    client/test_lifecycle_log.py::test_the_death_of_a_job_whose_worker_is_gone_is_told
M11 an agent's failure tells its reason and class
    effects/test_agent.py::test_m11_a_refused_key_is_told_with_its_reason_and_class
    effects/test_agent.py::test_m11_a_timeout_is_told_as_one
M12 the last job on a path wins, across kinds
    effects/test_agent.py::test_m12_the_last_job_on_a_path_counts_whatever_its_kind
M13 the profile `outbox` and the class `Outbox` work together
    effects/test_outbox.py::test_m13_the_profile_and_the_class_of_that_name_share_a_database
M14 a worker's lease holds for every kind
    effects/test_file_kinds.py::test_m14_the_workers_lease_holds_for_kinds_that_check_it
M15 metrics count what they say
    conformance/test_metric_spans.py::test_figures_are_those_of_a_count_by_brute_force
    conformance/test_metric_spans.py::test_jobs_whose_ids_tell_no_time_are_counted_once
    conformance/test_metric_spans.py::test_silence_is_not_booked_to_a_time_before_the_worker
    conformance/test_metric_spans.py::test_an_agent_that_fails_twice_and_then_succeeds_has_an_error_rate
    conformance/test_metric_spans.py::test_more_rows_than_a_page_are_read_whole
M16 the letter of the specifications in small things
    profiles/test_orchestrator.py::test_a_payload_may_be_left_out
    profiles/test_substrate.py::test_a_job_that_was_refused_is_failed_and_has_no_row_among_the_dead_letters
    migration/test_postgres_migrations.py::test_the_printed_script_does_what_migrate_does
    profiles/test_command.py::test_the_sql_of_a_profile_can_be_printed
    profiles/test_command.py::test_an_install_on_sqlite_lists_what_is_there
    profiles/test_automechanica.py::test_a_task_may_name_a_workflow_that_its_orchestrator_keeps
    effects/test_agent.py::test_a_requirement_and_the_extraction_of_it_are_accepted_in_one_step
M17 a page per profile that can be followed
    profiles/test_spec_pages.py::test_a_page_begins_with_what_to_type_and_the_examples_of_pages_are_executed
    docs/test_shell.py::test_the_shell_examples_of_a_page_print_what_it_shows
    docs/test_shell.py::test_the_examples_on_postgresql_print_what_the_page_shows
U1 an unknown kind stays queued
    worker/test_deaf.py::test_unknown_kinds_are_left_alone_and_named_once
U2 a worker on another's event loop leaves the signals alone
    cli/test_first_hour.py::test_a_worker_on_somebody_elses_event_loop_leaves_the_signals_alone
U3 Django: connections, commands, tasks backend
    integrations/test_django.py::test_after_every_session_was_cut_the_next_job_succeeds_at_once
    integrations/test_django.py::test_commands_pass_through_with_the_projects_database
    integrations/test_django.py::test_the_backend_passes_the_cases_of_djangos_own_tests
U4 an error in the user's module is shown as theirs
    cli/test_first_hour.py::test_an_error_in_the_users_module_is_shown_as_theirs
U5 failures are logged by default; middleware is typed
    client/test_clear_sentences.py::test_a_worker_in_python_logs_failures_with_their_traceback
    client/test_handler_options.py::test_middleware_goes_around_every_handler
U6 `tenure enqueue` honours the decorator
    cli/test_first_hour.py::test_enqueue_honours_the_decorator_of_the_app_in_this_folder
U7 no extra without code
    packaging/test_requirements.py::test_an_extra_has_code_that_imports_it
    packaging/test_requirements.py::test_extras_are_imported_late
U8 a result can be waited for
    client/test_results.py::test_a_handle_waits_for_the_result_while_a_worker_runs_elsewhere
    client/test_results.py::test_a_result_has_the_type_that_the_handler_returns
U9 a changed policy is told and applied; schedules and queues are removed
    cli/test_everyday.py::test_a_policy_changed_in_code_is_named_and_applied_on_demand
    cli/test_everyday.py::test_schedules_and_queues_can_be_removed
U10 what handlers log is shown
    cli/test_first_hour.py::test_the_live_log_shows_what_handlers_log_and_where_they_raise
U11 several arguments
    client/test_several_arguments.py::test_a_function_with_several_parameters_is_enqueued_as_it_is_called
    client/test_several_arguments.py::test_wrong_arguments_are_told_with_what_the_function_takes
U12 what is printed is accepted; prefixes of ids; narrow terminals
    cli/test_everyday.py::test_states_are_accepted_as_they_are_printed
    cli/test_everyday.py::test_a_prefix_of_an_id_is_enough
    cli/test_everyday.py::test_a_list_keeps_its_columns_on_a_narrow_terminal
U13 every Python at hand is tested
    unit/test_pythons.py::test_the_python_that_runs_this_is_found_and_one_of_each_minor_version_is_taken
U14 bulk acts count first and take no answer typed ahead
    cli/test_everyday.py::test_many_are_counted_without_being_read_and_acted_on_page_by_page
    cli/test_everyday.py::test_typing_ahead_answers_no_question
U15 retention says what it does and has a default
    cli/test_everyday.py::test_delete_after_deletes_what_its_queue_still_retains
    cli/test_everyday.py::test_workers_delete_rows_after_a_month_unless_told_otherwise
U16 tests fail with their handlers; zones are explicit; reading creates nothing
    cli/test_everyday.py::test_a_failing_handler_fails_the_test_that_drains
    cli/test_everyday.py::test_a_moment_without_a_zone_is_refused
    cli/test_everyday.py::test_a_worker_creates_no_queue_by_a_typing_mistake
    cli/test_everyday.py::test_reading_creates_no_schema
U17 a clear sentence for each misuse
    client/test_clear_sentences.py::test_a_sync_worker_on_an_event_loop_is_refused
    client/test_clear_sentences.py::test_a_handler_that_blocks_the_event_loop_is_named
    client/test_clear_sentences.py::test_a_sync_call_in_a_coroutine_is_warned_of
    client/test_clear_sentences.py::test_a_plain_function_is_no_schedule
    client/test_clear_sentences.py::test_urls_of_sqlalchemy_are_accepted
U18 --version, -h, python -m tenure; completion of queues and kinds
    cli/test_first_hour.py::test_what_one_types_first_is_answered
    cli/test_everyday.py::test_the_shell_completes_queues_and_kinds
U19 small things told wrongly
    cli/test_everyday.py::test_an_error_from_before_a_success_is_not_told_as_the_end
    cli/test_everyday.py::test_an_id_that_is_not_there_is_not_found
    cli/test_everyday.py::test_explain_tells_why_a_queue_was_paused
U20 retry by class, keys from arguments, upgrades of payloads
    client/test_handler_options.py::test_exceptions_decide_whether_a_job_is_retried
    client/test_handler_options.py::test_keys_are_made_from_the_arguments
    client/test_handler_options.py::test_an_old_payload_is_upgraded_before_it_is_checked
V1 secrets and signing keys go to their own hosts
    effects/test_webhook.py::test_v1_a_secret_goes_to_its_own_hosts_and_headers_only
    effects/test_webhook.py::test_v1_the_default_key_signs_for_its_own_hosts_only
    effects/test_ssrf.py::test_v1_a_signature_holds_for_its_host_and_path_only
V2 nothing is imported from the current folder
    cli/test_first_hour.py::test_no_command_and_no_child_imports_from_the_current_folder
    cli/test_first_hour.py::test_the_module_is_started_without_an_import_from_the_current_folder
    effects/test_sandbox.py::test_v2_the_sandboxs_own_processes_import_nothing_from_the_current_folder
V3 a schema stalls nothing
    effects/test_agent.py::test_v3_a_schema_that_takes_for_ever_is_refused_before_the_agent_runs
    effects/test_agent.py::test_v3_a_slow_schema_that_is_allowed_ends_a_child_and_stalls_nothing
V4 a producer sees its own jobs
    postgres/test_owners.py::test_a_producer_is_told_nothing_of_what_another_enqueued
    profiles/test_rights.py::test_no_view_shows_a_producer_the_ids_of_others
V5 a worker touches and reads what it holds
    postgres/test_grants.py::test_another_login_cannot_end_a_job_with_the_right_id_and_token
    postgres/test_owners.py::test_a_worker_is_told_by_no_function_what_anothers_job_carries
    profiles/test_rights.py::test_a_worker_sees_which_jobs_there_are_and_what_its_own_carry
V6 memory and disk are bounded without cgroups
    effects/test_sandbox.py::test_v6_memory_that_no_limit_counts_is_refused_without_a_cgroup
    effects/test_sandbox.py::test_v6_the_disk_that_a_program_takes_is_bounded
V7 what a reader cannot parse is refused, or shown as broken
    conformance/test_unreadable.py::test_a_payload_that_cannot_be_read_is_shown_as_such_beside_the_others
    postgres/test_bounds.py::test_a_job_that_no_reader_could_show_is_refused_by_the_database
V8 one redactor knows the well-known tokens
    effects/test_redact.py::test_v8_well_known_tokens_are_removed_from_stored_errors_and_logs
    effects/test_redact.py::test_v8_headers_urls_and_options_are_removed_to_their_end
V9 special-purpose addresses are blocked
    effects/test_ssrf.py::test_v9_special_purpose_addresses_are_blocked_whatever_python_calls_them
V10 files of others are not used
    sqlite/test_files.py::test_a_file_that_every_user_may_write_is_refused
    sqlite/test_files.py::test_a_link_is_refused_and_what_it_leads_to_is_left_as_it_is
    sqlite/test_files.py::test_the_database_of_another_program_is_not_migrated_by_itself
V11 gates and policies are an admin's
    profiles/test_rights.py::test_an_operator_cannot_open_gates_or_change_policies_through_dot_config
V12 a long key costs no time
    effects/test_redact.py::test_v12_a_long_key_costs_no_time
V13 queues, sizes and statements are bounded
    postgres/test_bounds.py::test_a_producer_creates_no_further_queue_once_there_are_a_thousand
    postgres/test_bounds.py::test_a_login_gets_its_role_with_a_bound_on_its_statements
V14 no password in `ps`
    cli/test_first_hour.py::test_no_child_shows_the_url_in_its_arguments
V15 an id of another job is not answered as created
    conformance/test_idempotent_repeats.py::test_an_id_that_belongs_to_another_job_is_refused
V16 neither case nor a repeated key passes the payload guard
    conformance/test_payload_guard.py::test_neither_case_nor_a_repeated_key_passes_the_guard
V17 wake-ups go to no folder that others may enter
    sqlite/test_wake.py::test_sockets_in_a_folder_that_others_may_enter_are_ignored
V18 the lock of migrations is waited for with a limit
    migration/test_postgres_migrations.py::test_a_migration_waits_for_another_no_longer_than_its_limit
V19 a bad datagram ends nothing
    sqlite/test_wake.py::test_a_datagram_that_cannot_be_read_wakes_everybody_and_ends_nothing
V20 an agent reaches its own ports only
    effects/test_sandbox.py::test_v20_an_agent_on_the_workers_network_reaches_its_ports_only
V21 requirements are locked by hashes and audited
    packaging/test_requirements.py::test_every_pinned_requirement_has_hashes_and_names_no_index
    packaging/test_deploy.py::test_ci_runs_every_python_and_postgresql_that_is_supported_and_targets_that_exist
V22 an agent in /bin starts where that is a link
    effects/test_agent.py::test_v22_an_agent_named_in_bin_starts_where_bin_is_a_link
"""
ROWS: Final = re.findall(r"^([MUV]\d+) (.+)\n((?:    .+\n)+)", FOUND, re.MULTILINE)


@cache
def names_in(path: str) -> frozenset[str]:
    return frozenset(re.findall(r"\bdef (test_\w+)\(", (ROOT / path).read_text()))


def test_every_finding_is_here_once() -> None:
    wanted = [f"{letter}{number + 1}" for letter, last in (("M", 17), ("U", 20), ("V", 22)) for number in range(last)]

    assert [row for row, *_ in ROWS] == wanted


@pytest.mark.parametrize(("row", "cited"), [(row, cited) for row, _, cited in ROWS], ids=[row for row, *_ in ROWS])
def test_a_finding_names_tests_that_exist(row: str, cited: str) -> None:
    for one in cited.split():
        path, _, name = one.partition("::")
        assert name in names_in(path), (row, one)
