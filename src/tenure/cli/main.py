"""`tenure`: finds the command, runs it, and turns every error into one sentence and one exit code.

A command's module is imported when it is called, and the list of commands stands here as data: `tenure --help`
imports none of them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from tenure.errors import InternalError, TenureError, UsageError

EXIT_CODES = {
    0: "ok",
    1: "failed",
    2: "usage: the command cannot be carried out as written",
    3: "not found",
    4: "illegal state: the job is not in a state for this, or the lease is lost",
    5: "database unreachable",
    6: "schema behind (or ahead): run `tenure migrate`",
    7: "gate closed, or forbidden",
    124: "timed out",
    130: "interrupted",
    141: "the reader of the output has gone, as with `| head`",
}

_OUTPUT_FAULTS = frozenset({errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT})

SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Start": {
        "demo": ("demo.command", "Show a worker killed, its job taken over, and a failure revived; ends by itself."),
        "init": ("start", "Write a small tasks.py to begin with."),
        "dev": ("start", "Run a worker that reloads when files change, with a live log and the console."),
        "worker": ("work", "Run the handlers of an app."),
    },
    "Jobs": {
        "enqueue": ("moves", "Put a job, or a stream of jobs, in a queue."),
        "jobs": ("jobs", "List, show, explain, cancel, revive and await jobs."),
        "signal": ("flow", "Tell jobs that wait for something."),
        "dlq": ("dlq", "Triage and replay dead letters."),
        "bundle": ("bundle", "Write one job with its whole history to a file, or open such a file."),
    },
    "A worker of your own": {
        "claim": ("moves", "Take due jobs under a lease."),
        "heartbeat": ("moves", "Extend the lease of a job you hold."),
        "complete": ("moves", "End a job you hold well."),
        "fail": ("moves", "End an attempt badly: it is retried, or dead when none are left."),
        "release": ("moves", "Give a job back unspent."),
    },
    "See": {
        "stats": ("stats", "What is outstanding, failed, stuck, slow, repeated, and ran lately."),
        "top": ("top", "A live screen of queues, workers and running jobs."),
        "tail": ("tail", "Follow events as they happen."),
        "usage": ("usage", "Tokens and cost of agents' model calls."),
        "workers": ("workers", "List workers."),
        "memory": ("memory", "Search, forget and reindex what agents remember."),
        "memos": ("memos", "List and forget values that jobs worked out once."),
        "reconcile": ("reconcile", "Compare what succeeded with the world, and list what differs."),
    },
    "Operate": {
        "queues": ("queues", "List, change, pause, resume and remove queues."),
        "serve": ("serve", "Serve the HTTP API and the console."),
        "mcp": ("mcp", "Serve the queue to an agent (Model Context Protocol)."),
        "confirm": ("mcp", "Agree to what an agent asks for over MCP."),
        "install-skill": ("skill", "Write a skill file and the entry in .mcp.json for agents."),
        "token": ("token", "Make, list and revoke tokens of the HTTP API."),
        "audit": ("audit", "List what was done with power, and verify that the record was not changed."),
        "budgets": ("budgets", "List, set, raise and remove budgets: how much jobs may spend."),
        "gates": ("gates", "List, open and close the switches that stop all work."),
        "limits": ("limits", "List, set, block and clear the limiters of services that jobs share."),
        "schedules": ("schedules", "List, run, pause and remove schedules."),
        "apply": ("apply", "Bring the policies and schedules of an app's code over to the database."),
        "inbox": ("inbox", "List what waits for a person, show it, approve and deny."),
        "workflows": ("workflows", "List, show, cancel and retry workflows; answer their escalations."),
        "profile": ("profile", "List, show and install profiles: another queue's words over the same jobs."),
        "bench": ("bench.command", "Measure this database: enqueue, drain, wake-up, beside the bare engine."),
        "doctor": ("doctor", "Check the installation, and say how to fix what is wrong."),
        "migrate": ("upkeep", "Bring the database's schema up to this version."),
        "move": ("move", "Move everything to another database, of either engine."),
        "prune": ("upkeep", "Clean up what ended long ago."),
        "version": ("upkeep", "Say which version this is."),
    },
}
"""Sections of the help: command → (module, what it does)."""

OTHER_WORDS = {
    "help": "--help",
    "run": "worker",
    "work": "worker",
    "start": "worker",
    "add": "enqueue",
    "push": "enqueue",
    "submit": "enqueue",
    "list": "jobs ls",
    "ls": "jobs ls",
    "show": "jobs show",
    "explain": "jobs explain",
    "ps": "workers ls",
    "status": "stats",
    "info": "stats",
    "monitor": "top",
    "logs": "jobs logs",
    "approvals": "inbox ls",
    "approve": "inbox approve",
    "retry": "jobs revive",
    "requeue": "jobs revive",
    "revive": "jobs revive",
    "replay": "dlq replay",
    "cancel": "jobs cancel",
    "delete": "jobs cancel",
    "rm": "jobs cancel",
    "revoke": "jobs cancel",
    "pause": "queues pause",
    "resume": "queues resume",
    "beat": "schedules ls",
    "cron": "schedules ls",
    "console": "serve",
    "dashboard": "serve",
    "flower": "serve",
    "ui": "serve",
    "web": "serve",
    "upgrade": "migrate",
    "cleanup": "prune",
    "purge": "prune",
    "check": "doctor",
    "export": "bundle",
}
"""What other programs call a command."""

COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}


def main() -> NoReturn:
    """The entry point of the script `tenure`."""
    sys.exit(run(sys.argv[1:]))


def run(args: Sequence[str]) -> int:
    """Carry out one command line and answer its exit code. Raises nothing."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    as_json = "--json" in args
    try:
        code = _run(list(args), as_json)
        sys.stdout.flush()
    except TenureError as exc:
        return tell(exc.code, str(exc), exc.exit_code, as_json=as_json)
    except SystemExit as exc:
        if isinstance(exc.__context__, BrokenPipeError):  # Click has made it an exit of its own
            return _unread()
        return exc.code if isinstance(exc.code, int) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return _unread()
    except Exception as exc:
        if isinstance(exc, OSError) and exc.filename is None and exc.errno in _OUTPUT_FAULTS:
            _unread()
            sentence = f"The answer could not be written: {exc.strerror}. What the command did stands."
            return tell("output", sentence, 1, as_json=as_json)
        if os.environ.get("TENURE_DEBUG"):
            raise
        sentence = f"{type(exc).__name__}: {exc}. This is a fault of Tenure's; TENURE_DEBUG=1 shows where it happened."
        return tell(InternalError.code, sentence, InternalError.exit_code, as_json=as_json)
    return code


def _unread() -> int:
    """The reader of our output has gone; nothing more can be said to stdout, also not by the interpreter at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
    return 141


def tell(code: str, sentence: str, exit_code: int, *, as_json: bool) -> int:
    """Say an error on stderr and answer the exit code. A terminal gets a sentence, a program an object."""
    from tenure.cli import text

    if as_json:
        error = {"code": code, "message": sentence, "exit_code": exit_code}
        print(text.to_json({"error": error}), file=sys.stderr)
    else:
        from tenure.cli.screen import colours_on

        told = text.wrapped(f"Error [{code}]: {text.safe_lines(sentence)}", sys.stderr)
        if colours_on(sys.stderr):
            told = told.replace("Error", "\x1b[1;31mError\x1b[0;31m", 1).replace(":", "\x1b[0m:", 1)
        print(told, file=sys.stderr)
    return exit_code


def _run(args: list[str], as_json: bool) -> int:
    import typer

    # Typer brings Click along under different names in different versions; this is its base of errors either way.
    click_usage: Any = typer.BadParameter.__mro__[1]
    click_error: Any = click_usage.__mro__[1]
    try:
        answer = command_line().main(args=args or ["--help"], prog_name="tenure", standalone_mode=False)
    except click_usage as exc:
        context = getattr(exc, "ctx", None)
        where = f" See `{context.command_path} --help`." if context is not None else ""
        return tell(UsageError.code, _sentence(exc.format_message()) + where, 2, as_json=as_json)
    except click_error as exc:
        return tell(UsageError.code, exc.format_message(), 2, as_json=as_json)
    except typer.Exit as exc:
        return int(exc.exit_code)
    except typer.Abort:
        return 130
    return answer if isinstance(answer, int) else 0


def command_line() -> Any:
    """The whole command line as one group of Click's, whose commands are made when they are asked for."""
    import typer
    from typer.core import TyperGroup

    from tenure.cli.group import nearest

    class Root(TyperGroup):
        """Finds commands by name, offers the nearest one for a name that is not there."""

        def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]  # noqa: ARG002
            return list(COMMANDS)

        def get_command(self, ctx: typer.Context, cmd_name: str) -> Any:  # type: ignore[override]  # noqa: ARG002
            return find_command(cmd_name)

        def resolve_command(self, ctx: typer.Context, args: list[str]) -> Any:  # type: ignore[override]
            if args and not args[0].startswith("-") and args[0] not in COMMANDS:
                meant = OTHER_WORDS.get(args[0])
                hint = f" Did you mean `{meant}`?" if meant else nearest(args[0], COMMANDS)
                raise UsageError(f"There is no command {args[0]!r}.{hint}")
            return super().resolve_command(ctx, args)

        def format_commands(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]  # noqa: ARG002
            for section, commands in SECTIONS.items():
                with formatter.section(section):
                    formatter.write_dl([(name, line) for name, (_, line) in commands.items()])
            with formatter.section("Exit codes"):
                formatter.write_dl([(str(code), meaning) for code, meaning in EXIT_CODES.items()])

    root = typer.Typer(
        cls=Root,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=True,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    def say_version(wanted: bool) -> None:
        if wanted:
            import tenure

            print(f"tenure {tenure.__version__}")
            raise typer.Exit

    @root.callback(
        help="A durable job queue: one SQLite file, or many machines on PostgreSQL.\n\n"
        "New here? `tenure demo`, then `tenure init` and `tenure dev`."
    )
    def _root(
        version: bool = typer.Option(
            False, "--version", "-V", callback=say_version, is_eager=True, help="Say which this is."
        ),
    ) -> None: ...

    return typer.main.get_command(root)


def find_command(name: str) -> Any:
    """The command of this name as Click has it, or None."""
    if name not in COMMANDS:
        return None
    import typer

    module: Any = import_module(f"tenure.cli.{COMMANDS[name][0]}")
    group: Any = typer.main.get_group(module.app)
    return group.commands.get(name, group)


def _sentence(message: str) -> str:
    return message if message.endswith((".", "?", "!")) else message + "."


if __name__ == "__main__":
    main()
