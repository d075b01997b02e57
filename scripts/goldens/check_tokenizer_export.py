#!/usr/bin/env python3
"""Exports a GGUF file's tokenizer with `eventide export` and fails unless Hugging Face's `tokenizers` loads
it and gives the ids that tests/golden/tokenizers/ holds: those of the tokenizer that the script
tokenizer_goldens.py builds from the same metadata.

    pip install tokenizers==0.21.4 gguf
    scripts/goldens/check_tokenizer_export.py --smollm2 SmolLM2-135M-Instruct.gguf
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

import tokenizer_goldens as goldens
from tokenizers import Tokenizer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--smollm2", type=pathlib.Path, required=True)
    parser.add_argument("--eventide", type=pathlib.Path, default=goldens.ROOT / "build/eventide")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [args.eventide, "export", "--model", args.smollm2, "--dtype", "bfloat16", "--output", folder], check=True
        )
        exported = Tokenizer.from_file(folder + "/tokenizer.json")
        try:
            from transformers import AutoTokenizer

            fast = AutoTokenizer.from_pretrained(folder)
            print("transformers:", type(fast).__name__, fast.bos_token, fast.eos_token, bool(fast.chat_template))
        except ImportError:
            print("transformers is not installed: only tokenizers is asked")
    original = goldens.smollm2(args.smollm2)
    corpus = [goldens.generated(i) for i in range(goldens.GENERATED)]
    wrong = 0
    for text in corpus:
        ids, expected = exported.encode(text).ids, original.encode(text).ids
        same = ids == expected and exported.decode(ids) == original.decode(ids)
        wrong += not same
    print(f"{len(corpus) - wrong} of {len(corpus)} strings: equal ids and equal text")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
