-- triage_dead_letters: {"ids", "triage", "actor", "note"} → the ids that were changed. Without a note the old one stays.
CREATE OR REPLACE FUNCTION tenure.triage_dead_letters(p_request json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, tenure, pg_temp
AS $$
DECLARE
    v_now timestamptz := tenure.now();
    v_triage text := p_request ->> 'triage';
    v_letter record;
    v_changed uuid[] := '{}';
BEGIN
    FOR v_letter IN
        SELECT d.id, d.job_id, d.triage
        FROM tenure.dead_letter AS d
        WHERE d.id = ANY (ARRAY(SELECT tenure.as_uuid(e.value) FROM json_array_elements_text(p_request -> 'ids') AS e))
        ORDER BY d.id
        FOR UPDATE
    LOOP
        PERFORM tenure.write_audit(
            v_now, p_request ->> 'actor', 'triage', v_letter.id::text, p_request ->> 'note',
            json_build_object('job_id', v_letter.job_id, 'from', v_letter.triage, 'to', v_triage)
        );
        UPDATE tenure.dead_letter AS d
        SET triage = v_triage,
            triage_note = coalesce(p_request ->> 'note', d.triage_note),
            triaged_at = v_now,
            triaged_by = p_request ->> 'actor'
        WHERE d.id = v_letter.id;
        v_changed := v_changed || v_letter.id;
    END LOOP;
    RETURN array_to_json(v_changed);
END
$$;
