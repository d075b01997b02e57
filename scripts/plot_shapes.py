#!/usr/bin/env python3
"""Draws what `eventide bench shapes --json` measured: step time against rows and against tokens of a chunk,
beside what padding to a list of captured sizes would cost. Reads files with one JSON object each (or
scripts/gpu-shapes' output).

  scripts/plot_shapes.py [--output FOLDER] [--text] FILE.json...

Without matplotlib, or with --text, prints the same as tables."""
import argparse
import os
import sys

from plot_common import preset, read_object

# Sizes for which vLLM captures graphs by default, up to 256; a smaller step is padded to the next of them, a
# larger one runs as it is.
CAPTURED = (1, 2, 4) + tuple(range(8, 257, 8))
SOURCE = ("padding: our own time of the next captured size (1, 2, 4, 8, 16, 24 ... 256), whose added rows have "
          "contexts too; beyond 256 there is none")
AXES = {"batch": "rows of a step", "chunk": "prompt tokens of a step's one row"}


def read_sweeps(paths):
    """One measured object of bench shapes for each file."""
    sweeps = []
    for path in paths:
        data = read_object(path)
        data = data.get("shapes") or data.get("mixed") if "parts" in data or "shapes" in data else data
        if not isinstance(data, dict) or not all(key in data for key in ("model", "gpu", *AXES)):
            raise ValueError(f"{path}: no sweep; is it the output of bench shapes --json?")
        if data.get("mixed") or any(data[axis]["points"] for axis in AXES):
            sweeps.append(data)
    if not sweeps:
        raise ValueError("no points at all")
    return sweeps


def curve(sweep, axis):
    """[(size, median ms)], sorted."""
    return sorted((point[axis], point["ms"]["p50"]) for point in sweep[axis]["points"])


def padded(points):
    """[(size, ms)] when each size took as long as the captured one that it is padded to; sizes whose
    captured one was not measured are left out."""
    times = dict(points)
    result = []
    for size, ms in points:
        captured = next((c for c in CAPTURED if c >= size), None)
        if captured is None:
            result.append((size, ms))
        elif captured in times:
            result.append((size, times[captured]))
    return result


def summary(sweep, axis):
    part, points = sweep[axis], curve(sweep, axis)
    times = dict(points)
    lines = [f"{preset(sweep['model'])} on {sweep['gpu']}, {axis} {points[0][0]} to {points[-1][0]}, "
             f"{len(points)} points, {sweep['compilations_after_ready']} compilations after the model was ready"]
    limit = 100 * part["limit"]
    worst = "" if part["worst_at"] is None else \
        f", the worst {100 * part['worst_deviation']:.1f} % at {part['worst_at']}"
    lines.append(f"  beyond {limit:g} % of the line through neighbours: {len(part['beyond'])}{worst}")
    for step in part["tile_steps"]:
        lines.append(f"    behind {step['after']} (tiles of {step['tile']}): {step['ms'][0]:.3f} to "
                     f"{step['ms'][1]:.3f} ms, {100 * step['rise']:+.1f} %")
    lines.append(f"    at no tile's end: {', '.join(map(str, part['cliffs'])) or 'none'}")
    extra = [ms / times[size] - 1 for size, ms in padded(points) if size <= CAPTURED[-1]]
    if extra:
        lines.append(f"  padding to captured sizes: {100 * sum(extra) / len(extra):+.1f} % on average, "
                     f"{100 * max(extra):+.1f} % at most")
    return "\n".join(lines)


def table(sweep, axis):
    """Sizes around captured ones tell the story; all of them are in the file."""
    points = curve(sweep, axis)
    with_padding = dict(padded(points))
    known = set(dict(points))
    shown = sorted(n for c in CAPTURED + (512,) for n in (c, c + 1) if n in known and (c & (c - 1)) == 0)
    lines = [f"{axis:>8} {'ms':>9} {'padded':>9}"]
    for size, ms in points:
        if size in shown or size == points[-1][0]:
            pad = f"{with_padding[size]:9.3f}" if size in with_padding else f"{'-':>9}"
            lines.append(f"{size:>8} {ms:>9.3f} {pad}")
    return "\n".join(lines)


def mixed_table(sweep):
    lines = [f"{'batch':>8} {'context':>8} {'chunk':>6} {'chunk ms':>9} {'decode ms':>9} {'both ms':>9} "
             f"{'both/chunk':>10}"]
    for row in sweep["mixed"]:
        lines.append(f"{row['batch']:>8} {row['context']:>8} {row['chunk']:>6} {row['chunk_ms']:>9.3f} "
                     f"{row['decode_ms']:>9.3f} {row['both_ms']:>9.3f} {row['over_chunk']:>10.3f}")
    return "\n".join(lines)


def draw(plt, sweep, axis, folder):
    points = curve(sweep, axis)
    figure, ax = plt.subplots(figsize=(7, 4.5))
    xs, ys = [n for n, _ in points], [ms for _, ms in points]
    spread = {point[axis]: point["ms"] for point in sweep[axis]["points"]}
    ax.fill_between(xs, [spread[x]["p5"] for x in xs], [spread[x]["p95"] for x in xs], alpha=0.25)
    ax.plot(xs, ys, linewidth=1.2, label="Eventide, median")
    padding = padded(points)
    ax.plot([n for n, _ in padding], [ms for _, ms in padding], linewidth=1, linestyle="--",
            drawstyle="steps-pre", label="padded to captured sizes")
    times = dict(points)
    cliffs = [n for n in sweep[axis]["cliffs"] if n in times]
    if cliffs:
        ax.plot(cliffs, [times[n] for n in cliffs], linestyle="", marker="x", color="red",
                label=f"{100 * sweep[axis]['limit']:g} % off the line, at no tile's end")
    for step in sweep[axis]["tile_steps"]:
        ax.axvline(step["after"] + 0.5, linewidth=0.5, linestyle=":", color="grey")
    ax.set_ylim(0, 1.2 * max(ys + [ms for _, ms in padding]))  # a single late step would flatten the rest
    ax.set_xlabel(AXES[axis])
    ax.set_ylabel("ms per step")
    context = sweep["context"] if axis == "batch" else sweep["chunk_context"]
    ax.set_title(f"{preset(sweep['model'])}, context {context}, {sweep['gpu']}", fontsize=10)
    ax.legend(fontsize=8)
    figure.text(0.01, 0.005, SOURCE, fontsize=5)
    figure.tight_layout()
    path = os.path.join(folder, f"shapes-{preset(sweep['model'])}-{axis}.png")
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--output", default=".", help="folder for the pictures")
    parser.add_argument("--text", action="store_true", help="tables only")
    arguments = parser.parse_args()
    try:
        sweeps = read_sweeps(arguments.files)
    except (OSError, ValueError) as error:
        print(f"plot_shapes: {error}", file=sys.stderr)
        return 1
    plt = None
    if not arguments.text:
        try:
            import matplotlib
            matplotlib.use("Agg")
            import matplotlib.pyplot as plt
        except ImportError:
            print("plot_shapes: no matplotlib here; tables instead", file=sys.stderr)
    for sweep in sweeps:
        for axis in AXES:
            if not sweep[axis]["points"]:
                continue
            print(summary(sweep, axis))
            if plt is None:
                print(table(sweep, axis))
            else:
                os.makedirs(arguments.output, exist_ok=True)
                print(draw(plt, sweep, axis, arguments.output))
        if sweep.get("mixed"):
            print(mixed_table(sweep))
    if plt is None:
        print(SOURCE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
