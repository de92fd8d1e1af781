"""The mutants of a module: each is the module with one change, as mutmut makes them."""

from __future__ import annotations

import ast
import difflib
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Expressions that start on such a line are left alone: nothing depends on the words of an error.
LEFT_ALONE = r"raise \w+"
# A strict zip guards against slips in the code itself: no test of right code can tell it from another.
STRICT = re.compile(r",\s*(strict=\w+)?\s*(?=\))")


@dataclass(frozen=True)
class Mutant:
    """One change: its name at mutmut, the first changed line of the module, and what stands there before and after."""

    name: str
    line: int
    old: str
    new: str


def mutants_of(module: str) -> list[Mutant]:
    """Return all mutants of a module, given by its path from the root of the repository."""
    from mutmut.mutation.file_mutation import mutate_file_contents
    from mutmut.utils.format_utils import get_mutant_name

    source = (ROOT / module).read_text()
    mutated = mutate_file_contents(module, source)
    lines = mutated.code.splitlines()
    spans = mutated.line_span_by_function_name
    begins = dict(_functions(ast.parse(source)))
    found = []
    for name in mutated.mutant_names:
        function = name.partition("__mutmut_")[0]
        plain = function.rpartition("ǁ")[2] if "ǁ" in function else function.removeprefix("x_")
        before, after = (
            [line.replace(each, plain) for line in lines[spans[each].start - 1 : spans[each].end]]
            for each in (f"{function}__mutmut_orig", name)
        )
        head = next(i for i, line in enumerate(before) if re.match(r"\s*(async )?def ", line))
        at, old, new = _change(before, after)
        if STRICT.sub("", old) != STRICT.sub("", new):
            found.append(Mutant(get_mutant_name(Path(module), name), begins[function] + at - head, old, new))
    return found


def sample(mutants: Iterable[Mutant], most: int, seed: str = "") -> list[Mutant]:
    """Return at most ``most`` mutants, all if it is 0: by the hash of seed and name, so the same ones each time."""
    by_hash = sorted(mutants, key=lambda mutant: hashlib.sha256((seed + mutant.name).encode()).digest())
    return by_hash[: most or None]


def _functions(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Return the names that mutmut gives to functions and methods, with their lines."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield f"x_{node.name}", node.lineno
        elif isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, ast.FunctionDef):
                    yield f"xǁ{node.name}ǁ{method.name}", method.lineno


def _change(before: list[str], after: list[str]) -> tuple[int, str, str]:
    """Return where two functions differ first, and the lines that differ."""
    for kind, i, end, j, stop in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind != "equal":
            return i, _text(before[i:end]), _text(after[j:stop])
    return 0, "", ""


def _text(lines: Iterable[str]) -> str:
    return " ".join(line.strip() for line in lines)
