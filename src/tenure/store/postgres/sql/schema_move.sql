-- Moves of whole databases. The function that refuses writes meanwhile is in functions/move.sql.

-- move: the ledger. A source refuses writes from `frozen` on, a destination until it is `opened`; the triggers that refuse are made and
-- dropped with the move. is_writing is set within the transactions of the mover alone and never committed: other connections never see it.
CREATE TABLE tenure.move (
    id uuid PRIMARY KEY,
    role text NOT NULL,
    other text NOT NULL,
    phase text NOT NULL,
    leases text NOT NULL,
    master boolean,
    is_writing boolean NOT NULL DEFAULT false,
    started_at timestamptz NOT NULL,
    ended_at timestamptz,
    CONSTRAINT move_role_known CHECK (role IN ('source', 'destination')),
    CONSTRAINT move_phase_known CHECK (
        phase IN ('draining', 'frozen', 'moved', 'reopened', 'copying', 'verified', 'opened', 'done')
    )
);

-- move_table: how far each table has come, written with its rows.
CREATE TABLE tenure.move_table (
    move_id uuid NOT NULL,
    name text NOT NULL,
    after text,
    rows bigint NOT NULL,
    digest text NOT NULL,
    is_done boolean NOT NULL,
    PRIMARY KEY (move_id, name)
);
