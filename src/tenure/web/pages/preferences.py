"""What a viewer chooses: theme, times, keys, live updates, columns. Kept in a cookie that the server reads."""

from __future__ import annotations

from tenure.web.pages.visit import Answer, Moved, Visit


def change(visit: Visit) -> Answer:
    """Take the choices of the form and go back to where it stood."""
    told = {name: values[0] for name, values in visit.form.items() if values}
    back = told.get("back", "")
    inside = back.startswith(f"{visit.root}/") and "\\" not in back
    chosen = visit.preferences.changed(told)
    if "columns" in told:
        chosen = chosen.showing(visit.form.get("column", ()))
    return Moved(back if inside else visit.link("/"), preferences=chosen)
