"""Who asks: a token by the header Authorization, or a session by cookie. Loopback alone proves nothing.

The JSON API knows tokens and no cookies, the console sessions and no tokens, so neither can be used through the other:
a page on another site can make a browser send its cookie, never a header. What a session changes needs the request to
come from our own pages, by `Sec-Fetch-Site` or `Origin`, and the session's own token in the form as well.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from tenure.model.access import MCP, Scope, allows, groups_of, parse_scope, parse_token
from tenure.model.frozen import frozen
from tenure.model.visible import visible
from tenure.web.problems import Problem
from tenure.web.proxies import UNIX
from tenure.web.site import Site

if TYPE_CHECKING:
    from tenure.app import App

SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_SECRET: Final = re.compile(r"[0-9A-Za-z]{43}")
_SECRET_NAMES: Final = ("token", "access_token", "api_key", "authorization")
_ELSEWHERE: Final = {
    None: "This token is for MCP and for nothing else. `tenure token new` without the scope mcp makes one for the API.",
    MCP: "This token is not for MCP. `tenure token new NAME --scope mcp --scope …` makes one.",
}
FORM_TYPES: Final = ("application/x-www-form-urlencoded", "multipart/form-data")


@frozen
class Principal:
    """Who asks, and what for: every handler and every page gets it as `request.state.principal`.

    `app` is the App of the principal's tenant, the only one that a request can reach. `csrf` is the token that every
    form of a session must send back in the field `csrf` (or the header X-CSRF-Token); None for programs.
    """

    name: str
    scopes: tuple[Scope, ...]
    tenant: str
    app: App
    address: str
    token_id: str | None = None
    session: str | None = None
    """The digest of the session's secret; None for programs."""
    csrf: str | None = None

    @property
    def id(self) -> str:
        """What limits are counted by."""
        return self.token_id or self.session or self.name

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups in whose name it answers, as its token has them."""
        return groups_of(self.scopes)

    def has(self, verb: str) -> bool:
        """Whether it may do this at all, in some queue."""
        return any(scope.verb == verb or scope.covers(Scope(verb)) for scope in self.scopes)

    def may(self, verb: str, *, queue: str | None = None, kind: str | None = None) -> bool:
        """Whether it may do this to jobs of this queue and kind. None asks for all of them."""
        return allows(self.scopes, Scope(verb, queue, kind))

    def __repr__(self) -> str:
        return f"Principal({self.name!r}, {[str(scope) for scope in self.scopes]}, tenant={self.tenant!r})"


async def by_token(site: Site, request: Request, *, audience: str | None = None) -> Principal:
    """The program that asks. A token for another audience is as good as none.

    Raises: Problem 401, 400 (a secret in the URL), 429.
    """
    if any(name in _SECRET_NAMES for name in request.query_params):
        raise Problem(400, "token_in_url", "A token was sent in the URL, where logs keep it. Revoke it, and send "
                      "the new one in the header `Authorization: Bearer …`.")  # fmt: skip
    address = client_address(site, request)
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not text:
        raise _unauthorized("No token was sent. Send one in the header `Authorization: Bearer tnr_…`; "
                            "`tenure token new` makes it.")  # fmt: skip
    given = parse_token(text.strip())
    check_rate(site, address, known=given is not None and given.id in site.homes)
    if given is not None:
        for tenant in _places(site, given.id):
            app = site.tenants[tenant]
            found = await app.aio.access.check_token(str(given))
            if found is not None:
                site.remember_home(given.id, tenant)
                if found.last_used_at is None or _is_past(found.last_used_at):
                    await app.aio.access.touch([found.id])
                scopes = tuple(parse_scope(scope) for scope in found.scopes)
                if (MCP in found.scopes) != (audience == MCP):
                    raise _unauthorized(_ELSEWHERE[audience])
                return Principal(found.name, scopes, tenant, app, address, token_id=found.id)
    site.failures.add(address)
    raise _unauthorized("The token is wrong, expired or revoked. `tenure token new` makes another.")


def is_by_itself(request: Request) -> bool:
    """Whether a script of the console asks, to show what is new: no sign that a person is there."""
    return "hx-request" in request.headers or request.url.path.endswith("/ui/changes")


async def by_session(site: Site, request: Request) -> Principal | None:
    """The person whose browser asks; None if it is not signed in. A live page that renews itself does not keep a
    session from idling."""
    tenant, _, secret = request.cookies.get(cookie_name(site, request), "").partition(".")
    if tenant not in site.tenants or not _SECRET.fullmatch(secret):
        return None
    app = site.tenants[tenant]
    found = await app.aio.access.check_session(secret)
    if found is None:
        return None
    if _is_past(found.seen_at) and not is_by_itself(request):
        await app.aio.access.touch_session(found)
    return Principal(
        found.name,
        tuple(parse_scope(scope) for scope in found.scopes),
        tenant,
        app,
        client_address(site, request),
        token_id=found.token_id,
        session=found.digest,
        csrf=csrf_of(secret),
    )


def csrf_of(secret: str) -> str:
    """The token of a session's forms: made from its secret, which pages never see."""
    return hmac.new(secret.encode(), b"csrf", hashlib.sha256).hexdigest()


async def check_form(request: Request, csrf: str) -> None:
    """Refuse a change that our own pages did not ask for. Raises: Problem 403, 415."""
    check_origin(request)
    sent = request.headers.get("x-csrf-token")
    if sent is None:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in FORM_TYPES:
            raise Problem(415, "unsupported_media_type", "A form was expected.")
        field = (await request.form()).get("csrf")
        sent = field if isinstance(field, str) else ""
    if not hmac.compare_digest(sent.encode(), csrf.encode()):
        raise Problem(403, "csrf", "This form is out of date or came from elsewhere, so nothing was done. "
                      "Load the page again, and repeat it there.")  # fmt: skip


def check_origin(request: Request) -> None:
    """Refuse a request that a page of another origin made. Raises: Problem 403."""
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    host = request.headers.get("host", "").lower()
    is_ours = site == "same-origin" if site is not None else origin is not None
    # Our own pages are sent with `Referrer-Policy: no-referrer`, and browsers then write `Origin: null` on their forms.
    # Sec-Fetch-Site, which no page can set, tells them from a sandboxed frame of another site, which is null as well.
    is_bare = origin == "null" and site == "same-origin"
    if origin is not None and not is_bare and urlsplit(origin).netloc.lower() != host:
        is_ours = False
    if not is_ours:
        raise Problem(403, "cross_origin", "This request did not come from a page of this server, so nothing was done.")


def check_no_page(request: Request) -> None:
    """Refuse a request that a page of another origin made, where programs are expected. Raises: Problem 403."""
    origin = request.headers.get("origin")
    is_foreign = origin is not None and urlsplit(origin).netloc.lower() != request.headers.get("host", "").lower()
    if is_foreign or request.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
        raise Problem(403, "cross_origin", "This request came from a page of another origin, so nothing was done.")


def check_rate(site: Site, address: str, *, known: bool = False) -> None:
    """Refuse an address that guessed too often. A token that was right before is looked at all the same: its owner is
    never locked out by a neighbour. Raises: Problem 429."""
    wait = site.failures.wait_seconds(address)
    if wait > 0 and not known:
        seconds = max(1, round(wait))
        raise Problem(429, "too_many_requests", f"Too many wrong credentials came from this address. Wait {seconds} s.",
                      headers={"Retry-After": str(seconds)})  # fmt: skip


def client_address(site: Site, request: Request) -> str:
    """Where the request comes from. X-Forwarded-For counts only from the proxies that were named, read from the end."""
    address = request.client.host if request.client is not None else UNIX
    if address not in site.proxies:
        return address
    hops = [hop.strip() for hop in request.headers.get("x-forwarded-for", "").split(",") if hop.strip()]
    for hop in reversed(hops):
        address = hop[:64]
        if hop not in site.proxies:
            break
    return address


def path_of(request: Request) -> str:
    """The path as an audit row holds it: what no engine could keep stands there by its number."""
    return visible(request.url.path)


def cookie_name(site: Site, request: Request) -> str:
    """`__Host-` needs HTTPS. Browsers share cookies between the ports of one host, so plain ones carry the port."""
    if site.secure:
        return "__Host-tenure"
    return f"tenure-{request.url.port or 80}"


def set_session(site: Site, request: Request, response: Response, tenant: str, secret: str, seconds: float) -> None:
    """Give the browser its cookie. A new secret at each sign-in: one that was planted before is never taken over."""
    response.set_cookie(
        cookie_name(site, request),
        f"{tenant}.{secret}",
        max_age=int(seconds),
        path="/",
        secure=site.secure,
        httponly=True,
        samesite="strict",
    )


def clear_session(site: Site, request: Request, response: Response) -> None:
    """Take the cookie back."""
    response.delete_cookie(cookie_name(site, request), path="/", secure=site.secure, httponly=True, samesite="strict")


def _places(site: Site, token_id: str) -> list[str]:
    home = site.homes.get(token_id)
    if home is None:
        return list(site.tenants)
    return [home, *(tenant for tenant in site.tenants if tenant != home)]


def _is_past(moment: datetime) -> bool:
    """Whether a use should be noted anew. The store asks again, by its own clock."""
    return abs((datetime.now(UTC) - moment).total_seconds()) > 60


def _unauthorized(detail: str) -> Problem:
    return Problem(401, "unauthorized", detail, headers={"WWW-Authenticate": 'Bearer realm="tenure"'})
