-- Moves of whole databases, column for column as on PostgreSQL.

-- move: the ledger. A source refuses writes from `frozen` on, a destination until it is `opened`; the triggers that refuse are made and
-- dropped with the move. is_writing is set within the transactions of the mover alone and never committed: other connections never see it.
CREATE TABLE tenure_move (
    id TEXT NOT NULL PRIMARY KEY,
    role TEXT NOT NULL,
    other TEXT NOT NULL,
    phase TEXT NOT NULL,
    leases TEXT NOT NULL,
    master INTEGER,
    is_writing INTEGER NOT NULL DEFAULT 0,
    started_at INTEGER NOT NULL,
    ended_at INTEGER,
    CONSTRAINT move_role_known CHECK (role IN ('source', 'destination')),
    CONSTRAINT move_phase_known CHECK (
        phase IN ('draining', 'frozen', 'moved', 'reopened', 'copying', 'verified', 'opened', 'done')
    )
) STRICT;

-- move_table: how far each table has come, written with its rows.
CREATE TABLE tenure_move_table (
    move_id TEXT NOT NULL,
    name TEXT NOT NULL,
    after TEXT,
    rows INTEGER NOT NULL,
    digest TEXT NOT NULL,
    is_done INTEGER NOT NULL,
    PRIMARY KEY (move_id, name)
) STRICT;
