"""The demo, from beginning to end."""

from __future__ import annotations

import argparse
import json

import numpy as np
import tritonclient.grpc as grpcclient
from PIL import Image
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from examples.demo.load import Figures, measure
from examples.demo.model import ANSWERS, CACHE, NAME, describe, lay_out_repository, load_picture, preprocess
from examples.demo.region import Region
from examples.demo.server import serving


def main() -> None:
    """Lays out, starts, asks, measures, stops."""
    arguments = _arguments()
    console = Console(stderr=arguments.json)
    console.print("1. The model: a page orientation classifier, into a Triton model repository")
    repository = lay_out_repository()
    log = CACHE / "server.log"
    console.print(f"2. The server: headrace serve {repository} (its log: {log})", highlight=False)
    with serving(repository, log) as address:
        console.print("3. The picture: examples/demo/page.png, through a system shared-memory region")
        wrong = _show_answers(address, console)
        console.print("4. The load: eight clients, tensors in the message and in shared memory")
        figures = _measure(address, arguments.seconds, console)
    console.print(_table(figures))
    console.print("5. The server has stopped with status 0.")
    if wrong:
        raise SystemExit(f"the model was wrong about the page {', '.join(wrong)}")
    console.print("Next: README.md, 'Where next'; or point your own tritonclient at headrace serve YOUR_MODELS.")
    if arguments.json:
        print(json.dumps([row.as_dict() for row in figures]))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of each load")
    parser.add_argument("--json", action="store_true", help="print the figures for a program on stdout")
    return parser.parse_args()


def _show_answers(address: str, console: Console) -> list[str]:
    """Asks about the page in all four directions; returns those that the model got wrong."""
    picture, wrong = load_picture(), []
    turns = [None, Image.Transpose.ROTATE_270, Image.Transpose.ROTATE_180, Image.Transpose.ROTATE_90]
    with grpcclient.InferenceServerClient(address) as client:
        with Region(client, "demo_picture", preprocess(picture)) as region:
            for truth, turn in zip(ANSWERS, turns, strict=True):
                region.write(preprocess(picture if turn is None else picture.transpose(turn)))
                region.infer()
                answer = describe(region.read())
                console.print(f"   the page {truth:<22} → the model says: {answer}", highlight=False)
                if not answer.startswith(truth):
                    wrong.append(truth)
        assert client.is_model_ready(NAME)
    return wrong


def _measure(address: str, seconds: float, console: Console) -> list[Figures]:
    picture = np.ascontiguousarray(preprocess(load_picture()))
    columns = (TextColumn("   {task.description}"), BarColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        modes = ("in the message", "in shared memory")
        return [measure(address, mode, picture, seconds, progress) for mode in modes]


def _table(figures: list[Figures]) -> Table:
    table = Table("tensors", title=f"{NAME}, FP32 [3, 224, 224] each", title_justify="left")
    for heading in ("inferences/s", "p50 ms", "p99 ms", "average batch", "bytes through the socket"):
        table.add_column(heading, justify="right")
    for row in figures:
        cells = (f"{row.inferences_per_s:.0f}", f"{row.p50_ms:.1f}", f"{row.p99_ms:.1f}", f"{row.average_batch:.1f}")
        table.add_row(row.mode, *cells, f"{row.socket_bytes:,}")
    return table


if __name__ == "__main__":
    main()
