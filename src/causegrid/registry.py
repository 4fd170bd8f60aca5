"""One registry per kind of thing (tasks, models, screens, studies, engines).

Adding one is one new file with a decorator in the room's folder: the registry imports every module of
its package the first time it is asked, so no list has to be kept by hand.  Third parties add theirs
through Python entry points in the group `causegrid.<plural of the kind>` (`causegrid.tasks`).  A duplicate
name is an error.  A name may be a pattern (`z<n>`): it is registered with a regular expression and resolves to the same
object, which is then called with the full name.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
import re
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from causegrid.errors import unknown

T = TypeVar("T")


class Registry(Generic[T]):
    """Names -> things of one kind, filled by decorators in the modules of `package`."""

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self.group = f"causegrid.{kind[:-1]}ies" if kind.endswith("y") else f"causegrid.{kind}s"
        self._package = package
        self._things: dict[str, T] = {}
        self._patterns: dict[str, re.Pattern[str]] = {}
        self._discovered = False

    def register(self, name: str, *, pattern: str | None = None) -> Callable[[T], T]:
        """Decorator: register under `name`; with `pattern`, every full match resolves to it too.

        Raises ValueError when the name is taken by another object.
        """

        def decorate(thing: T) -> T:
            if name in self._things:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._things[name] = thing
            if pattern is not None:
                self._patterns[name] = re.compile(pattern)
            return thing

        return decorate

    def get(self, name: str) -> T:
        """The thing of this name.  Raises InputError naming the nearest match when there is none."""
        self._discover()
        if name in self._things and name not in self._patterns:
            return self._things[name]
        for key, pattern in self._patterns.items():
            if pattern.fullmatch(name):
                return self._things[key]
        raise unknown(self.kind, name, self.names())

    def __contains__(self, name: object) -> bool:
        self._discover()
        if not isinstance(name, str):
            return False
        exact = name in self._things and name not in self._patterns
        return exact or any(p.fullmatch(name) for p in self._patterns.values())

    def names(self) -> list[str]:
        """All names, sorted; patterns appear as they were named (`z<n>`)."""
        self._discover()
        return sorted(self._things)

    def items(self) -> Iterator[tuple[str, T]]:
        """(name, thing) pairs, sorted by name."""
        for name in self.names():
            yield name, self._things[name]

    def _discover(self) -> None:
        if self._discovered:
            return
        self._discovered = True  # first: modules being imported may ask the registry themselves
        package = importlib.import_module(self._package)
        for module in pkgutil.iter_modules(package.__path__):
            if not module.name.startswith("_"):
                importlib.import_module(f"{self._package}.{module.name}")
        for entry in importlib.metadata.entry_points(group=self.group):
            thing = entry.load()
            if self._things.get(entry.name) is not thing:
                self.register(entry.name)(thing)
