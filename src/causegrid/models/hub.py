"""The hub's part in a name: whether it can be asked for a config now, and why `NAME@REVISION` is no name.

huggingface_hub tries again for 20 s where nothing answers; a plan asks once, for a moment, and remembers.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from causegrid.errors import InputError

MOMENT = 2.0  # seconds


@functools.cache
def reachable() -> bool:
    """Whether the hub answers; asked once a process.  False in huggingface_hub's offline mode."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=MOMENT)
    except Exception:  # of requests or httpx, whichever this huggingface_hub is built on
        return False
    return True


@functools.cache
def outlined(name: str) -> Any | None:
    """The module of a name on the meta device; None where its config is neither here nor on a hub that answers.

    Of a Hugging Face id whose config is not in the cache, the config alone is fetched.
    """
    from causegrid.models.finetuning import outline

    shapes = outline(name)
    is_id = name.count("/") == 1 and not name.startswith((".", "~", "/")) and not Path(name).is_dir()
    if shapes is None and is_id and reachable():
        return outline(name, fetch=True)
    return shapes


def refuse_revision(name: str) -> None:
    """Raises InputError for `org/name@revision`, saying where a revision goes."""
    plain, at, revision = name.partition("@")
    if at and not Path(name).expanduser().exists():
        raise InputError(
            f"model {name!r} holds an '@': a revision is no part of a name; give it beside {plain!r}, to cg.model as "
            f"revision={revision!r}, in a study as checkpoints: [{{revision: {revision}, tokens: ...}}]"
        )
