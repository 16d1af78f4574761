"""What to do about a run's folder that is not on the machine of the runner."""

from __future__ import annotations

from pathlib import Path

from governor.failures import Reason, place_in

ADVICE = "; the run's folder is not on this machine: return a value or a payload, or make the folder, whose files stay here"


def with_advice(reason: Reason, error: BaseException, *, folder: Path) -> Reason:
    """The reason, before its place with advice if user code wanted a file in `folder`, which does not exist here."""
    name = error.filename if isinstance(error, FileNotFoundError) else None
    if not isinstance(name, str) or not Path(name).is_relative_to(folder) or folder.exists():
        return reason
    place = place_in(reason)
    return Reason(f"{reason.removesuffix(place)}{ADVICE}{place}", reason.traceback)
