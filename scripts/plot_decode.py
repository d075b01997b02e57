#!/usr/bin/env python3
"""Draws what `eventide bench decode --json` measured: latency against batch and against context, with
the peers' figures beside it. Reads files with one JSON object each (or scripts/gpu-test's output).

  scripts/plot_decode.py [--output FOLDER] [--text] FILE.json...

Without matplotlib, or with --text, prints the same numbers as tables."""
import argparse
import os
import sys

from plot_common import preset, read_object

# ms per decode step on one NVIDIA H200, measured by this project on 2026-11-29 with the same plain read
# ceiling (4,550 GB/s), bf16. PyTorch 2.11, Triton 3.6: CUDA graph of a hand-written step, best of
# cuBLAS and a tuned skinny GEMM, best of several attention kernels. The others in their own demos'
# configurations. {peer: {model: {(batch, context): ms}}}
BATCHES_512 = (1, 4, 8, 16, 32, 64)
BATCHES_4096 = (1, 8, 16, 32, 64)


def grid(batches, context, values):
    return {(batch, context): ms for batch, ms in zip(batches, values)}


PEERS = {
    "PyTorch CUDA graph": {
        "llama-3.2-1b": {**grid(BATCHES_512, 512, (1.031, 1.074, 1.102, 1.128, 1.233, 1.412)),
                         **grid(BATCHES_4096, 4096, (1.080, 1.327, 1.578, 2.077, 3.092))},
        "qwen3-0.6b": {**grid(BATCHES_512, 512, (1.059, 1.132, 1.217, 1.269, 1.593, 2.228)),
                       **grid(BATCHES_4096, 4096, (1.207, 1.956, 2.736, 4.524, 8.393))},
        "llama-3.1-8b": {**grid(BATCHES_512, 512, (4.482, 4.504, 4.605, 4.667, 5.230, 6.036)),
                         **grid(BATCHES_4096, 4096, (4.613, 5.453, 6.330, 8.577, 12.56))},
        "qwen3-8b": {**grid(BATCHES_512, 512, (4.490, 4.639, 4.760, 4.818, 5.448, 6.259)),
                     **grid(BATCHES_4096, 4096, (4.671, 5.701, 6.699, 9.210, 13.57))},
    },
    "Hazy Research Megakernels": {
        "llama-3.2-1b": {(1, 128): 0.765, (1, 512): 0.934, (1, 2048): 1.609, (1, 4096): 2.510},
    },
    "Mirage MPK (split KV)": {
        "qwen3-8b": {(1, 128): 5.18, (1, 512): 5.11, (1, 4096): 5.23},
        "qwen3-0.6b": {(1, 128): 1.48, (1, 512): 1.54, (1, 4096): 1.69},
    },
    "Mirage MPK": {
        "qwen3-8b": {(8, 128): 5.19, (16, 128): 5.51, (8, 512): 5.36, (16, 512): 5.85},
        "qwen3-0.6b": {(16, 128): 1.58, (16, 512): 2.00},
    },
    "qwen_megakernel": {
        "qwen3-0.6b": {(1, 128): 1.00, (1, 512): 1.35, (1, 4096): 5.46},
    },
}
SOURCE = "peers: this project's runs on one H200, 2026-11-29, their demo configurations"


def read_rows(paths):
    rows = []
    for path in paths:
        data = read_object(path)
        for part in data.get("bench", [data]):
            if not isinstance(part.get("rows"), list):
                raise ValueError(f"{path}: no rows; is it the output of bench decode --json?")
            rows += part["rows"]
    if not rows:
        raise ValueError("no rows at all")
    for row in rows:
        for key in ("model", "batch", "context", "ms", "floor_ms", "gpu"):
            if key not in row:
                raise ValueError(f"a row lacks '{key}'")
    return [row for row in rows if row.get("tokens_per_row", 1) == 1]


def series(rows, axis, fixed):
    """{fixed value: [(x, row)]} for one model, sorted."""
    result = {}
    for row in rows:
        result.setdefault(row[fixed], []).append((row[axis], row))
    return {key: sorted(points, key=lambda p: p[0]) for key, points in sorted(result.items())}


def peers_at(model, axis, fixed_value):
    """(peer, [(x, ms)]) with the other axis held at fixed_value."""
    for peer, models in PEERS.items():
        points = [((batch if axis == "batch" else context), ms)
                  for (batch, context), ms in models.get(model, {}).items()
                  if (context if axis == "batch" else batch) == fixed_value]
        if points:
            yield peer, sorted(points)


def table(model, rows):
    lines = [f"{model} on {rows[0]['gpu']} (ms per step)",
             f"{'batch':>6} {'context':>8} {'p5':>9} {'median':>9} {'p95':>9} {'floor':>9} {'share':>6}"
             "  peers"]
    for row in sorted(rows, key=lambda r: (r["context"], r["batch"])):
        peers = [f"{peer} {models[model][(row['batch'], row['context'])]:.3f}"
                 for peer, models in PEERS.items()
                 if (row["batch"], row["context"]) in models.get(model, {})]
        ms = row["ms"]
        lines.append(f"{row['batch']:>6} {row['context']:>8} {ms['p5']:>9.3f} {ms['p50']:>9.3f} "
                     f"{ms['p95']:>9.3f} {row['floor_ms']:>9.3f} "
                     f"{row['floor_ms'] / ms['p50'] if ms['p50'] else 0:>6.2f}  {', '.join(peers)}")
    return "\n".join(lines)


def draw(plt, model, rows, axis, folder):
    fixed = "context" if axis == "batch" else "batch"
    paths = []
    for value, points in series(rows, axis, fixed).items():
        if len(points) < 2:
            continue
        figure, ax = plt.subplots(figsize=(7, 4.5))
        xs = [x for x, _ in points]
        ax.fill_between(xs, [r["ms"]["p5"] for _, r in points], [r["ms"]["p95"] for _, r in points],
                        alpha=0.25)
        ax.plot(xs, [r["ms"]["p50"] for _, r in points], marker="o", label="Eventide, median")
        ax.plot(xs, [r["floor_ms"] for _, r in points], linestyle=":", color="black",
                label="floor (bytes at the read ceiling)")
        for peer, peer_points in peers_at(model, axis, value):
            ax.plot([x for x, _ in peer_points], [ms for _, ms in peer_points], marker="x",
                    linestyle="--", linewidth=1, label=peer)
        ax.set_xscale("log", base=2)
        ax.set_ylim(bottom=0)
        ax.set_xlabel("rows of a step" if axis == "batch" else "tokens in each row's KV cache")
        ax.set_ylabel("ms per decode step")
        ax.set_title(f"{model}, {fixed} {value}, {points[0][1]['gpu']}", fontsize=10)
        ax.legend(fontsize=8)
        figure.text(0.01, 0.005, SOURCE, fontsize=6)
        figure.tight_layout()
        paths.append(os.path.join(folder, f"decode-{model}-{fixed}-{value}.png"))
        figure.savefig(paths[-1], dpi=150)
        plt.close(figure)
    return paths


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--output", default=".", help="folder for the pictures")
    parser.add_argument("--text", action="store_true", help="tables only")
    arguments = parser.parse_args()
    try:
        rows = read_rows(arguments.files)
    except (OSError, ValueError) as error:
        print(f"plot_decode: {error}", file=sys.stderr)
        return 1
    models = {}
    for row in rows:
        models.setdefault(preset(row["model"]), []).append(row)
    plt = None
    if not arguments.text:
        try:
            import matplotlib
            matplotlib.use("Agg")
            import matplotlib.pyplot as plt
        except ImportError:
            print("plot_decode: no matplotlib here; tables instead", file=sys.stderr)
    for model, own in models.items():
        if plt is None:
            print(table(model, own))
            continue
        os.makedirs(arguments.output, exist_ok=True)
        for axis in ("batch", "context"):
            for path in draw(plt, model, own, axis, arguments.output):
                print(path)
    if plt is None:
        print(SOURCE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
