"""How functions are compiled for the CPU and kept on disk. Knows nothing of what they compute.

Only entries are called from Python; what they call is compiled into them. numba keeps an entry
until the file changes that it stands in, so an entry is built by a function whose argument names
the contents of all the other files: numba counts such a value into the name of what it keeps.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Final, Protocol, TypeVar, cast

from numba import njit

__all__ = ["compiled", "entry", "inlined"]

Function = TypeVar("Function", bound=Callable[..., object])


class _Decorator(Protocol):
    def __call__(self, function: Function, /) -> Function: ...


compiled: Final = cast("_Decorator", njit)
"""A function that compiled ones call."""

inlined: Final = cast("_Decorator", njit(forceinline=True))
"""The same, put into its callers, whose loops become vector instructions only without calls."""


def entry(build: Callable[[str], Function], *modules: ModuleType) -> Function:
    """What `build` returns, compiled at its first call and kept on disk.

    It runs without the interpreter's lock. Where no folder can be written to nothing is kept.

    Args:
        build: makes the function; the function mentions the argument of `build`.
        modules: those whose compiled functions it calls, directly or not.
    """
    sources = b"".join(Path(str(module.__file__)).read_bytes() for module in modules)
    function = build(hashlib.sha256(sources).hexdigest())
    try:
        return cast("Function", njit(nogil=True, cache=True)(function))
    except RuntimeError:
        return cast("Function", njit(nogil=True)(function))
