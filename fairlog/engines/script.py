"""What a script defines in its `__main__`, in the workers that make its calls.

Its functions arrive by value, each time they are called. Here they share one `__main__`, as in a process forked off the
script: what one of them leaves in a global, such as an initializer, the others find.
"""

from __future__ import annotations

import io
import pickle
import sys
from hashlib import blake2b
from types import FunctionType, ModuleType
from typing import Any

_MAKE, _FILL = "_make_function", "_function_setstate"
"""What makes a function that cloudpickle has taken by value, and what fills it."""
_SEARCHED = 1 << 16
"""A pickle of more bytes is not searched for what cloudpickle took by value: to expect it takes less time."""
_received: dict[str, bytes] = {}
"""A global of the script -> the digest of the value as it arrived last."""


def begin() -> None:
    """Take the place of what this process was started with: the calls' `__main__` is empty at first."""
    sys.modules["__main__"] = ModuleType("__main__")
    _received.clear()


def loads(body: bytes | bytearray) -> Any:  # noqa: ANN401 (a pickle may hold anything)
    """What a pickle of the pool holds. Raises: what unpickling raises."""
    if len(body) <= _SEARCHED and b"cloudpickle" not in body:
        return pickle.loads(body)  # noqa: S301 (of this user's own process, by the app's key)
    return _Unpickler(io.BytesIO(body)).load()


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 (as its base)
        found = super().find_class(module, name)
        if module == "cloudpickle.cloudpickle":
            return {_MAKE: _make, _FILL: _fill}.get(name, found)
        return found


def _make(code: Any, globals: dict[str, Any], *rest: Any) -> Any:  # noqa: A002, ANN401 (as cloudpickle's)
    """The function, among the globals of this `__main__` if it is of the script's."""
    from cloudpickle import cloudpickle  # noqa: PLC0415 (it is there: the pickle names it)

    if globals.get("__name__") == "__main__":
        ours = vars(sys.modules["__main__"])
        for name, value in globals.items():
            ours.setdefault(name, value)
        globals = ours  # noqa: A001 (as cloudpickle's)
    return cloudpickle._make_function(code, globals, *rest)  # noqa: SLF001 (the pickle names it)


def _fill(function: FunctionType, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Fill the function. Of the globals that come with it, those are set that the script has changed since."""
    from cloudpickle import cloudpickle  # noqa: PLC0415 (likewise)

    ours = vars(sys.modules["__main__"])
    if function.__globals__ is ours:
        told = state[1]["__globals__"]
        state[1]["__globals__"] = {name: value for name, value in told.items() if _is_news(name, value)}
    cloudpickle._function_setstate(function, state)  # noqa: SLF001 (likewise)
    if function.__globals__ is ours and function.__qualname__.isidentifier():
        ours[function.__qualname__] = function


def _is_news(name: str, value: object) -> bool:
    """Whether the script's value is another one than the last that came; a definition is taken anew in any case."""
    if isinstance(value, FunctionType | ModuleType | type):
        return True
    try:
        digest = blake2b(_pickled(value)).digest()
    except Exception:  # noqa: BLE001 (a value of the user's may fail in any way: the first one is kept)
        digest = b""
    before = _received.get(name)
    _received[name] = digest
    return digest != before


def _pickled(value: object) -> bytes:
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        from cloudpickle import dumps  # noqa: PLC0415 (likewise)

        return bytes(dumps(value))
