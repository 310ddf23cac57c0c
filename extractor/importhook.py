"""Something has to happen right after a module is imported, whoever imports it, and before anybody uses it.

Importing it beforehand would do, but costs every process of that Python half a second and the program its own
order of imports. A finder in front of Python's own finds nothing itself; it only adds the afterthought.
"""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def after_import(name: str, then: Callable[[ModuleType], None]) -> None:
    sys.meta_path.insert(0, _Afterthought(name, then))


class _Afterthought(MetaPathFinder):
    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._then = then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            self._extend(spec.loader)
        return spec

    def _extend(self, loader: Loader) -> None:
        execute = loader.exec_module

        def execute_and_then(module: ModuleType) -> None:
            execute(module)
            if module.__name__ == self._name:  # all modules of a folder in a zip archive share their loader
                self._then(module)

        loader.exec_module = execute_and_then  # type: ignore[method-assign]
