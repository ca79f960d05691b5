"""Who comes in: tokens, sessions, one-time links, hosts, origins, headers, limits (R1 to R20)."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

import tenure
from tenure.errors import ConfigError
from tenure.model.access import TOKEN_PATTERN, new_token, parse_token
from tenure.web.application import page_table, table
from tenure.web.routes import PUBLIC, Route, UiRoute, check_table
from tests.web.conftest import BASE, Server

pytestmark = pytest.mark.anyio

SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin", "Origin": BASE}


async def sign_in(server: Server, client: httpx.AsyncClient, *scopes: str) -> str:
    """Sign a browser in by a link; its csrf token."""
    from tenure.web.auth import csrf_of

    answer = await client.post("/ui/session", data={"code": server.link(*scopes)}, headers=SAME_ORIGIN)
    assert answer.status_code == 303, answer.text
    (cookie,) = client.cookies.jar
    assert cookie.value is not None
    return csrf_of(cookie.value.partition(".")[2])


def all_routes() -> list[Route | UiRoute]:
    return [*table(), *page_table()]


def path_of(route: Route | UiRoute) -> str:
    prefix = "/ui" if isinstance(route, UiRoute) else ""
    return prefix + re.sub(r"\{[^}]*\}", "00000000-0000-7000-8000-000000000000", route.path)


# --- tokens


async def test_a_token_tells_who_it_is(server: Server) -> None:
    text = server.token("read:meta", "enqueue:queue=mail", name="ci")

    async with server.client(text) as client:
        answer = await client.get("/api/v1/me")

    assert answer.status_code == 200
    assert answer.json()["name"] == "ci"
    assert answer.json()["scopes"] == ["read:meta", "enqueue:queue=mail"]
    (found,) = server.app.access.tokens()
    assert found.last_used_at is not None


async def test_the_store_has_nothing_that_could_be_used_as_a_token(server: Server) -> None:
    text = server.token("read:meta")
    secret = text.split("_")[2]

    kept = repr(server.app.access.tokens()) + repr(server.app.access.audit())

    assert secret not in kept
    assert text not in kept


@pytest.mark.parametrize("wrong", ["revoked", "expired", "mistyped", "unknown", "empty", "basic"])
async def test_a_wrong_token_is_refused(server: Server, wrong: str) -> None:
    text = server.token("read:meta")
    if wrong == "revoked":
        server.app.access.revoke(text.split("_")[1])
    if wrong == "expired":
        text = server.app.access.new_token("old", "read:meta", days=1e-9).text
    if wrong == "mistyped":
        text = text[:-1] + ("a" if text[-1] != "a" else "b")
    if wrong == "unknown":
        text = str(new_token())
    headers = {"Authorization": {"empty": "", "basic": f"Basic {text}"}.get(wrong, f"Bearer {text}")}

    async with server.client(headers=headers) as client:
        answer = await client.get("/api/v1/me")

    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert answer.json()["code"] == "unauthorized"


async def test_a_token_in_the_url_is_refused_and_not_repeated(small: Server) -> None:
    text = small.token("read:meta")

    async with small.client(text) as client:
        answer = await client.get("/api/v1/me", params={"token": text})

    assert answer.status_code == 400
    assert text not in answer.text


def test_scanners_find_every_token_and_typing_errors_are_found_offline() -> None:
    made = [str(new_token()) for _ in range(100)]

    assert all(re.fullmatch(TOKEN_PATTERN, text) for text in made)
    assert all(parse_token(text) is not None for text in made)
    for text in made:
        place = 20
        other = "x" if text[place] != "x" else "y"
        assert parse_token(text[:place] + other + text[place + 1 :]) is None


async def test_guessing_is_stopped_and_harms_no_other_address_and_no_token_that_was_right_before(small: Server) -> None:
    known, fresh, unseen = (small.token("read:meta") for _ in range(3))
    async with small.client(known) as client:
        assert (await client.get("/api/v1/me")).status_code == 200

    async with small.client(str(new_token())) as client:
        answers = [(await client.get("/api/v1/me")).status_code for _ in range(30)]

    assert answers == [401] * 20 + [429] * 10
    async with small.client(known) as client:
        assert (await client.get("/api/v1/me")).status_code == 200
    async with small.client(fresh, address="192.0.2.7") as client:
        assert (await client.get("/api/v1/me")).status_code == 200
    async with small.client(unseen) as client:
        answer = await client.get("/api/v1/me")
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1


async def test_guessing_from_many_addresses_of_one_ipv6_network_is_one_guesser(small: Server) -> None:
    """A network of 64 bits is what one customer gets: each guess could come from an address of its own."""
    for number in range(21):
        async with small.client(str(new_token()), address=f"2001:db8:0:1::{number:x}") as client:
            answer = await client.get("/api/v1/me")
    assert answer.status_code == 429

    async with small.client(str(new_token()), address="2001:db8:0:2::1") as client:
        assert (await client.get("/api/v1/me")).status_code == 401


async def test_forwarded_addresses_count_only_from_named_proxies(small: Server) -> None:
    spoofed = {"X-Forwarded-For": "203.0.113.9"}
    async with small.client(str(new_token()), headers=spoofed) as client:
        for number in range(21):
            answer = await client.get("/api/v1/me", headers={"X-Forwarded-For": f"203.0.113.{number}"})
    assert answer.status_code == 429

    behind = Server(small.app, proxies=["127.0.0.1"])
    async with behind.client(str(new_token())) as client:
        for number in range(21):
            answer = await client.get("/api/v1/me", headers={"X-Forwarded-For": f"6.6.6.6, 203.0.113.{number}"})
    assert answer.status_code == 401


async def test_networks_of_proxies_and_unix_sockets_are_named_too(small: Server) -> None:
    async def guesses(server: Server, address: str) -> int:
        async with server.client(str(new_token()), address=address) as client:
            for number in range(21):
                answer = await client.get("/api/v1/me", headers={"X-Forwarded-For": f"203.0.113.{number}"})
        return answer.status_code

    assert await guesses(Server(small.app, proxies=["10.0.0.0/8"]), "10.1.2.3") == 401
    assert await guesses(Server(small.app, proxies=["10.0.0.0/8"]), "::ffff:10.1.2.3") == 401
    assert await guesses(Server(small.app, proxies=["10.0.0.0/8"]), "11.1.2.3") == 429
    assert await guesses(Server(small.app, proxies=["unix"]), "unix") == 401
    with pytest.raises(ConfigError, match="none of these"):
        Server(small.app, proxies=["nginx"])


async def test_a_spoofed_address_does_not_reach_the_audit(small: Server) -> None:
    async with small.client(small.token("enqueue:*"), headers={"X-Forwarded-For": "203.0.113.9"}) as client:
        await client.post("/api/v1/jobs", json={"kind": "k"})

    (row,) = [row for row in small.app.access.audit() if row.act == "http:enqueue"]
    assert row.detail["address"] == "127.0.0.1"


# --- hosts, headers, limits


@pytest.mark.parametrize(
    "host", ["evil.test", "127.0.0.1.evil.test", "localhost.evil.test:8400", "", "127.0.0.1:8400@evil.test"]
)
async def test_another_host_is_refused_on_every_route(small: Server, host: str) -> None:
    text = small.token("read:meta")

    async with small.client(text) as client:
        for route in all_routes():
            answer = await client.request(route.verb, path_of(route), headers={"Host": host})
            assert answer.status_code == 421, route


async def test_two_hosts_are_refused(small: Server) -> None:
    async with small.client() as client:
        request = client.build_request("GET", "/healthz", headers=[("Host", "localhost:1"), ("Host", "evil.test")])
        assert (await client.send(request)).status_code == 421


async def test_exact_hosts_include_the_port(small: Server) -> None:
    exact = Server(small.app, hosts=["127.0.0.1:8400"])

    async with exact.client() as client:
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/healthz", headers={"Host": "127.0.0.1:8401"})).status_code == 421


async def test_every_answer_has_the_headers_that_browsers_need(small: Server) -> None:
    async with small.client() as client:
        answers = [await client.request(route.verb, path_of(route)) for route in all_routes()]
        answers += [await client.get("/nowhere"), await client.get("/ui/signin"), await client.options("/api/v1/me")]
        answers.append(await client.get("/healthz", headers={"Host": "evil.test"}))

    for answer in answers:
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["cross-origin-opener-policy"] == "same-origin"
        assert "access-control-allow-origin" not in answer.headers
        assert answer.headers["x-request-id"]


async def test_without_credentials_everything_but_the_health_is_refused(small: Server) -> None:
    async with small.client() as client:
        for route in all_routes():
            answer = await client.request(route.verb, path_of(route), json={} if route.verb != "GET" else None)
            expected = 200 if route.scope == PUBLIC else 401
            assert answer.status_code == expected, route


@pytest.mark.parametrize("origin", ["https://evil.test", "null", "http://localhost:9999", BASE, "http://127.0.0.1"])
async def test_no_other_origin_is_let_in(small: Server, origin: str) -> None:
    asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}

    async with small.client() as client:
        answer = await client.options("/api/v1/me", headers=asked)

    assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_a_route_that_declares_no_scope_stops_the_server() -> None:
    async def open_to_all() -> None: ...

    with pytest.raises(ConfigError, match="declares no scope"):
        check_table([Route("GET", "/x", "", None, open_to_all)])


# --- sessions


async def test_a_link_signs_a_browser_in_once(server: Server) -> None:
    link = server.link()

    async with server.client() as client:
        first = await client.post("/ui/session", data={"code": link}, headers=SAME_ORIGIN)
        page = await client.get("/ui/")
    async with server.client() as other:
        second = await other.post("/ui/session", data={"code": link}, headers=SAME_ORIGIN)

    assert (first.status_code, page.status_code, second.status_code) == (303, 200, 401)
    cookie = first.headers["set-cookie"]
    assert cookie.startswith("tenure-8400=")
    for part in ("HttpOnly", "SameSite=strict", "Path=/", "Max-Age=43200"):
        assert part in cookie
    assert "Domain" not in cookie


async def test_with_https_the_cookie_is_bound_to_the_host(small: Server) -> None:
    secure = Server(small.app, secure=True)

    async with secure.client() as client:
        answer = await client.post("/ui/session", data={"code": secure.link()}, headers=SAME_ORIGIN)

    assert answer.headers["set-cookie"].startswith("__Host-tenure=")
    assert "Secure" in answer.headers["set-cookie"]
    assert answer.headers["strict-transport-security"]


async def test_behind_a_proxy_that_adds_tls_no_answer_leads_back_to_plain_http(small: Server) -> None:
    """The proxy asks us in clear; links and redirects said so to browsers."""
    secure = Server(small.app, secure=True)
    small.app.queues.set("default")

    @small.app.job(durable=True)
    def pay(ctx: tenure.Context) -> None:
        ctx.approve("pay", args={"cents": 7})

    small.app.enqueue("pay")
    await small.app.aio.run_worker(drain=True, handle_signals=False)
    (asked,) = small.app.approvals.all().items
    async with secure.client(secure.token("approve", "read:meta")) as client:
        made = await client.post(f"/api/v1/approvals/{asked.id}/link", json={"person": "ann"})
        slash = await client.get("/api/v1/jobs/")
    async with secure.client() as client:
        await sign_in(secure, client)
        client.cookies = {"__Host-tenure": client.cookies["__Host-tenure"]}  # else the client keeps it for https alone
        page = await client.get("/ui/connect")

    assert made.json()["link"].startswith(BASE.replace("http://", "https://") + "/answer/")
    assert (slash.status_code, "location" in slash.headers) == (404, False)
    assert page.status_code == 200
    assert "https://127.0.0.1:8400/api" in page.text
    assert "http://127.0.0.1:8400" not in page.text


async def test_a_live_page_does_not_keep_a_session_from_idling(small: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tab that was left open asked again and again, and its session never ended for want of use."""
    monkeypatch.setattr("tenure.web.auth._is_past", lambda _: True)
    noted: list[str] = []
    plain = small.app.aio.access.touch_session

    async def touch(session: Any) -> bool:
        noted.append(session.digest)
        return await plain(session)

    monkeypatch.setattr(type(small.app.aio.access), "touch_session", lambda _, session: touch(session))
    async with small.client() as client:
        await sign_in(small, client)
        await client.get("/ui/changes", params={"topic": "all", "once": "1"})
        await client.get("/ui/", headers={"HX-Request": "true"})
        by_itself = len(noted)
        await client.get("/ui/")
        (session,) = [one for one in small.app.access.sessions() if one.kind == "session"]
        small.app.access.end_sessions(session.digest)
        ended = await client.get("/ui/", headers={"HX-Request": "true"})

    assert (by_itself, len(noted)) == (0, 1)
    assert (ended.status_code, ended.headers["hx-refresh"]) == (401, "true")


async def test_a_planted_cookie_is_not_taken_over(small: Server) -> None:
    planted = "default." + "A" * 43

    async with small.client(cookies={"tenure-8400": planted}) as client:
        answer = await client.post("/ui/session", data={"code": small.link()}, headers=SAME_ORIGIN)

    assert planted not in answer.headers["set-cookie"]
    async with small.client(cookies={"tenure-8400": planted}) as client:
        assert (await client.get("/ui/")).status_code == 401


async def test_signing_out_ends_the_session_whatever_the_browser_keeps(server: Server) -> None:
    async with server.client() as client:
        csrf = await sign_in(server, client)
        kept = dict(client.cookies)
        out = await client.post("/ui/signout", data={"csrf": csrf}, headers=SAME_ORIGIN)

    assert out.status_code == 303
    async with server.client(cookies=kept) as client:
        assert (await client.get("/ui/")).status_code == 401


async def test_a_token_signs_in_and_its_revocation_signs_out(server: Server) -> None:
    text = server.token("read:meta")

    async with server.client() as client:
        await client.post("/ui/session", data={"code": text}, headers=SAME_ORIGIN)
        before = await client.get("/ui/")
        server.app.access.revoke(text.split("_")[1])
        after = await client.get("/ui/")

    assert (before.status_code, after.status_code) == (200, 401)


async def test_the_api_ignores_cookies_and_pages_ignore_tokens(small: Server) -> None:
    async with small.client() as client:
        await sign_in(small, client)
        by_cookie = await client.get("/api/v1/me")
    async with small.client(small.token("read:meta")) as client:
        by_token = await client.get("/ui/")

    assert (by_cookie.status_code, by_token.status_code) == (401, 401)


ORIGINS: list[tuple[dict[str, str], int]] = [
    (SAME_ORIGIN, 303),
    ({"Origin": BASE}, 303),
    ({}, 403),
    ({"Origin": "https://evil.test"}, 403),
    ({"Origin": "null"}, 403),
    ({"Sec-Fetch-Site": "same-origin", "Origin": "null"}, 303),  # what Chromium sends from our own forms
    ({"Sec-Fetch-Site": "cross-site", "Origin": "null"}, 403),
    ({"Sec-Fetch-Site": "cross-site"}, 403),
    ({"Sec-Fetch-Site": "same-site"}, 403),
    ({"Sec-Fetch-Site": "none"}, 403),
    ({"Sec-Fetch-Site": "same-origin", "Origin": "https://evil.test"}, 403),
]


@pytest.mark.parametrize(("headers", "status"), ORIGINS)
async def test_a_form_counts_only_from_our_own_pages(small: Server, headers: dict[str, str], status: int) -> None:
    async with small.client() as client:
        csrf = await sign_in(small, client)
        answer = await client.post("/ui/signout", data={"csrf": csrf}, headers=headers)

    assert answer.status_code == status


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ({"data": {"csrf": "wrong"}}, 403),
        ({"data": {}}, 415),
        ({"data": {"other": "1"}}, 403),
        ({"json": {"csrf": "x"}}, 415),
        ({"content": b"csrf=x", "headers": {"Content-Type": "text/plain"}}, 415),
    ],
)
async def test_a_form_needs_the_sessions_own_token(small: Server, sent: dict[str, Any], status: int) -> None:
    async with small.client() as client:
        await sign_in(small, client)
        headers = {**SAME_ORIGIN, **sent.pop("headers", {})}
        answer = await client.post("/ui/signout", headers=headers, **sent)
        still = await client.get("/ui/")

    assert answer.status_code == status
    assert still.status_code == 200


async def test_a_sign_in_from_another_page_is_refused(small: Server) -> None:
    async with small.client() as client:
        answer = await client.post("/ui/session", data={"code": small.link()}, headers={"Origin": "https://evil.test"})

    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


async def test_a_browser_that_is_not_signed_in_is_shown_the_form(small: Server) -> None:
    async with small.client(headers={"Accept": "text/html"}) as client:
        page = await client.get("/ui/")
        script = await client.get("/ui/signin.js")

    assert page.status_code == 401
    assert '<form method="post" action="/ui/session"' in page.text
    assert "location.hash" in script.text


def test_an_app_can_be_served_beneath_a_path_of_another() -> None:
    """`app.mount("/tenure", tenure.web.asgi(app))` in Starlette and FastAPI."""
    from starlette.applications import Starlette
    from starlette.routing import Mount
    from starlette.testclient import TestClient

    with tenure.App("sqlite:///:memory:") as app:
        outer = Starlette(routes=[Mount("/tenure", app=Server(app).asgi)])
        client = TestClient(outer, base_url=BASE)

        assert client.get("/tenure/healthz").json() == {"status": "ok"}
        assert '"/tenure/ui/signin.css"' in client.get("/tenure/ui/signin").text
