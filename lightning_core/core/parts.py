"""Parts from outside the library: what a package may bring, and the registry of those that there are.

A package brings parts by an entry point of the group ``lightning_core.parts`` that names a :class:`Part`:

.. code-block:: toml

    [project.entry-points."lightning_core.parts"]
    quiet = "quiet_nights:part"

A notebook or a script registers one with :func:`register`. Entry points are looked up when a name is asked for that the
library does not have, once in a process: a part that is never named is never imported.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from functools import cache, partial
from importlib import import_module
from importlib.metadata import Distribution, PackageNotFoundError, distributions, entry_points, version
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from lightning_core.core.names import did_you_mean
from lightning_core.core.validation import made
from lightning_core.errors import LightningCoreError

log = logging.getLogger(__name__)

T = TypeVar("T")

GROUP = "lightning_core.parts"
# Characters of what a column says of a job.
MAX_CELL = 200
# Characters of what a part says of a group of jobs.
MAX_LINE = 500


class AbsentPartError(LightningCoreError, ValueError):
    """A part is named that is neither in the library nor in a package that is installed here."""


class Html(str):
    """Trusted HTML of a panel or page; any other text is escaped."""

    __slots__ = ()


class Later(NamedTuple):
    """A class or function that is imported when it is first asked for."""

    module: str
    name: str

    def load(self) -> Any:
        """Import it."""
        return getattr(import_module(self.module), self.name)

    def __call__(self, *arguments: Any) -> Any:
        return self.load()(*arguments)


def later(module: str, name: str) -> Any:
    """Return a class or function that is not imported before it is asked for or called.

    Args:
        module: Its module.
        name: Its name there.
    """
    return Later(module, name)


class Companion(NamedTuple):
    """A process that stands beside a pool: ``up --NAME [VALUE]`` starts it, and ``down`` ends it.

    Args:
        start: Function of the pool's folder and of what ``read`` returned. It starts the process, in place of one that
            runs, and returns a text for the user. If it raises, the pool is up all the same.
        end: Function of the pool's folder that ends the process if it runs.
        read: Function of the text VALUE, called before the pool is started. If it raises, nothing is started.
        default: VALUE if none is given.
        help: Line about the option for ``up --help``.
        metavar: Word for VALUE there.
    """

    start: Callable[[Path, Any], str]
    end: Callable[[Path], None]
    read: Callable[[str], Any] = str
    default: str = ""
    help: str = ""
    metavar: str = "VALUE"


class LivePage(NamedTuple):
    """A page about a pool that is drawn again while it is open, where pools are shown live.

    Args:
        draw: Function of a :class:`~lightning_core.history.pool_scene.PoolScene`. It returns what a panel does, or
            :class:`Html`.
        fits: Function of the description of a pool (``Pool.about()``) that returns whether it has this page.
    """

    draw: Callable[[Any], Any]
    fits: Callable[[Mapping[str, Any]], bool] = lambda about: True


class Figure(NamedTuple):
    """A number that a part gives to monitoring, or several by a label.

    Args:
        name: Name, in lower case with underscores.
        about: What it is.
        value: The number, or numbers by the value of the label.
        label: Name of the label; empty for a single number.
        counts: Whether it only grows.
    """

    name: str
    about: str
    value: float | Mapping[str, float]
    label: str = ""
    counts: bool = False


class Group(NamedTuple):
    """How jobs of a part belong together; see the argument ``group`` of :class:`Part`."""

    name: Callable[[Mapping[str, Any]], str]
    """Function of a job's data of the part that returns the name of its group, or an empty one for none."""
    describe: Callable[[Sequence[Any]], str]
    """Function of the :class:`~lightning_core.core.answers.JobStatus` of a group's jobs, in the order of submission,
    that returns what views say of the group."""


@dataclass(frozen=True)
class Part:
    """Everything that one package brings; a package brings any of it.

    Args:
        policies: Classes of :class:`~lightning_core.core.protocols.Policy` by name.
        estimators: Classes of :class:`~lightning_core.core.protocols.Estimator` by name.
        controllers: Classes of :class:`~lightning_core.controllers.Controller` by name.
        members: Classes or functions of families that another part has, by family and by name; that part's
            documentation says which.
        targets: Classes derived from :class:`~lightning_core.core.targets.Target`.
        events: Frozen dataclasses of JSON values by name. An event that is sent to a pool as ``NAME.EVENT``, where
            ``NAME`` is that of the entry point, reaches all controllers as an object of its class. A part with
            controllers hears of events only in pools that have one of these. Of a class whose ``FROM_CLIENTS`` is
            False, events come from actors of the pool alone.
        answers: Classes of what its controllers answer beside :class:`~lightning_core.core.control.Ask`, by name; their
            objects are journalled (:class:`~lightning_core.core.control.PartAnswer`).
        supplies: Classes of :class:`~lightning_core.core.supplies.Supply` by the key of their section in a bundle and
            in the file of ``up --config``, which is the name of their controller.
        dividers: Classes of :class:`~lightning_core.scheduler.divider.Divider` by the key of their terms in the section
            ``pool``.
        tasks: Factories of :class:`~lightning_core.core.supplies.BesideTask`, by the name of the controller that a task
            computes for.
        histories: Functions of settings that return a :class:`~lightning_core.core.supplies.PartHistory` of a pool, or
            None for a pool that it says nothing of, by name.
        lines: Functions that return the line of ``status`` for what a controller says of itself, by its name, or for
            an entry of what a divider says.
        figures: Functions that return a list of :class:`Figure` for all that a controller or divider says, by its name.
        reasons: Words of its reasons, as in :mod:`lightning_core.core.reasons`, by code; ``Reason("PART.CODE")`` has
            them.
        commands: Function that adds commands to ``lightning-core``, as ``add_commands`` of the modules in
            ``lightning_core.cli`` does.
        columns: Functions of a :class:`~lightning_core.core.answers.JobStatus` that return a text, or an empty one for
            nothing, by the heading under which ``status``, reports and live pools show it.
        panels: Functions of a :class:`~lightning_core.history.history.History` that return a text, the rows of a table
            (a list of lists of texts, the heading first) or :class:`Html`, by the title of the panel that they add to
            reports and to the timeline of a live pool; an empty text for no panel.
        pages: A :class:`LivePage` by its title, for users who may see all jobs.
        companions: A :class:`Companion` by the name of its option.
        job_data: Frozen dataclass of JSON values: the form of a job's data of the part, ``Job.parts[NAME]``. Data of
            another form are refused when the job is submitted.
        group: Groups of jobs by their data of the part, such as the folds of a cross-validation. Views show a
            group as one line, and notifications and alerts leave out its jobs; ``status --NAME GROUP`` lists them.
        submission: Function of a job's data of the part that returns what histories say of its submission, after its
            terms; an empty text for nothing.
        askers: :class:`~lightning_core.core.control.Rights` of those who ask by commands, such as a program that
            pauses jobs and resumes them, by the name that the commands have as ``by``.

    Example::

        >>> from lightning_core.policies import POLICIES, Edf
        >>> class NewestFirst(Edf):
        ...     '''The job that was submitted last first.'''
        >>> register("newest", Part(policies={"newest_first": NewestFirst}))
        >>> type(POLICIES.build("newest_first", {})).__name__
        'NewestFirst'
        >>> unregister("newest")
    """

    policies: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    estimators: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    controllers: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    members: Mapping[str, Mapping[str, Callable[..., Any]]] = field(default_factory=dict)
    targets: Sequence[type[Any]] = ()
    events: Mapping[str, type[Any]] = field(default_factory=dict)
    answers: Mapping[str, type[Any]] = field(default_factory=dict)
    supplies: Mapping[str, Any] = field(default_factory=dict)
    dividers: Mapping[str, Any] = field(default_factory=dict)
    tasks: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    histories: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    lines: Mapping[str, Callable[[Any], str]] = field(default_factory=dict)
    figures: Mapping[str, Callable[[Any], Sequence[Figure]]] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    commands: Callable[..., None] | None = None
    columns: Mapping[str, Callable[..., str]] = field(default_factory=dict)
    panels: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    pages: Mapping[str, LivePage] = field(default_factory=dict)
    companions: Mapping[str, Companion] = field(default_factory=dict)
    job_data: type[Any] | None = None
    group: Group | None = None
    submission: Callable[[Mapping[str, Any]], str] | None = None
    askers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Registered:
    """A part with the package that it is from."""

    name: str
    part: Part
    package: str
    """Name and version of the package: ``quiet-nights 1.2``."""


_registered: dict[str, Registered] = {}
# Paths of classes that may be imported: those that the user of this process has named. A journal that is only read may
# come from anybody.
_allowed: set[str] = set()
_is_reading: ContextVar[bool] = ContextVar("is_reading", default=False)
_broken: dict[str, str] = {}


def register(name: str, part: Part) -> None:
    """Add a part in this process, in place of an earlier one of the same name.

    Args:
        name: Name of the part; the names of its events begin with it.
        part: The part.

    Raises:
        ValueError: If it is no :class:`Part`, or another part brings something of the same name.
    """
    _add(name, part, package_of(_any_member(part) if isinstance(part, Part) else part))


def unregister(name: str) -> None:
    """Remove a part from this process."""
    _registered.pop(name, None)


def all_parts() -> list[Registered]:
    """Return all parts that are registered or installed, by name.

    One that cannot be imported is left out, and the log says why.
    """
    _load_installed()
    return [_registered[name] for name in sorted(_registered)]


def broken_parts() -> Mapping[str, str]:
    """Return why parts that are installed could not be loaded, by name."""
    _load_installed()
    return dict(_broken)


def broken_words() -> str:
    """Return which installed parts could not be loaded and why, for the end of an error about an unknown name."""
    return "".join(f"; the part {part} cannot be loaded: {words}" for part, words in broken_parts().items())


def brought(family: str, name: str) -> tuple[Any, str] | None:
    """Return what some part brings under a name, and the part's package; None if no part does.

    Args:
        family: Name of a field of :class:`Part` that is a mapping, or of a family of another part.
        name: The name.
    """
    for one in all_parts():
        if (found := _brings(one.part, family).get(name)) is not None:
            return (found.load() if isinstance(found, Later) else found), one.package
    return None


def names_of(family: str) -> list[str]:
    """Return the names of all that parts bring of a family."""
    return [name for one in all_parts() for name in _brings(one.part, family)]


def all_of(family: str) -> dict[str, Any]:
    """Return everything that parts bring of a family, by name."""
    pairs = ((name, found) for one in all_parts() for name, found in _brings(one.part, family).items())
    return {name: found.load() if isinstance(found, Later) else found for name, found in pairs}


def _brings(part: Part, family: str) -> Mapping[str, Any]:
    own = getattr(part, family, None)
    return part.members.get(family, {}) if own is None else own


def outside_targets() -> Iterator[type[Any]]:
    """Yield the kinds of targets that parts bring."""
    for one in all_parts():
        yield from one.part.targets


def guarded(what: str, call: Callable[[], T], instead: Callable[[str], T]) -> T:
    """Return what code of a part returns that is called beside the scheduler; where it raises, another value.

    Args:
        what: What is called, for the log.
        call: Calls it.
        instead: Returns the other value, from the error in words.

    Example::

        >>> guarded("the column Half", lambda: str(1 / 0), lambda words: words)
        'ZeroDivisionError: division by zero'
    """
    try:
        return call()
    except Exception as error:  # code from outside may raise anything
        words = f"{type(error).__name__}: {error}"
        log.info("%s: %s", what, words)
        return instead(words)


def lines_of(name: str, said: Any) -> list[str]:
    """Return the line of ``status`` for what a controller or divider says; none if no part has one.

    Args:
        name: Its name.
        said: What it says, as JSON values; None for nothing.
    """
    if said is None or (line := brought("lines", name)) is None:
        return []
    return [guarded(f"the line of {name}", lambda: str(line[0](said)), lambda words: f"{name}: {words}")[:MAX_LINE]]


def figures_of(name: str, said: Any) -> list[Figure]:
    """Return the figures for what a controller or divider says; none if no part has any, or it raises."""
    if said is None or (figures := brought("figures", name)) is None:
        return []
    return guarded(f"the figures of {name}", lambda: list(figures[0](said)), lambda _: [])


def columns_of(status: Any) -> dict[str, str]:
    """Return what columns of parts say of a job, by their headings; one that raises says so itself.

    Args:
        status: The :class:`~lightning_core.core.answers.JobStatus`.
    """
    said = {}
    for one in all_parts():
        for heading, column in one.part.columns.items():
            cell = guarded(f"the column {heading}", partial(column, status), str)
            said[heading] = "" if cell is None else str(cell)
    return {heading: words[:MAX_CELL] for heading, words in said.items() if words}


def check_job_data(data: Mapping[str, Mapping[str, Any]]) -> None:
    """Check the data that a new job has of parts.

    Args:
        data: Its ``parts``.

    Raises:
        ValueError: If no part of a name is installed, or its data have another form than the part's.
    """
    for name, values in data.items():
        if (found := _part(name)) is None:
            raise ValueError(f"no part {name!r} is installed{did_you_mean(name, [one.name for one in all_parts()])}")
        if found.job_data is None:
            raise ValueError(f"part {name} keeps no data of jobs")
        try:
            read(found.job_data, values)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name}: {error}") from None


def read(kind: type[Any], values: Mapping[str, Any]) -> Any:
    """Return an object of a part's class, made of JSON values.

    Raises:
        TypeError: If a value is missing.
        ValueError: If one is unknown, or of another type or out of its range.
    """
    try:
        return made(kind, dict(values))
    except (NameError, TypeError):  # annotations of code from outside may be anything
        return kind(**values)


def group_of(data: Mapping[str, Mapping[str, Any]]) -> tuple[str, str] | None:
    """Return the part and the name of the group to which a job belongs; None if it stands for itself.

    Args:
        data: ``parts`` of the job.
    """
    for name in sorted(data):
        found = _part(name)
        if found is None or found.group is None:
            continue
        if group := str(guarded(f"the group of {name}", partial(found.group.name, data[name]), lambda _: "") or ""):
            return name, group
    return None


def group_words(part: str, jobs: Sequence[Any]) -> str:
    """Return what a part says of a group; one that raises says so itself.

    Args:
        part: Name of the part.
        jobs: Status of each job of the group, in the order of submission.
    """
    found = _part(part)
    if found is None or found.group is None:
        return ""
    return str(guarded(f"the group of {part}", partial(found.group.describe, jobs), str))[:MAX_LINE]


def submission_words(data: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return what parts say of the submission of a job; one that raises says so itself.

    Args:
        data: ``parts`` of the job.
    """
    said = []
    for name in sorted(data):
        found = _part(name)
        if found is not None and found.submission is not None:
            said.append(str(guarded(f"the submission of {name}", partial(found.submission, data[name]), str) or ""))
    return [words[:MAX_LINE] for words in said if words]


def message_class(name: str, family: str) -> type[Any] | None:
    """Return the class of an event or answer of a part by its full name, ``PART.NAME``; None if no part brings it.

    Args:
        name: The name.
        family: Field of :class:`Part`: ``"events"`` or ``"answers"``.
    """
    part, _, inner = name.partition(".")
    found = _part(part)
    return None if found is None else getattr(found, family).get(inner)


def message_name(kind: type[Any], family: str) -> str:
    """Return the full name of a class of events or answers.

    Raises:
        ValueError: If no part brings it.
    """
    pairs = ((one.name, getattr(one.part, family)) for one in all_parts())
    names = (f"{part}.{name}" for part, messages in pairs for name, own in messages.items() if own is kind)
    if (found := next(names, None)) is None:
        raise ValueError(f"{kind.__name__} must be among the {family} of a registered part")
    return found


def message_body(message: Any) -> dict[str, Any]:
    """Return the fields of an event or answer, a dataclass or NamedTuple, as JSON values.

    Raises:
        ValueError: If a number is not finite.
    """
    fields = message._asdict() if hasattr(message, "_asdict") else message
    # Not by msgspec alone, which writes null for a number that is not finite.
    body: dict[str, Any] = json.loads(json.dumps(msgspec.to_builtins(fields, enc_hook=str), allow_nan=False))
    return body


def read_message(message: Any, family: str) -> Any:
    """Return the object that a part makes of a message, with its ``name`` and ``body``; itself where no part knows it.

    Raises:
        ValueError: If its body is of another form.
    """
    kind = message_class(message.name, family)
    if kind is None:
        return message
    try:
        return read(kind, message.body)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{family.removesuffix('s')} {message.name}: {error}") from None


def reason_words(code: str) -> str | None:
    """Return the words of a part's reason, ``PART.CODE``; None if no part brings it."""
    part, _, inner = code.partition(".")
    found = _part(part)
    return None if found is None else found.reasons.get(inner)


def controllers_hearing(event: str) -> Collection[str]:
    """Return the names of the controllers that the part of an event brings."""
    found = _part(event.partition(".")[0])
    return () if found is None else found.controllers.keys()


def _part(name: str) -> Part | None:
    return next((one.part for one in all_parts() if one.name == name), None)


@contextmanager
def reading_only() -> Iterator[None]:
    """Let class paths that are named meanwhile be imported only if the user of this process has named them before."""
    token = _is_reading.set(True)
    try:
        yield
    finally:
        _is_reading.reset(token)


def allow_classes(paths: Iterable[str]) -> None:
    """Let classes be imported by their paths: who runs this process has named them."""
    if not _is_reading.get():
        _allowed.update(paths)


def import_class(path: str, kind: str, methods: Sequence[str]) -> type[Any]:
    """Import a class by its path.

    Args:
        path: Module and name of the class: ``package.module.Class``.
        kind: What the class is, for messages.
        methods: Names of methods that it must have.

    Raises:
        AbsentPartError: If there is no such module or class, or the user of this process has not named it.
        ValueError: If it is no class with these methods.
    """
    if path not in _allowed:
        raise AbsentPartError(f"{kind} {path}: a class that only a file names is not imported")
    module, _, name = path.rpartition(".")
    try:
        found = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            raise AbsentPartError(f"{kind} {path}: no module {error.name!r} is installed here") from None
        raise ValueError(f"{kind} {path}: {type(error).__name__}: {error}") from None
    except AttributeError:
        raise AbsentPartError(f"{kind} {path}: {module} has no class {name!r}") from None
    except Exception as error:
        raise ValueError(f"{kind} {path}: {type(error).__name__}: {error}") from error
    missing = [method for method in methods if not callable(getattr(found, method, None))]
    if not isinstance(found, type) or missing:
        what = f"must be a class with the method {missing[0]}" if missing else "must be a class"
        raise ValueError(f"{kind} {path}: {what}")
    return found


def package_of(member: Any) -> str:
    """Return the name and the version of the package that a class or function is from.

    Example::

        >>> import numpy
        >>> package_of(numpy.ndarray).split()[0]
        'numpy'
    """
    module = str(getattr(member, "__module__", None) or type(member).__module__)
    top = module.partition(".")[0]
    for name in _distributions(top):
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:  # removed since
            continue
    return module


def is_own(package: str) -> bool:
    """Return whether the name and version of a package are those of the library itself."""
    return package.partition(" ")[0] == "lightning-core-learning"


@cache
def _distributions(top: str) -> list[str]:
    """Return the names of the installed distributions with a top-level module of this name.

    ``importlib.metadata.packages_distributions`` parses the lists of files of all: it takes ten times as long.
    """
    return [one.name for one in distributions() if _has_top_level(one, top)]


def _has_top_level(one: Distribution, top: str) -> bool:
    if (declared := one.read_text("top_level.txt")) is not None:
        return top in declared.split()
    files = one.read_text("RECORD") or ""
    return re.search(rf"^{re.escape(top)}(/|\.py,|\.[^/,]*(so|pyd),)", files, re.MULTILINE) is not None


def _any_member(part: Part) -> Any:
    """Return something that the part brings, which tells where it is from."""
    for one in fields(part):
        value = getattr(part, one.name)
        if value:
            return next(iter(value.values() if isinstance(value, Mapping) else value)) if not callable(value) else value
    return part


def _add(name: str, part: Any, package: str) -> None:
    if name == "lightning_core" or not name or "." in name:
        raise ValueError(f"name of a part must be without dots, and not lightning_core, got {name!r}")
    if not isinstance(part, Part):
        raise ValueError(f"part {name}: must be a lightning_core.Part, got {type(part).__name__}")
    for other in _registered.values():
        for family in (one.name for one in fields(Part) if isinstance(getattr(part, one.name), Mapping)):
            twice = getattr(part, family).keys() & getattr(other.part, family).keys()
            if other.name != name and family not in ("events", "answers", "members", "reasons") and twice:
                raise ValueError(f"part {name}: {other.name} brings {sorted(twice)[0]!r} of {family} too; rename one")
    _registered[name] = Registered(name, part, package)


@cache
def _load_installed() -> None:
    """Load the parts of all installed packages; of two that have the same name, the first one."""
    loaded: dict[str, str] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda one: one.name):
        package = f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.module
        try:
            if point.name in loaded:
                raise ValueError(f"{loaded[point.name]} has a part of this name too; rename one")
            _add(point.name, point.load(), package)
            loaded[point.name] = package
        except Exception as error:  # code from outside may raise anything
            _broken[point.name] = f"{package}: {type(error).__name__}: {error}"
            log.warning("part %s of %s cannot be loaded: %s: %s", point.name, package, type(error).__name__, error)
