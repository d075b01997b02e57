#!/usr/bin/env python3
"""Loads folders written by `eventide export` with transformers and fails on any missing, unexpected or
misshaped tensor, on a rope or norm setting that differs from what config.json says, or (with --greedy
FILE) on greedy ids unlike those in a JSON list that starts with the prompt's only token.

Needs: pip install torch transformers. Usage: check_export.py [--greedy IDS.json] FOLDER...
"""
import argparse
import json
import sys

import torch
from transformers import AutoModelForCausalLM


def greedy(model, expected):
    ids = [expected[0]]
    for _ in range(len(expected) - 1):
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, -1].double()
        ids.append(int(logits.argmax()))
    agree = next((i for i, (a, b) in enumerate(zip(ids, expected)) if a != b), len(expected))
    return agree, len(expected)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--greedy")
    parser.add_argument("folders", nargs="+")
    args = parser.parse_args()
    failed = False
    for folder in args.folders:
        model, info = AutoModelForCausalLM.from_pretrained(
            folder, output_loading_info=True, dtype="auto")
        said = json.load(open(folder + "/config.json"))
        rope = getattr(model.config, "rope_parameters", None) or {"rope_theta": model.config.rope_theta}
        problems = {k: v for k, v in info.items() if v and k != "error_msgs"}
        if info.get("error_msgs"):
            problems["error_msgs"] = info["error_msgs"]
        if rope["rope_theta"] != said["rope_theta"]:
            problems["rope_theta"] = rope["rope_theta"]
        if (said["rope_scaling"] or {}).get("factor") != rope.get("factor"):
            problems["rope factor"] = rope.get("factor")
        if model.config.rms_norm_eps != said["rms_norm_eps"]:
            problems["rms_norm_eps"] = model.config.rms_norm_eps
        count = sum(p.numel() for p in model.parameters())
        print(folder, type(model).__name__, model.dtype, count, "parameters", problems or "ok")
        failed |= bool(problems)
        if args.greedy:
            agree, total = greedy(model.float(), json.load(open(args.greedy)))
            print(f"  greedy: first {agree} of {total} ids agree")
            failed |= agree != total
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
