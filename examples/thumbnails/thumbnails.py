"""Thumbnails of what people put into their folders, on one SQLite file.

    tenure worker thumbnails:app

Every two seconds a schedule looks for new pictures in pictures/OWNER/*.png. Each becomes a job; jobs of one owner run
one at a time, so that a person with ten thousand pictures does not keep the others waiting.
"""

import os
from pathlib import Path

import png

import tenure

PICTURES = Path(os.environ.get("PICTURES", "pictures"))
THUMBNAILS = Path(os.environ.get("THUMBNAILS", "thumbnails"))
LARGEST = 64

app = tenure.App("sqlite:///thumbnails.db")
app.queue("pictures", concurrency_per_key=1, events=True, max_attempts=3, lease_seconds=30, key_scope="forever")


@app.job(queue="pictures", concurrency_key=lambda path: path.split("/")[0])
def thumbnail(path: str, ctx: tenure.Context) -> dict[str, int]:
    """Make one thumbnail. A file that is no picture will never be one, so it is not tried again."""
    try:
        picture = png.read((PICTURES / path).read_bytes())
    except (png.NoPicture, FileNotFoundError) as exc:
        raise tenure.Permanent(f"{path} has no thumbnail: {exc}") from exc

    def tell(share: float) -> None:
        ctx.progress(round(share, 2), f"{share:.0%} of {picture.height} rows")
        ctx.check()  # ends here if the job was cancelled or its worker has to stop

    small = png.shrink(picture, LARGEST, tell)
    target = THUMBNAILS / path
    target.parent.mkdir(parents=True, exist_ok=True)
    begun = target.with_suffix(".part")
    begun.write_bytes(png.write(small))
    begun.replace(target)  # a reader sees a whole picture or none
    return {"width": small.width, "height": small.height}


@app.job(queue="looks", max_attempts=1)
def look() -> int:
    """Enqueue what is new. The key names the file and its last change, so each version is enqueued once."""
    found = sorted(PICTURES.glob("*/*.png"))
    jobs = [
        app.new_job("thumbnail", path.relative_to(PICTURES).as_posix(), key=f"{path}@{path.stat().st_mtime_ns}")
        for path in found
    ]
    return sum(not one.duplicate for one in app.enqueue_many(jobs))


app.queue("looks", concurrency=1)
app.schedule("look", job=look, every=2)
