#!/usr/bin/env python3
"""Writes tests/golden/quant_blocks.json: random blocks of every GGUF format Eventide reads, and the
bits of the floats that the Python package `gguf` makes of them. Needs: pip install gguf numpy.
"""
import json
import pathlib

import gguf
import numpy as np

# Offsets of the float16 scales in a block, whose exponents are set so that values are ordinary numbers.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}


def main():
    rng = np.random.default_rng(20)
    result = {}
    for name, halves in HALVES.items():
        kind = gguf.GGMLQuantizationType[name]
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = rng.integers(0, 256, size=(64 // elements or 1, size), dtype=np.uint8)
        for offset in halves:
            blocks[:, offset + 1] = (blocks[:, offset + 1] & 0x83) | 0x20
        floats = gguf.quants.dequantize(blocks, kind).astype(np.float32).ravel()
        result[name] = {"type": int(kind), "bytes": blocks.tobytes().hex(),
                        "float_bits": floats.view(np.uint32).astype(">u4").tobytes().hex()}
    path = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/quant_blocks.json"
    path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
