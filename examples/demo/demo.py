"""A real model behind Headrace, asked by an ordinary Triton client: start here.

    python examples/demo/demo.py [--seconds 4] [--json] [--url HOST:PORT]

The story is `main`; every step of it has a file of its own beside this one.
"""

import argparse
import json
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

try:
    from calls import inline_call, shared_calls
    from errors import DemoError
    from load import Figures, run_load
    from orientation import (
        MODEL,
        MODEL_WHEEL,
        PICTURE_WHEEL,
        TURNS,
        WORDS,
        Tensor,
        lay_out_repository,
        read_answer,
        to_tensor,
        turned_pages,
    )
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Table
    from serving import Server
    from tritonclient.grpc import InferenceServerClient
    from tritonclient.utils import InferenceServerException
    from tritonclient.utils.shared_memory import SharedMemoryException
except ModuleNotFoundError as missing:
    sys.exit(f"demo: the Python package {missing.name} is missing; `make setup` installs it")
