#!/usr/bin/env python3
"""Writes data/traces/sample_200.csv: 200 requests small enough for a 135M model on two cores.

Context tokens: log-normal, median 40, at most 200. Generated tokens: log-normal, median 12, at most
48. Arrivals: bursts of 1 to 12 requests within half a second, spread over about a minute. The same
file on every machine: only integer random numbers of a generator written here are used.

    scripts/make_sample_trace.py [OUTPUT]
"""
import math
import pathlib
import sys

REQUESTS = 200
SPAN_SECONDS = 60.0


class Random:
    """xorshift64*: 53-bit fractions, the same everywhere."""

    def __init__(self, seed):
        self.state = seed

    def uniform(self):
        x = self.state
        x ^= x >> 12
        x ^= (x << 25) & 0xFFFFFFFFFFFFFFFF
        x ^= x >> 27
        self.state = x
        return (((x * 0x2545F4914F6CDD1D) & 0xFFFFFFFFFFFFFFFF) >> 11) / 2.0**53

    def normal(self):
        # The sum of twelve uniforms: close enough, and free of library-dependent logarithms.
        return sum(self.uniform() for _ in range(12)) - 6.0


def length(random, median, spread, most):
    return max(1, min(most, round(median * math.exp(spread * random.normal()))))


def main():
    default = pathlib.Path(__file__).resolve().parent.parent / "data/traces/sample_200.csv"
    output = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    random = Random(20240601)
    bursts = []
    while sum(bursts) < REQUESTS:
        bursts.append(min(1 + int(12 * random.uniform() ** 2), REQUESTS - sum(bursts)))
    starts = sorted(random.uniform() * SPAN_SECONDS for _ in bursts)
    times = sorted(
        start - starts[0] + random.uniform() * 0.5
        for start, count in zip(starts, bursts)
        for _ in range(count)
    )
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for time in times:
        context = length(random, 40, 0.7, 200)
        generated = length(random, 12, 0.6, 48)
        lines.append(f"{time - times[0]:.3f},{context},{generated}")
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
