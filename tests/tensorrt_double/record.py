"""Records the part of the real libraries that the double doubles: run by a Python that has them.

    python tests/tensorrt_double/record.py MODULE > FILE

MODULE is `tensorrt`, `tensorrt_rtx` or `tensorrt_lean_bindings`; what is printed is JSON: of each class its properties,
and its methods with the names of their arguments, one list for each overload; the members of enumerations.
"""

from __future__ import annotations

import importlib
import json
import re
import sys

CLASSES = ("Runtime", "ICudaEngine", "IExecutionContext", "ILogger", "IOutputAllocator")
ENUMS = ("DataType", "TensorIOMode", "TensorLocation", "ExecutionContextAllocationStrategy")


def overloads(text: str, name: str) -> list[list[str]]:
    found = re.findall(rf"^(?:\d+\. )?{name}\((self.*)\)(?: ->.*)?$", text, re.MULTILINE)
    return [re.findall(r"(?:^|, )(\w+): ", arguments)[1:] for arguments in found]


def record(library) -> dict:
    classes = {}
    for name in CLASSES:
        members = {}
        for member, value in vars(getattr(library, name)).items():
            if member.startswith("_"):
                continue
            is_property = isinstance(value, property)
            members[member] = "property" if is_property else overloads(value.__doc__ or "", member)
        classes[name] = members
    enums = {name: sorted(getattr(library, name).__members__) for name in ENUMS}
    severities = sorted(library.ILogger.Severity.__members__)
    allocator = re.findall(r"def (\w+)\(self, ([^)]*)\)", library.IOutputAllocator.__doc__)
    return {
        "version": library.__version__,
        "classes": classes,
        "enums": enums | {"ILogger.Severity": severities},
        "allocator": {name: arguments.split(", ") for name, arguments in allocator},
    }


if __name__ == "__main__":
    print(json.dumps(record(importlib.import_module(sys.argv[1])), indent=1, sort_keys=True))
