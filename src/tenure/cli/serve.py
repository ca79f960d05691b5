"""`tenure serve`: the HTTP API and the console, for this machine only unless it is told otherwise."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.group import verbs
from tenure.cli.loading import load_app
from tenure.cli.options import Json, Url, database_url, default_actor
from tenure.cli.screen import Screen
from tenure.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from tenure.app import App

app = verbs()

PORT = 8400
BULK_ACTS = 4
"""Acts on all that match which one server runs at a time: a slow one must not keep the others waiting."""


@app.command()
def serve(
    target: Annotated[
        str | None,
        typer.Argument(metavar="MODULE:APP", help="The app whose kinds are shown and checked; none if left out."),
    ] = None,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", metavar="N", min=0, max=65535, help="0 for a free one.")] = PORT,
    unix_socket: Annotated[
        Path | None,
        typer.Option("--socket", metavar="PATH", help="Listen on a unix socket of mode 0600 instead of a port."),
    ] = None,
    tenant: Annotated[
        list[str] | None,
        typer.Option(
            "--tenant", metavar="NAME=URL", envvar="TENURE_TENANTS", help="A database of its own; may be repeated."
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="HOST", help="A Host header to answer to, with its port; repeatable."),
    ] = None,
    behind_proxy: Annotated[
        list[str] | None,
        typer.Option(
            "--behind-proxy",
            metavar="ADDRESS",
            help="A proxy that adds TLS: its address or network, or unix; its X-Forwarded-For counts.",
        ),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", metavar="FILE", help="Certificate chain, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="Its key, PEM, mode 0600.")] = None,
    audit_heads: Annotated[
        Path | None,
        typer.Option("--audit-heads", metavar="FILE", help="Write the audit's head here each minute."),
    ] = None,
    max_queued: Annotated[
        int | None,
        typer.Option("--max-queued", metavar="N", min=1, help="Jobs of one tenant that may wait; then 429."),
    ] = None,
    max_bytes: Annotated[
        int | None,
        typer.Option("--max-bytes", metavar="N", min=1, help="What one tenant's tables may take; then 429."),
    ] = None,
    max_queues: Annotated[
        int | None, typer.Option("--max-queues", metavar="N", min=1, help="Queues of one tenant; then 429.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", metavar="N", min=1, help="Valid tokens of one tenant; then 429.")
    ] = None,
    max_streams: Annotated[
        int, typer.Option("--max-streams", metavar="N", min=1, help="Open event streams of one tenant; then 429.")
    ] = 2048,
    mcp: Annotated[bool, typer.Option("--mcp", help="Serve agents too, at /mcp, by tokens of scope mcp.")] = False,
    look_seconds: Annotated[
        float,
        typer.Option("--look-seconds", metavar="S", min=0.01, help="Stop a read that takes longer: 422 too_wide."),
    ] = 2.0,
    link: Annotated[bool, typer.Option("--link/--no-link", help="Print a link that signs in once.")] = True,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Serve the HTTP API and the console. Other addresses than loopback need TLS files or --behind-proxy."""
    from tenure.worker.supervisor import die_with_supervisor

    _uvicorn()  # before a file is made
    die_with_supervisor()
    check_address(host, has_tls=tls_cert is not None, proxies=behind_proxy or ())
    check_key(tls_cert, tls_key)
    bind = listening(host, port) if unix_socket is None else listening_on_socket(unix_socket)
    with _tenants(target, url, tenant or ()) as apps, bind as bound:
        where = Address(bound, has_tls=tls_cert is not None, given=host, public=_public(allow_host))
        is_secure = where.has_tls or bool(behind_proxy)
        server = make_server(
            apps,
            hosts=[*where.hosts, *(allow_host or ())],
            secure=is_secure,
            proxies=behind_proxy or (),
            tls=(tls_cert, tls_key),
            audit_heads=audit_heads,
            mcp=mcp,
            queued=max_queued,
            bytes=max_bytes,
            queues=max_queues,
            tokens=max_tokens,
            tenant_streams=max_streams,
            look_seconds=look_seconds,
        )
        links = {name: where.sign_in(one, is_secure=is_secure) for name, one in apps.items()} if link else {}
        stop_on_signals(server)
        screen = Screen(as_json)
        if as_json:
            print(_json({"url": where.url, "links": links}), flush=True)
        else:
            screen.note(f"Tenure listens on {where.url}; Ctrl-C ends it.")
            if mcp:
                screen.note(f"Agents reach it at {where.url}/mcp with a token of scope mcp.")
            for name, one in links.items():
                screen.note(f"Sign in{f' to {name}' if len(links) > 1 else ''}, once, within 15 minutes: {one}", "bold")
        with running_bulk_acts(apps.values()):
            server.run(sockets=[bound])


def stop_on_signals(server: Any) -> None:
    """Let SIGINT and SIGTERM end the server in order, from before it is told where it listens until it is done.

    uvicorn has handlers of its own only while it serves, and raises the signal once more when it is done. An exception
    that a signal raises anywhere in between could leave a lock held or a worker running.
    """

    def stop(_number: int, _frame: object) -> None:
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


def _public(hosts: list[str] | None) -> str | None:
    """The host by which browsers reach the server, if one was named."""
    return hosts[0].removesuffix(":*") if hosts else None


class Address:
    """Where a server listens, and the host by which browsers reach it, where one was named."""

    def __init__(
        self, bound: socket.socket, *, has_tls: bool = False, given: str = "127.0.0.1", public: str | None = None
    ) -> None:
        self.has_tls = has_tls
        self._public = public
        if bound.family == socket.AF_UNIX:
            # Clients of a unix socket name any host; a browser reaches it by a proxy, which `--allow-host` names.
            self.hosts = ["localhost"]
            self.url = f"unix:{bound.getsockname()}"
            return
        port = bound.getsockname()[1]
        name = f"[{given}]" if ":" in given else given
        self.hosts = [f"{one}:{port}" for one in dict.fromkeys((name, "localhost", "127.0.0.1", "[::1]"))]
        self.url = f"{'https' if has_tls else 'http'}://{self.hosts[0]}"

    def sign_in(self, app: App, *, is_secure: bool) -> str:
        """A link that works once. The secret is in the fragment, which no log and no proxy sees."""
        from tenure.model.access import EVERYTHING

        base = f"{'https' if is_secure else 'http'}://{self._public}" if self._public else self.url
        return f"{base}/ui/signin#{app.access.new_link(default_actor(), EVERYTHING)}"


def check_address(host: str, *, has_tls: bool, proxies: Any) -> None:
    """Refuse to listen to a network in clear. Raises: ConfigError."""
    try:
        is_loopback = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback and not has_tls and not proxies:
        raise ConfigError(
            f"{host} can be reached from other machines, and tokens would travel in clear, so the server was not "
            "started. Give --tls-cert and --tls-key, or --behind-proxy ADDRESS for a proxy that adds TLS."
        )


def check_key(cert: Path | None, key: Path | None) -> None:
    """Refuse a key that others can read. Raises: ConfigError."""
    if (cert is None) != (key is None):
        raise ConfigError("--tls-cert and --tls-key belong together; one of them is missing.")
    if key is None:
        return
    try:
        mode = key.stat().st_mode
    except OSError as exc:
        raise ConfigError(f"The TLS key {key} cannot be read: {exc.strerror}.") from exc
    if mode & (stat.S_IRGRP | stat.S_IROTH | stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(f"The TLS key {key} can be read by others, so the server was not started. chmod 600 {key}")


@contextlib.contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens. Raises: ConfigError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(1024)
        bound.setblocking(False)
    except OSError as exc:
        bound.close()
        raise ConfigError(f"{host}:{port} cannot be listened on: {exc.strerror}. Choose another with --port.") from exc
    with contextlib.closing(bound):
        yield bound


@contextlib.contextmanager
def listening_on_socket(path: Path) -> Iterator[socket.socket]:
    """A unix socket that only its owner may use; removed afterwards. Raises: ConfigError."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.closing(bound):
        try:
            if path.is_socket() and not _is_answered(path):
                path.unlink()  # left behind by a server that was killed
            # The mode of a socket comes from the umask at the moment of bind: chmod afterwards would leave a gap.
            before = os.umask(0o177)
            try:
                bound.bind(str(path))
            finally:
                os.umask(before)
            bound.listen(1024)
            bound.setblocking(False)
        except OSError as exc:
            raise ConfigError(f"The socket {path} cannot be listened on: {exc.strerror or exc}.") from exc
        try:
            yield bound
        finally:
            path.unlink(missing_ok=True)


def _is_answered(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def _uvicorn() -> Any:
    try:
        import uvicorn
    except ImportError:
        raise MissingExtra("web", "`tenure serve`") from None
    return uvicorn


def make_server(
    apps: dict[str, App],
    *,
    hosts: list[str],
    secure: bool,
    proxies: Any = (),
    tls: tuple[Path | None, Path | None],
    audit_heads: Path | None = None,
    mcp: bool = False,
    **limits: Any,
) -> Any:
    """A uvicorn server with our limits. Raises: MissingExtra."""
    uvicorn = _uvicorn()
    import tenure.mcp
    from tenure.web import asgi
    from tenure.web.server import uvicorn_settings

    agents = tenure.mcp.http() if mcp else None
    served = asgi(apps, hosts=hosts, secure=secure, proxies=proxies, audit_heads=audit_heads, mcp=agents, **limits)
    cert, key = tls
    files: dict[str, Any] = {"ssl_certfile": str(cert), "ssl_keyfile": str(key)} if cert and key else {}
    return uvicorn.Server(uvicorn.Config(served, **uvicorn_settings(proxies), **files))


@contextlib.contextmanager
def console_beside(target: str, url: str | None) -> Iterator[None]:
    """The server as a process of its own, for `tenure dev`. It says where it listens, and how to sign in."""
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        Screen().note("tenure dev: for the console, pip install 'tenure[web]'.")
        yield
        return
    from tenure.worker.supervisor import PARENT_VARIABLE

    # The URL goes by the environment: it may hold a password, and others see arguments in `ps`.
    environment = {**os.environ, PARENT_VARIABLE: str(os.getpid()), **({"TENURE_URL": url} if url else {})}
    command = [sys.executable, "-P", "-m", "tenure.cli.main", "serve", target, "--port", str(free_port(PORT))]
    with subprocess.Popen(command, start_new_session=True, env=environment) as child:
        try:
            yield
        finally:
            child.terminate()
            try:
                child.wait(timeout=15)
            except subprocess.TimeoutExpired:
                child.kill()


def free_port(wanted: int) -> int:
    """The port, or 0 for any if another program has it."""
    with contextlib.closing(socket.socket()) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", wanted))
        except OSError:
            return 0
    return wanted


@contextlib.contextmanager
def running_bulk_acts(apps: Iterable[App]) -> Iterator[None]:
    """Run the acts on all that match, a worker per database, in threads: they are the console's own jobs."""
    from tenure.app import App
    from tenure.effects.bulk_jobs import QUEUE, bulk

    with contextlib.ExitStack() as stack:
        for app in apps:
            own = stack.enter_context(App(app.url, actor="bulk")).use(bulk())
            if not own.queues.all(QUEUE):
                own.queues.set(QUEUE, own.registry.queues[QUEUE])
            worker = own.worker([QUEUE], concurrency=BULK_ACTS, handle_signals=False, grace_seconds=2.0)
            thread = threading.Thread(target=worker.run_sync, name="tenure-bulk", daemon=True)
            thread.start()
            stack.callback(thread.join, 10.0)
            stack.callback(worker.stop)
        yield


@contextlib.contextmanager
def _tenants(target: str | None, url: str | None, named: Any) -> Iterator[dict[str, App]]:
    """The apps to serve, by the names of their tenants, closed at the end. Raises: ConfigError."""
    from tenure.app import App

    with contextlib.ExitStack() as stack:
        apps: dict[str, App] = {}
        for one in named:
            name, _, address = one.partition("=")
            if not name.isidentifier() or not address or name in apps:
                raise ConfigError(f"{name!r}: a tenant is named once, as NAME=URL, by letters, digits and underscores.")
            apps[name] = stack.enter_context(App(address, actor=default_actor()))
        if not apps:
            if target is not None:
                found = load_app(target)
                stack.enter_context(found.pointed_at(url) if url else contextlib.closing(found))
            else:
                found = stack.enter_context(App(database_url(url), actor=default_actor()))
            apps["default"] = found
        for one in apps.values():
            one.now()  # an unreachable database is told before the port is open
        yield apps


def _json(value: Any) -> str:
    from tenure.cli.text import to_json

    return to_json(value)
