"""Of which Python, platform and libraries a cell's stages are: kept in its manifest."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping
from functools import cache
from typing import Any

VERSIONED = ("torch", "transformers", "numpy", "scipy", "scikit-learn", "pandas", "numba")


def versions() -> dict[str, str]:
    """Versions a number may depend on; no host names, no paths."""
    found = {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}"}
    found["causegrid"] = _version("causegrid")
    for package in VERSIONED:
        found[package] = _version(package)
    return {name: version for name, version in found.items() if version}


@cache
def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def earlier(before: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Versions under which earlier stages of this cell ran, where they differ from today's."""
    seen = [*before.get("earlier_versions", [])]
    if before.get("stages") and before.get("versions") not in (None, versions(), *seen):
        seen.append(before["versions"])
    return seen
