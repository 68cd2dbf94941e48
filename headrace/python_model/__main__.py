"""`python .../python_model MAIN SIDE`: the process of one instance, with the descriptors of its two sockets.

Started by its path, so that the interpreter need not have the server's packages.
"""

from __future__ import annotations

import importlib.util
import sys


def main() -> None:
    """Imports this folder as a package, which is not on the path of modules: the model's own have their names there."""
    here = sys.path.pop(0)
    spec = importlib.util.spec_from_file_location(
        "headrace_python_model", f"{here}/__init__.py", submodule_search_locations=[here]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = package
    spec.loader.exec_module(package)
    child = importlib.import_module("headrace_python_model.child")
    child.run(int(sys.argv[1]), int(sys.argv[2]))


if __name__ == "__main__":
    main()
