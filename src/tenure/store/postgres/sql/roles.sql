-- Who may do what. Runs at the end of every migration, and does no harm when repeated.
--
-- tenure_owner owns the schema and everything in it, and cannot log in. Five more roles, siblings that inherit nothing from each
-- other, may call functions and nothing else: no table, no sequence, no CREATE. Give a login one of them:
--     GRANT tenure_worker TO my_login;
--
-- Roles belong to the whole cluster. Where the migrating user may not create them, everything works without: the objects stay that
-- user's own, and a warning says so. Run this file again as a superuser to catch up.

DO $roles$
DECLARE
    v_role text;
BEGIN
    FOREACH v_role IN ARRAY ARRAY[
        'tenure_owner', 'tenure_producer', 'tenure_worker', 'tenure_reader', 'tenure_operator', 'tenure_admin'
    ] LOOP
        CONTINUE WHEN EXISTS (SELECT 1 FROM pg_catalog.pg_roles AS r WHERE r.rolname = v_role);
        BEGIN
            EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', v_role);
        EXCEPTION
            WHEN duplicate_object OR unique_violation THEN
                NULL;  -- Another database of this cluster is being migrated at the same time.
            WHEN insufficient_privilege THEN
                RAISE WARNING 'Role % was not created, because % may not create roles.', v_role, current_user
                    USING HINT = 'Run sql/roles.sql as a superuser, or go on with the privileges of one login.';
        END;
    END LOOP;
END
$roles$;

DO $owner$
DECLARE
    v_object record;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_roles AS r WHERE r.rolname = 'tenure_owner') THEN
        RETURN;
    END IF;
    -- To hand something over, one must be able to act as the new owner.
    IF NOT (SELECT r.rolsuper FROM pg_catalog.pg_roles AS r WHERE r.rolname = current_user) THEN
        EXECUTE pg_catalog.format('GRANT tenure_owner TO %I', current_user);
    END IF;
    ALTER SCHEMA tenure OWNER TO tenure_owner;
    FOR v_object IN
        SELECT c.oid::pg_catalog.regclass AS name
        FROM pg_catalog.pg_class AS c
        WHERE c.relnamespace = 'tenure'::pg_catalog.regnamespace
            AND c.relkind IN ('r', 'p', 'v', 'm')
            AND c.relowner <> 'tenure_owner'::pg_catalog.regrole
    LOOP
        EXECUTE pg_catalog.format('ALTER TABLE %s OWNER TO tenure_owner', v_object.name);
    END LOOP;
    FOR v_object IN
        SELECT p.oid::pg_catalog.regprocedure AS name
        FROM pg_catalog.pg_proc AS p
        WHERE p.pronamespace = 'tenure'::pg_catalog.regnamespace AND p.proowner <> 'tenure_owner'::pg_catalog.regrole
    LOOP
        EXECUTE pg_catalog.format('ALTER ROUTINE %s OWNER TO tenure_owner', v_object.name);
    END LOOP;
    FOR v_object IN
        SELECT t.oid::pg_catalog.regtype AS name
        FROM pg_catalog.pg_type AS t
        LEFT JOIN pg_catalog.pg_class AS c ON c.oid = t.typrelid
        WHERE t.typnamespace = 'tenure'::pg_catalog.regnamespace AND (t.typtype = 'd' OR c.relkind = 'c')
            AND t.typowner <> 'tenure_owner'::pg_catalog.regrole
    LOOP
        EXECUTE pg_catalog.format('ALTER TYPE %s OWNER TO tenure_owner', v_object.name);
    END LOOP;
EXCEPTION
    WHEN insufficient_privilege THEN
        RAISE WARNING 'The schema tenure stays with %, because it may not be handed to tenure_owner: %', current_user, SQLERRM
            USING HINT = 'GRANT tenure_owner TO the migrating user, or run sql/roles.sql as a superuser.';
END
$owner$;

DO $grants$
DECLARE
    v_row record;
    v_role text;
BEGIN
    REVOKE ALL ON SCHEMA tenure FROM PUBLIC;
    REVOKE ALL ON ALL TABLES IN SCHEMA tenure FROM PUBLIC;
    REVOKE ALL ON ALL SEQUENCES IN SCHEMA tenure FROM PUBLIC;
    REVOKE ALL ON ALL ROUTINES IN SCHEMA tenure FROM PUBLIC;
    FOREACH v_role IN ARRAY ARRAY['tenure_producer', 'tenure_worker', 'tenure_reader', 'tenure_operator', 'tenure_admin'] LOOP
        CONTINUE WHEN NOT EXISTS (SELECT 1 FROM pg_catalog.pg_roles AS r WHERE r.rolname = v_role);
        EXECUTE pg_catalog.format('REVOKE ALL ON ALL TABLES IN SCHEMA tenure FROM %I', v_role);
        EXECUTE pg_catalog.format('REVOKE ALL ON ALL ROUTINES IN SCHEMA tenure FROM %I', v_role);
        EXECUTE pg_catalog.format('GRANT USAGE ON SCHEMA tenure TO %I', v_role);
        -- A function that is not in this table is a step inside another one, and no role may call it.
        FOR v_row IN
            SELECT p.oid::pg_catalog.regprocedure AS name
            FROM (
                VALUES
                    -- function            may be called by
                    ('now',                 'producer worker reader operator admin'),
                    ('now_us',              'producer worker reader operator admin'),
                    ('to_us',               'producer worker reader operator admin'),
                    ('from_us',             'producer worker reader operator admin'),
                    ('readable',            'worker reader operator admin'),  -- in views, whose functions are called by their reader
                    ('schema_version',      'producer worker reader operator admin'),
                    ('schema_checksum',     'producer worker reader operator admin'),
                    ('schema_compatible_from', 'producer worker reader operator admin'),
                    ('enqueue',             'producer worker operator admin'),
                    ('get_jobs',            'producer worker reader operator admin'),
                    ('exchange',            'worker admin'),
                    ('claim',               'worker admin'),
                    ('settle',              'worker admin'),
                    ('start',               'worker admin'),
                    ('heartbeat',           'worker admin'),
                    ('append_events',       'worker admin'),
                    ('append_streams',      'worker admin'),
                    ('read_stream',         'worker reader operator admin'),
                    ('list_streams',        'worker reader operator admin'),
                    ('reserve_budget',      'worker admin'),
                    ('settle_budget',       'worker admin'),
                    ('list_budgets',        'worker reader operator admin'),
                    ('set_budgets',         'operator admin'),
                    ('raise_budgets',       'operator admin'),
                    ('remove_budgets',      'operator admin'),
                    ('list_limiters',       'producer worker reader operator admin'),
                    ('use_tokens',          'worker admin'),
                    ('set_limiter',         'operator admin'),
                    ('block_limiter',       'operator admin'),
                    ('clear_limiter',       'operator admin'),
                    ('remove_limiter',      'operator admin'),
                    ('record_effect',       'worker admin'),
                    ('record_steps',        'worker admin'),
                    ('fill_group',          'worker admin'),
                    ('take_memo',           'worker admin'),
                    ('keep_memo',           'worker admin'),
                    ('list_memos',          'reader operator admin'),
                    ('forget_memos',        'operator admin'),
                    ('sweep_flow',          'producer worker operator admin'),
                    ('signal',              'producer worker operator admin'),
                    ('list_steps',          'worker reader operator admin'),
                    ('sum_usage',           'reader operator admin'),
                    ('get_group',           'worker reader operator admin'),
                    ('list_children',       'worker reader operator admin'),
                    ('list_approvals',      'worker reader operator admin'),
                    ('count_approvals',     'worker reader operator admin'),
                    ('decide_approval',     'operator admin'),
                    ('acquire_lease',       'worker admin'),
                    ('release_lease',       'worker admin'),
                    ('remove_workers',      'worker operator admin'),
                    ('reap',                'worker operator admin'),
                    ('wake',                'worker operator admin'),
                    ('list_profiles',       'producer worker reader operator admin'),
                    ('list_queues',         'worker reader operator admin'),
                    ('list_effects',        'worker reader operator admin'),
                    ('list_attempts',       'worker reader operator admin'),
                    ('list_gates',          'worker reader operator admin'),
                    ('list_schedules',      'worker reader operator admin'),
                    ('set_schedules',       'worker admin'),
                    ('tick_schedule',       'worker admin'),
                    ('pause_schedules',     'operator admin'),
                    ('remove_schedules',    'operator admin'),
                    ('list_agent_events',   'worker reader operator admin'),
                    ('write_agent_events',  'worker admin'),
                    ('read_events',         'worker admin'),
                    ('list_unremembered',   'worker operator admin'),
                    ('write_memories',      'worker operator admin'),
                    ('find_words',          'worker reader operator admin'),
                    ('find_near',           'worker reader operator admin'),
                    ('list_vectors',        'worker reader operator admin'),
                    ('get_memories',        'worker reader operator admin'),
                    ('list_memories',       'worker reader operator admin'),
                    ('forget_memories',     'operator admin'),
                    ('count_memories',      'reader operator admin'),
                    ('roll_up',             'worker admin'),
                    ('list_metrics',        'reader operator admin'),
                    ('read_metrics',        'worker reader operator admin'),
                    ('backlog',             'worker reader operator admin'),
                    ('count_backlog',       'worker reader operator admin'),
                    ('read_gauges',         'reader operator admin'),
                    ('read_usage',          'reader operator admin'),
                    ('read_totals',         'reader operator admin'),
                    ('summary',             'reader operator admin'),
                    ('standing',            'reader operator admin'),
                    ('newest',              'reader operator admin'),
                    ('prunable',            'reader operator admin'),
                    ('list_jobs',           'worker reader operator admin'),
                    ('count_jobs',          'reader operator admin'),
                    ('browse_jobs',         'reader operator admin'),
                    ('list_deaths',         'reader operator admin'),
                    ('list_limited',        'reader operator admin'),
                    ('prune_lag',           'reader operator admin'),
                    ('list_dead_letters',   'reader operator admin'),
                    ('group_dead_letters',  'reader operator admin'),
                    ('list_workers',        'reader operator admin'),
                    ('list_events',         'reader operator admin'),
                    ('follow_events',       'reader operator admin'),
                    ('list_audit',          'reader operator admin'),
                    ('start_workflow',      'producer worker operator admin'),
                    ('join_workflow',       'producer worker operator admin'),
                    ('advance_workflows',   'worker operator admin'),
                    ('are_workflows_due',   'worker operator admin'),
                    ('tend_workflows',      'worker operator admin'),
                    ('list_workflows',      'producer worker reader operator admin'),
                    ('list_tasks',          'worker reader operator admin'),
                    ('workflow_edges',      'reader operator admin'),
                    ('list_escalations',    'worker reader operator admin'),
                    ('answer_escalation',   'operator admin'),
                    ('cancel_workflow',     'operator admin'),
                    ('retry_workflow',      'operator admin'),
                    ('cancel',              'operator admin'),
                    ('revive',              'operator admin'),
                    ('forget_steps',        'operator admin'),
                    ('resolve_effect',      'operator admin'),
                    ('clone',               'operator admin'),
                    ('edit_job',            'operator admin'),
                    ('triage_dead_letters', 'operator admin'),
                    ('pause_queues',        'operator admin'),
                    ('prune',               'operator admin'),
                    ('set_queues',          'admin'),
                    ('remove_queues',       'admin'),
                    ('set_gate',            'admin'),
                    ('create_token',          'admin'),
                    ('list_tokens',           'admin'),
                    ('revoke_tokens',         'admin'),
                    ('touch_tokens',          'admin'),
                    ('find_token',            'admin'),
                    ('create_link',           'admin'),
                    ('open_session',          'admin'),
                    ('find_session',          'admin'),
                    ('touch_session',         'admin'),
                    ('list_sessions',         'admin'),
                    ('end_sessions',          'admin'),
                    ('keep_secret',           'admin'),
                    ('remember_request',      'admin'),
                    ('append_audit',          'admin'),
                    ('seal_audit',            'admin'),
                    ('list_sealed',           'admin'),
                    ('count_unsealed',        'admin')
            ) AS matrix(function, roles)
            JOIN pg_catalog.pg_proc AS p ON p.proname = matrix.function AND p.pronamespace = 'tenure'::pg_catalog.regnamespace
            WHERE pg_catalog.substr(v_role, 8) = ANY (pg_catalog.string_to_array(matrix.roles, ' '))
        LOOP
            EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION %s TO %I', v_row.name, v_role);
        END LOOP;
    END LOOP;
END
$grants$;
