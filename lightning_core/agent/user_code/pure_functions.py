"""Tells functions that can be called once more without a trace: they compute a number from numbers, and no more.

A function is read, not called. One that is not understood counts as one that remembers its calls.
"""

from __future__ import annotations

import builtins
import dis
import functools
import inspect
import math
from collections.abc import Iterable
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

# Instructions that compute, branch, and load values. None of them stores anything that outlives the call.
_COMPUTING = frozenset(
    """
    BINARY_OP BINARY_SLICE BINARY_SUBSCR BUILD_LIST BUILD_SLICE BUILD_TUPLE CACHE CALL CALL_KW COMPARE_OP CONTAINS_OP
    COPY COPY_FREE_VARS END_FOR EXTENDED_ARG FOR_ITER GET_ITER IS_OP JUMP_BACKWARD JUMP_FORWARD KW_NAMES LOAD_ATTR
    LOAD_CONST LOAD_DEREF LOAD_FAST LOAD_FAST_BORROW LOAD_FAST_BORROW_LOAD_FAST_BORROW LOAD_FAST_CHECK
    LOAD_FAST_LOAD_FAST LOAD_GLOBAL LOAD_METHOD LOAD_SMALL_INT NOP NOT_TAKEN POP_ITER POP_TOP PRECALL PUSH_NULL RESUME
    RETURN_CONST RETURN_VALUE STORE_FAST STORE_FAST_LOAD_FAST STORE_FAST_STORE_FAST SWAP TO_BOOL UNARY_INVERT
    UNARY_NEGATIVE UNARY_NOT UNARY_POSITIVE UNPACK_SEQUENCE
    """.split()  # noqa: SIM905
)
_BUILTINS = (abs, bool, divmod, float, int, len, max, min, pow, range, round, sum)
_MODULES = (math, np)
# Attributes that may be asked for: of modules they are functions of numbers, and lists and texts have none of them.
_ATTRIBUTES = frozenset(name for name in vars(math) if not name.startswith("_")) | {"maximum", "minimum", "clip"}
_NUMBERS = (int, float, bool, complex, str, type(None))
# Values within a container that are looked at, and functions that call one another.
MAX_VALUES, MAX_DEPTH = 10_000, 10


def is_pure(function: Any, depth: int = 0) -> bool:
    """Return whether a function depends on its argument and on plain values alone, and changes nothing.

    Args:
        function: Anything that can be called.
        depth: Functions that are being read, each called by the one before.

    Example::

        >>> warm_up = 100
        >>> is_pure(lambda step: min(1.0, (step + 1) / warm_up) * 0.5 * (1.0 + math.cos(math.pi * step / 1000)))
        True
        >>> is_pure(functools.partial(lambda step, rate: rate**step, rate=0.9))
        True
        >>> calls = []
        >>> is_pure(lambda step: 1.0 if calls.append(step) else 0.5)
        False
    """
    if depth > MAX_DEPTH:
        return False
    if type(function) is functools.partial:
        bound = [*function.args, *function.keywords.values()]
        return all(map(_is_plain, bound)) and is_pure(function.func, depth + 1)
    if type(function) is not FunctionType or inspect.isgeneratorfunction(function):
        return False
    instructions = list(dis.get_instructions(function))
    try:
        loaded = [
            *_captured(function),
            *(_global(function, one) for one in instructions if one.opname == "LOAD_GLOBAL"),
        ]
    except (ValueError, KeyError):  # a variable that has no value yet
        return False
    in_place = not any(type(value) is list for value in loaded)
    return all(_may_be_loaded(value, depth) for value in loaded) and all(
        _computes(instruction, in_place=in_place) for instruction in instructions
    )


def _captured(function: FunctionType) -> list[Any]:
    """Return the values of outer variables and of defaults."""
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return [*cells, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


def _global(function: FunctionType, instruction: dis.Instruction) -> Any:
    name = str(instruction.argval)
    return function.__globals__[name] if name in function.__globals__ else vars(builtins)[name]


def _computes(instruction: dis.Instruction, *, in_place: bool) -> bool:
    name = instruction.opname
    if name in ("LOAD_ATTR", "LOAD_METHOD"):
        return str(instruction.argval) in _ATTRIBUTES
    if name == "BINARY_OP" and instruction.argrepr.endswith("="):
        return in_place
    return name in _COMPUTING or name.startswith(("POP_JUMP_", "JUMP_IF_"))


def _may_be_loaded(value: Any, depth: int) -> bool:
    if isinstance(value, ModuleType):
        return value in _MODULES
    return _is_plain(value) or any(value is known for known in _BUILTINS) or is_pure(value, depth + 1)


def _is_plain(value: Any) -> bool:
    """Return whether a value is a number or a text, or a container of those."""
    waiting, seen = [value], 0
    while waiting:
        one = waiting.pop()
        seen += 1
        if seen > MAX_VALUES:
            return False
        if type(one) in (list, tuple):
            waiting += one
        elif type(one) is dict:
            waiting += _both(one)
        elif type(one) not in _NUMBERS and not (isinstance(one, np.generic) and type(one).__module__ == "numpy"):
            return False
    return True


def _both(mapping: dict[Any, Any]) -> Iterable[Any]:
    yield from mapping.keys()
    yield from mapping.values()
