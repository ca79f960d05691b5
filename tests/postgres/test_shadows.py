"""A caller with little rights puts things of the same names in front of ours (S06). None of them is ever used."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

from tests.postgres.conftest import ROLES
from tests.postgres.test_roles import MATRIX

pytestmark = pytest.mark.postgres

TRAPS = """
CREATE TABLE public.caught (what text, who text DEFAULT current_user);
GRANT ALL ON public.caught TO PUBLIC;
GRANT CREATE, USAGE ON SCHEMA public TO {role};
"""

# Each trap notes that it was sprung and by whom; with our owner's rights it would say tenure_owner.
SHADOWS = """
CREATE TEMP TABLE job (id uuid, queue text);
CREATE TEMP TABLE queue (name text);
CREATE TEMP TABLE gate (name text, is_open boolean);
CREATE TEMP TABLE audit (actor text);
CREATE TEMP TABLE waiter (queue text, worker text);
CREATE FUNCTION public.spring(p_what text) RETURNS boolean LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO public.caught (what) VALUES (p_what); RETURN true; END $$;
CREATE FUNCTION public.now() RETURNS timestamptz LANGUAGE plpgsql AS
    $$ BEGIN PERFORM public.spring('now'); RETURN clock_timestamp(); END $$;
CREATE FUNCTION public.to_json(boolean) RETURNS json LANGUAGE plpgsql AS
    $$ BEGIN PERFORM public.spring('to_json'); RETURN 'true'; END $$;
CREATE FUNCTION public.btrim(text) RETURNS text LANGUAGE plpgsql AS
    $$ BEGIN PERFORM public.spring('btrim'); RETURN $1; END $$;
CREATE FUNCTION public.array_to_json(text[]) RETURNS json LANGUAGE plpgsql AS
    $$ BEGIN PERFORM public.spring('array_to_json'); RETURN '[]'; END $$;
CREATE FUNCTION public.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS
    $$ BEGIN PERFORM public.spring('pg_notify'); END $$;
CREATE FUNCTION public.json_array_elements_text(json) RETURNS SETOF text LANGUAGE plpgsql AS
    $$ BEGIN PERFORM public.spring('json_array_elements_text'); END $$;
CREATE FUNCTION public.reach(json, text) RETURNS text LANGUAGE plpgsql AS
    $$ BEGIN PERFORM public.spring('->>'); RETURN NULL; END $$;
CREATE OPERATOR public.->> (LEFTARG = json, RIGHTARG = text, FUNCTION = public.reach);
CREATE FUNCTION public.same(text, text) RETURNS boolean LANGUAGE plpgsql AS
    $$ BEGIN PERFORM public.spring('='); RETURN true; END $$;
CREATE OPERATOR public.= (LEFTARG = text, RIGHTARG = text, FUNCTION = public.same);
SET search_path = pg_temp, public, tenure, pg_catalog;
"""

REQUEST = """{
    "ids": ["0192f0c1-2b3c-7def-8123-456789abcdef"], "job_ids": ["0192f0c1-2b3c-7def-8123-456789abcdef"],
    "names": ["default"], "name": "leader", "owner": "me", "term": 1, "seconds": 5, "actor": "me", "reason": "why",
    "is_open": true, "paused": true, "triage": "closed", "limit": 5, "policies": {"default": {"max_attempts": 4}},
    "job_id": "0192f0c1-2b3c-7def-8123-456789abcdef", "token": 1, "events": [], "holds": [], "outcomes": {},
    "effect": {"name": "x", "state": "sent"}, "queues": ["default"],
    "worker": {"id": "w", "hostname": "h", "pid": 1, "queues": [], "kinds": [], "concurrency": 1, "version": "",
        "executor_kind": "Agent", "status": "ok", "info": {}},
    "groups": [{"queue": "default", "kind": "k", "jobs": [{"i": "0192f0c1-2b3c-7def-8123-456789abcdee", "p": {}}]}]
}"""


@pytest.fixture
def mallory(login: Callable[[str], str], admin: psycopg.Connection) -> Iterator[psycopg.Connection]:
    """A login with all five roles that may create things in `public`, and has."""
    url = login("admin")
    for role in ROLES:
        admin.execute(f"GRANT tenure_{role} TO login_admin".encode())
    admin.execute(TRAPS.format(role="login_admin").encode())
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(SHADOWS.encode())
        yield connection
    for role in ROLES[:-1]:
        admin.execute(f"REVOKE tenure_{role} FROM login_admin".encode())


def test_the_traps_work(mallory: psycopg.Connection) -> None:
    """Otherwise the test below could not fail."""
    assert mallory.execute("SELECT '{\"a\": 1}'::json ->> 'a'").fetchone() == (None,)
    assert mallory.execute("SELECT now() IS NOT NULL, 'a'::text = 'b'::text").fetchone() == (True, True)
    assert mallory.execute("SELECT count(*) FROM public.caught").fetchone() == (3,)


def test_no_function_of_ours_uses_what_a_caller_put_in_front(
    mallory: psycopg.Connection, admin: psycopg.Connection
) -> None:
    names = sorted(
        set(MATRIX)
        - {"now", "now_us", "to_us", "from_us", "newest", "backlog"}
        - {"schema_version", "schema_checksum", "schema_compatible_from"}
    )

    states = {name: _call(mallory, name) for name in names}

    # A refusal by our own rules proves as well that the function ran.
    assert {name: state for name, state in states.items() if state and not state.startswith("TN")} == {}
    assert admin.execute("SELECT what, who FROM public.caught").fetchall() == []
    assert admin.execute("SELECT count(*) FROM tenure.job").fetchone() == (1,)
    assert admin.execute("SELECT max_attempts FROM tenure.queue WHERE name = 'default'").fetchall() == [(4,)]


def _call(connection: psycopg.Connection, name: str) -> str | None:
    """Call a function; the SQLSTATE if it refused."""
    request = REQUEST.replace('"job_ids": [', '"job_ids": {"x": "y"}, "_": [') if name == "clone" else REQUEST
    try:
        connection.execute(f"SELECT tenure.{name}(%(request)s::pg_catalog.json)".encode(), {"request": request})
    except psycopg.Error as exc:
        return exc.sqlstate
    return None


def test_what_touches_nothing_lends_no_rights_to_a_trap(mallory: psycopg.Connection, admin: psycopg.Connection) -> None:
    mallory.execute("SELECT tenure.now(), tenure.now_us(), tenure.schema_version(), tenure.newest()")
    mallory.execute("SELECT tenure.backlog('default')")
    mallory.execute("SELECT tenure.from_us(0), tenure.to_us(tenure.now())")

    who = {who for _, who in admin.execute("SELECT what, who FROM public.caught").fetchall()}
    assert who <= {"login_admin"}
