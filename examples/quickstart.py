"""Five minutes with Tenure, on a SQLite file and with no server: python examples/quickstart.py"""

import pydantic

import tenure

app = tenure.App("sqlite:///quickstart.db")


class Welcome(pydantic.BaseModel):
    user_id: int


@app.job(queue="mail", max_attempts=5)
async def welcome(payload: Welcome, ctx: tenure.Context) -> str:
    if payload.user_id == 13 and ctx.attempt == 1:
        raise tenure.RetryAfter(0, "the mail server is busy")
    ctx.progress(1.0)
    return f"welcomed user {payload.user_id}"


@app.job(queue="mail")
def newsletter(payload: dict[str, str]) -> None:
    raise tenure.Permanent(f"{payload['issue']} was never written")


def main() -> None:
    first = welcome.options(key="welcome-7").enqueue(Welcome(user_id=7))
    again = welcome.options(key="welcome-7").enqueue(Welcome(user_id=7))  # the key is taken: the same job answers
    print("one job, not two:", first.id == again.id and again.duplicate)

    welcome.options(priority=10).enqueue(Welcome(user_id=13))
    newsletter.enqueue({"issue": "May"})

    app.run_worker(drain=True)  # without `drain` it goes on until Ctrl-C

    for job in app.jobs(queue="mail"):
        print(f"{job.kind:<10} {job.state:<9} after {job.attempt} attempts: {job.result or 'no result'}")
    for letter in app.dead_letters.all():
        print("needs a person:", letter.kind, "·", letter.final_error.splitlines()[0])


if __name__ == "__main__":
    main()
