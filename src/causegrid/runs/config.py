"""A study file: YAML in, a frozen and fully resolved config out, errors with file, line and key.

Every complaint is one line, `file:line key -> problem -> allowed, did you mean`; several are joined by
newlines.  Lines come from the YAML nodes; `--set a.b=c` takes the place of the file in complaints about
what it set.  A key that stands twice is an error here (YAML itself lets the last one win).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from causegrid.errors import InputError, nearest, unknown
from causegrid.runs.fields import allowed_at, ways

MOST_ERRORS = 5
MUST = {
    "a list, as in [a, b]": ("tuple_type", "list_type", "set_type", "frozen_set_type"),
    "a mapping, lines of `key: value`": ("dict_type", "mapping_type", "model_type", "model_attributes_type"),
    "a whole number": ("int_type", "int_parsing", "int_from_float"),
    "a number": ("float_type", "float_parsing"),
    "true or false": ("bool_type", "bool_parsing"),
    "text": ("string_type",),
}


def load(path: Path | str, *, overrides: Sequence[str] = ()) -> tuple[Any, Any]:
    """(study, config) of a study file.

    overrides: `a.b=c`, dotted paths (numbers are list positions), values read as YAML.
    Raises InputError for a missing or unreadable file, an unknown study, and every value that does not fit.
    """
    from causegrid.studies.base import studies

    source = Source(Path(path))
    for override in overrides:
        source.set(override)
    if "study" not in source.data:
        raise InputError(f"{source.place(())} study -> missing -> allowed: {', '.join(studies.names())}")
    name = source.data["study"]
    if not isinstance(name, str) or name not in studies:
        raise InputError(f"{source.place(('study',))} study -> {unknown('study', name, studies.names())}")
    found = studies.get(name)
    study = found() if isinstance(found, type) else found
    return study, source.validated(study.config_type)


def of_study(path: Path | str, study: str) -> Path:
    """The path of a study file.  Raises InputError unless it is one of `study`, or as `load` does."""
    found, _ = load(path)
    if found.name != study:
        raise InputError(
            f"{str(path)!r} is a study file of {found.name!r}, this takes one of {study!r}: `causegrid run` runs any"
        )
    return Path(path)


class Source:
    """A study file as data, with the place every key came from."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.marks: dict[tuple[Any, ...], str] = {}
        self.data: dict[str, Any] = self._read()

    def _read(self) -> dict[str, Any]:
        import yaml

        if self.path.is_dir():
            raise InputError(
                f"{str(self.path)!r} is a folder: give a study file, as `causegrid init NAME` writes"
            )
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise InputError(f"no study file {str(self.path)!r}{self._near()}") from None
        except UnicodeDecodeError as error:
            raise InputError(f"{self.path} is not UTF-8 text: bad byte at position {error.start}") from None
        except OSError as error:
            raise InputError(
                f"cannot read {str(self.path)!r}: {(error.strerror or str(error)).lower()}"
            ) from None
        try:
            loader = yaml.SafeLoader(text)
            node = loader.get_single_node()
            if node is None:
                raise InputError(
                    f"{self.path}:1 is empty: a study file has at least the keys `study` and its grid"
                )
            self._mark(node, ())
            data = loader.construct_document(node)
        except RecursionError:
            raise InputError(f"{self.path} is nested too deeply to be a study file") from None
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            at = f"{self.path}:{mark.line + 1}" if mark else str(self.path)
            problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
            raise InputError(f"{at} is not YAML: {' '.join(str(problem).split())}") from None
        except ValueError as error:  # a date or number YAML recognises but cannot build
            if isinstance(error, InputError):
                raise
            raise InputError(f"{self.path} is not YAML: {error}") from None
        if not isinstance(data, dict):
            raise InputError(
                f"{self.path}:1 holds a {_kind(data)}, not `key: value` lines: start with `study: NAME`"
            )
        return data

    def _near(self) -> str:
        try:
            names = [p.name for p in self.path.parent.iterdir() if p.suffix in (".yaml", ".yml")]
        except OSError:
            return ": its folder does not exist"
        match = nearest(self.path.name, names)
        return (
            f"; did you mean {str(self.path.parent / match)!r}?"
            if match
            else "; `causegrid init NAME` writes one"
        )

    def _mark(self, node: Any, key: tuple[Any, ...], inside: tuple[int, ...] = ()) -> None:
        """Remember the line of every key.  Raises InputError for a key that stands twice."""
        import yaml

        self.marks.setdefault(key, f"{self.path}:{node.start_mark.line + 1}")
        if id(node) in inside:
            raise InputError(f"{self.marks[key]} refers to itself (a YAML alias inside its own anchor)")
        inside = (*inside, id(node))
        if isinstance(node, yaml.SequenceNode):
            for i, item in enumerate(node.value):
                self._mark(item, (*key, i), inside)
        if isinstance(node, yaml.MappingNode):
            for name, value in node.value:
                below = (*key, str(name.value))
                line = f"{self.path}:{name.start_mark.line + 1}"
                if below in self.marks and name.value != "<<":
                    raise InputError(
                        f"{line} {_dotted(below)} -> stands twice (first at {self.marks[below]})"
                    )
                self.marks[below] = line
                self._mark(value, below, inside)

    def place(self, key: tuple[Any, ...]) -> str:
        """`file:line` (or `--set ...`) of a key or of the nearest key above it."""
        while key not in self.marks and key:
            key = key[:-1]
        return self.marks.get(key, f"{self.path}:1")

    def set(self, override: str) -> None:
        """Apply one `a.b=c`.  Raises InputError where the path goes through a value or past a list's end."""
        import yaml

        dotted, equals, text = override.partition("=")
        steps = [step.strip() for step in dotted.split(".")]
        if not equals or not all(steps):
            raise InputError(
                f"--set {override} -> not an assignment -> allowed: key=value, as in --set seeds=[0,1]"
            )
        try:
            value = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError) as error:
            raise InputError(
                f"--set {override} -> the value is not YAML: {' '.join(str(error).split())}"
            ) from None
        at: Any = self.data
        key: tuple[Any, ...] = ()
        for i, step in enumerate(steps):
            step_key = _step(at, step, f"--set {override} {'.'.join(steps[: i + 1])}")
            key = (*key, step_key)
            if i == len(steps) - 1:
                at[step_key] = value
            elif isinstance(at, dict) and at.get(step_key) is None:
                at[step_key] = {}
                self.marks.setdefault(key, f"--set {override}")
            at = at[step_key]
        self.marks = {k: m for k, m in self.marks.items() if k[: len(key)] != key}
        self.marks[key] = f"--set {override}"

    def validated(self, config_type: Any) -> Any:
        """The config.  Raises InputError with a line for each of the first few problems."""
        from pydantic import ValidationError

        try:
            return config_type.model_validate(self.data)
        except ValidationError as error:
            lines = self._lines(error.errors(include_url=False), config_type)
            more = [f"and {len(lines) - MOST_ERRORS} more"] if len(lines) > MOST_ERRORS else []
            raise InputError("\n".join([*lines[:MOST_ERRORS], *more])) from None

    def _lines(self, errors: Iterable[Any], config_type: Any) -> list[str]:
        """One line a key: what a union's members say about one value is joined."""
        problems: dict[tuple[Any, ...], list[str]] = {}
        found = list(errors)
        inner = [e["loc"] for e in found]
        for error in found:
            depth = len(error["loc"])
            below = any(len(loc) > depth and loc[:depth] == error["loc"] for loc in inner)
            if error["type"] in ("too_short", "too_long") and below:
                continue  # only an echo: the items below it were refused for their own reasons
            key = self._key(error)
            text = _problem(error, allowed_at(config_type, error["loc"][:-1]))
            if text not in problems.setdefault(key, []):
                problems[key].append(text)
        return [
            f"{self.place(key)} {_dotted(key)} -> {' or '.join(texts)}" for key, texts in problems.items()
        ]

    def _key(self, error: Mapping[str, Any]) -> tuple[Any, ...]:
        """Pydantic's location without the names of union members it passes through."""
        at: Any = self.data
        key: list[Any] = []
        for step in error["loc"]:
            if (isinstance(at, dict) and step in at) or (
                isinstance(at, list) and isinstance(step, int) and step < len(at)
            ):
                at = at[step]
                key.append(step)
        if error["type"] == "missing":
            key.append(error["loc"][-1])
        return tuple(key)


def _step(at: Any, step: str, said: str) -> Any:
    if isinstance(at, dict):
        return step
    if not isinstance(at, list):
        raise InputError(
            f"{said} -> goes through a {_kind(at)} ({at!r}) -> allowed: set the key above it whole"
        )
    if not step.isdigit() or int(step) >= len(at):
        raise InputError(
            f"{said} -> {step!r} is not a position in a list -> allowed: {ways(range(len(at))) or 'none'}"
        )
    return int(step)


def _problem(error: Any, fields: Sequence[str]) -> str:
    """`problem -> allowed, did you mean` of one pydantic error."""
    kind, given, context = error["type"], error.get("input"), error.get("ctx") or {}
    if kind == "extra_forbidden":
        return _unknown("unknown key", str(error["loc"][-1]), fields)
    if kind == "missing":
        return "missing -> required here"
    if kind in ("literal_error", "enum"):
        return _unknown(_shown(given), given, _options(context["expected"]))
    if kind == "union_tag_invalid":
        return _unknown(f"unknown {context['discriminator']} {context['tag']!r}", context["tag"],
                        _options(context["expected_tags"]))  # fmt: skip
    if kind == "union_tag_not_found":
        return f"lacks {context['discriminator']}, which says what it is"
    if kind == "value_error" and "error" in context:
        return str(context["error"])
    return f"{_shown(given)} -> {_must(error, context)}"


def _must(error: Any, context: Mapping[str, Any]) -> str:
    """What one pydantic error asks for, in the words of a study file: it knows lists and mappings, no tuples."""
    kind = str(error["type"])
    if kind in ("too_short", "too_long"):
        most = kind == "too_long"
        n = context["max_length" if most else "min_length"]
        return f"must have at {'most' if most else 'least'} {n} item{'' if n == 1 else 's'}"
    for said, kinds in MUST.items():
        if kind in kinds:
            return f"must be {said}"
    return str(error["msg"]).replace("Input should", "must", 1)


def _unknown(problem: str, given: object, allowed: Sequence[str]) -> str:
    match = nearest(str(given), allowed)
    hint = f", did you mean {match!r}?" if match else ""
    return f"{problem} -> allowed: {', '.join(allowed) if allowed else 'none'}{hint}"


def _options(expected: str) -> list[str]:
    """pydantic's `'a', 'b' or 'c'` -> [a, b, c]."""
    return [part.strip().strip("'\"") for part in expected.replace(" or ", ",").split(",") if part.strip()]


def _shown(value: Any) -> str:
    text = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)  # as YAML writes it
    return text if len(text) <= 60 else f"{text[:57]}..."


def _kind(value: Any) -> str:
    return {dict: "mapping", list: "list", str: "string", type(None): "null"}.get(
        type(value), type(value).__name__
    )


def _dotted(key: Sequence[Any]) -> str:
    return ".".join(str(step) for step in key) or "(whole file)"
