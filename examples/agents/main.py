"""Ten agents work a backlog: eight do, one always fails, one is hostile. None of them disturbs the others.

python examples/agents/main.py
"""

import json
import sys
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import tenure
from tenure.effects import AgentTool, agents, reports
from tenure.sandbox.policy import offers

HERE = Path(__file__).parent.resolve()
NAMES = ("ada", "bela", "chen", "dara", "emil", "fay", "gus", "hana", "grumpy", "mallory")
TASKS = ("summarise the minutes of Monday", "name the three oldest tickets")
ANSWER = {
    "type": "object",
    "properties": {"task": {"type": "string"}, "words": {"type": "integer"}, "verdict": {}},
    "required": ["task", "words", "verdict"],
}
REQUIRED = ("namespaces", "landlock", "seccomp")


DATABASE = Path("agents.db")


def tool(name: str, *, is_weak: bool) -> AgentTool:
    """One agent. For the real ones: AgentTool("codex", ("/usr/local/bin/codex",), "codex", network="host")."""
    python = Path(sys.executable).resolve()
    return AgentTool(
        name,
        command=(str(python), str(HERE / "agent.py"), name, str(DATABASE.resolve())),  # mallory would like to read it
        dialect="codex",
        readable=(HERE, Path(sys.base_prefix)),
        timeout=timedelta(seconds=20),
        grace=timedelta(seconds=1),
        allow_degraded=is_weak,
    )


def main() -> None:
    if DATABASE.exists():
        sys.exit(f"{DATABASE} is here from an earlier run, and its answers are written. Start in an empty folder.")
    started = time.monotonic()
    missing = [layer for layer in REQUIRED if layer in offers().missing]
    if missing:
        print(f"this machine lacks {', '.join(missing)}: the example goes on with a weaker sandbox", file=sys.stderr)
    tools = [tool(name, is_weak=bool(missing)) for name in NAMES]
    Path("answers").mkdir(exist_ok=True)
    app = tenure.App(f"sqlite:///{DATABASE}").use(
        agents(*tools, root="answers", artifacts="artifacts", max_attempts=2), reports(root="answers")
    )
    app.queues.set("agents", backoff=tenure.Backoff(shape="none"))

    backlog = {}
    for name in NAMES:
        for number, task in enumerate(TASKS):
            payload = {"agent": name, "prompt": task, "targetPath": f"{name}/{number}.json", "outputSchema": ANSWER}
            backlog[app.enqueue("agent", payload).id] = name
    again = app.enqueue("agent", payload)
    print(f"backlog: {len(backlog)} tasks for {len(NAMES)} agents")
    print(f"the last request once more: {'the same job' if again.duplicate else 'another job'}")

    app.run_worker(["agents"], concurrency=10, drain=True)
    app.enqueue("report", {"path": "report.md", "title": "The backlog", "jobIds": list(backlog)})
    app.run_worker(["reports"], drain=True)

    jobs = [job for job in app.get_many(backlog) if job is not None]
    by_agent = {name: Counter(job.state.value for job in jobs if backlog[job.id] == name) for name in NAMES}
    for name, states in by_agent.items():
        print(f"  {name:<8} {', '.join(f'{count} {state}' for state, count in states.items())}")
    attacks = json.loads(Path("answers/mallory/0.json").read_text())["verdict"]
    print("what mallory tried:", ", ".join(f"{what}: {end}" for what, end in attacks.items()))
    runs = [event.data for job in jobs for event in app.events(job_id=job.id, kind="agent_run")]
    print(f"runs: {len(runs)}, processes left behind and killed: {sum(run['leftBehind'] for run in runs)}")
    print(f"discrepancies between records and files: {len(list(app.effects.reconcile()))}; see answers/report.md")
    print(f"took {time.monotonic() - started:.0f} s", file=sys.stderr)

    assert again.duplicate
    assert all(by_agent[name] == {"succeeded": 2} for name in NAMES if name != "grumpy")
    assert by_agent["grumpy"] == {"dead": 2}
    assert missing or "worked" not in attacks.values()
    app.close()


if __name__ == "__main__":
    main()
