#!/usr/bin/env python3
"""Writes tests/golden/tokenizers/*.json: what Hugging Face `tokenizers` makes of a corpus that the
tests build again from the same recipe (atoms and seeds stored in corpus.json, and prompt files).

    pip install tokenizers==0.21.4 gguf
    scripts/goldens/tokenizer_goldens.py --data DIR --smollm2 SmolLM2-135M-Instruct.gguf

DIR holds tokenizers/ and prompts/, as for -DEVENTIDE_TEST_DATA. Version 0.23.3 of tokenizers
gives the same ids, but its decode spells added tokens as the normaliser changed them ("\u2581<s>" for "<s>"),
and then does not know them for special, so it is not the reference for text.
"""

import argparse
import json
import pathlib

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "tests/golden/tokenizers"
MASK = (1 << 64) - 1
GENERATED = 5200  # strings made from atoms
GROUP = 16  # strings that share one hash
FULL = 48  # strings whose ids are stored in full

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The four steps that GGUF files mean by pre-tokenizer "default".
GGUF_DEFAULT = [
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"\p{N}+",
    r"[0-9][0-9][0-9]",
]

ATOMS = (
    ["a", "b", "e", "Z", "the", "The", "hello", "world", "Hello World", "tokenizer", "don't", "I'll"]
    + ["we've", "IT'S", "'s", "'S", "'\u017f", "'T", "'re", "'LL", "'d", "''", "'", '"', "it's"]
    + [" ", " ", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\n ", "\t\t", " " * 7, " " * 31]
    + ["0", "1", "7", "42", "2024", "3.14159", "1,000,000", "1234567890", "0x1F", "\u0663\u0664", "\u00b2"]
    + ["\u2167", "\u00bd", "\u4e03", "\u0967\u0968", "\uff11\uff12", ".", ",", "!", "?", "...", "?!", "--"]
    + ["(", ")", "[", "]", "{", "}", "<", ">", "/", "\\", "@", "#", "$", "%", "^", "&", "*", "_", "__"]
    + ["+", "=", "~", "`", "|", ";", ":", "://", "http://a.b/c?d=e", "user@example.org", "C++", "a_b"]
    + ["def f(x):\n    return x", "int main() { return 0; }", "<b>bold</b>", '{"k": [1, 2]}', "\\n"]
    + ["caf\u00e9", "cafe\u0301", "na\u00efve", "\u00e9", "e\u0301", "\u00c5", "A\u030a", "\u212b", "n\u0303"]
    + ["\u0301", "a\u0300\u0316\u0301", "\ufb01", "\u1e9b\u0323", "\uac00", "\u1100\u1161", "\ud55c\uad6d\uc5b4"]
    + ["\u4f60\u597d", "\u4e16\u754c", "\u65e5\u672c\u8a9e", "\u3053\u3093\u306b\u3061\u306f", "\u30ab\u30bf\u30ab\u30ca", "\u3002", "\uff0c"]
    + ["\u0645\u0631\u062d\u0628\u0627", "\u0627\u0644\u0639\u0631\u0628\u064a\u0629", "\u05e9\u05dc\u05d5\u05dd", "\u0928\u092e\u0938\u094d\u0924\u0947", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35"]
    + ["\u041f\u0440\u0438\u0432\u0435\u0442", "\u0393\u03b5\u03b9\u03ac", "\u10d2\u10d0\u10db", "\u0531\u0561", "Stra\u00dfe", "\u0130stanbul", "\u01c5"]
    + ["\U0001f600", "\U0001f44d\U0001f3fd", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\u2764\ufe0f", "\u2603"]
    + ["\u200b", "\u200d", "\u200e", "\ufeff", "\u00a0", "\u3000", "\u2003", "\u2028", "\u0085", "\u00ad", "\u202e"]
    + ["\x00", "\x01", "\x1b[0m", "\x7f", "\x0b", "\x0c", "\x1c", "\u0080", "\ufffd", "\U000f0000", "\ue000", "\U0001d400"]
    + ["\u2581", "\u2581\u2581", "\u0120", "\u010a", "\u2019s", "\u20ac", "\u00a3", "\u2211", "\u2260", "\u2192", "\u2014", "\u2026"]
    + ["<s>", "</s>", "<unk>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im_start", "<0x0A>", "<repo_name>"]
    + [" <s>", "<|endoftext|><|endoftext|>", "\u2581<s>", "aaaaaaaa", "zzzzzzzzzzzzzzzz", "=" * 20, "-" * 40]
    + ["\u0f0b", "\U00010330\U00010331", "\U0002070e", "\u0653", "\ua9c0", "\u17d2", "\u06dd", "\u2066"]
)


def splitmix64(state):
    """One step: (new state, value)."""
    state = (state + 0x9E3779B97F4A7C15) & MASK
    z = state
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return state, z ^ (z >> 31)


def generated(index):
    """String `index`: 1 to 24 atoms; some atoms repeat, a few many times."""
    state, value = splitmix64(index)
    text = ""
    for _ in range(1 + value % 24):
        state, value = splitmix64(state)
        atom = ATOMS[value % len(ATOMS)]
        kind = (value >> 32) % 64
        text += atom * (1 + (value >> 40) % 40 if kind == 0 else 2 if kind < 4 else 1)
    return text


def prompts(data):
    strings = (data / "prompts/llmperf_sonnet.txt").read_text(encoding="utf-8").split("\n")
    for name in ["mt_bench_question.jsonl", "spec_bench_question.jsonl"]:
        for line in (data / "prompts" / name).read_text(encoding="utf-8").split("\n"):
            if line:
                strings += json.loads(line)["turns"]
    return [s for s in strings if s]


def fnv(values):
    h = 0xCBF29CE484222325
    for value in values:
        for byte in value.to_bytes(4, "little"):
            h = ((h ^ byte) * 0x100000001B3) & MASK
    return h


def hashes(lists):
    """One hash per GROUP lists: each list as its length and its values."""
    out = []
    for begin in range(0, len(lists), GROUP):
        flat = []
        for ids in lists[begin : begin + GROUP]:
            flat += [len(ids)] + ids
        out.append(f"{fnv(flat):016x}")
    return out


def text_hashes(texts):
    return hashes([list(t.encode("utf-8")) for t in texts])


def smollm2(path):
    """The tokenizer that the GGUF file's metadata describe."""
    import gguf

    fields = gguf.GGUFReader(str(path)).fields
    value = lambda key: fields["tokenizer.ggml." + key].contents()
    assert value("model") == "gpt2" and value("pre") == "smollm"
    tokens, types = value("tokens"), value("token_type")
    merges = [tuple(m.split(" ")) for m in value("merges")]
    tok = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tok.decoder = decoders.ByteLevel()
    control = [t for t, kind in zip(tokens, types) if kind == 3]
    tok.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in control])
    return tok


def golden(name, tok, corpus, prompt_strings, more=None):
    encode = lambda strings: [e.ids for e in tok.encode_batch(strings, add_special_tokens=True)]
    ids, prompt_ids = encode(corpus), encode(prompt_strings)
    result = {
        "ids": hashes(ids),
        "prompt_ids": hashes(prompt_ids),
        "decoded": text_hashes([tok.decode(i, skip_special_tokens=True) for i in ids]),
        "decoded_with_special": text_hashes([tok.decode(i, skip_special_tokens=False) for i in ids]),
        # Arbitrary ids: invalid UTF-8 on the way back.
        "random_decoded": text_hashes([tok.decode(i) for i in random_ids(tok.get_vocab_size())]),
        "full": ids[:FULL],
    }
    result.update(more or {})
    write(name, result)


def random_ids(vocab):
    lists = []
    for index in range(1000):
        state, value = splitmix64(index + 1_000_000)
        ids = []
        for _ in range(1 + value % 12):
            state, value = splitmix64(state)
            # Mostly low ids, where the byte tokens are.
            ids.append(value % (vocab if (value >> 40) % 4 == 0 else 300))
        lists.append(ids)
    return lists


def write(name, value):
    path = OUT / f"{name}.json"
    path.write_text(json.dumps(value, ensure_ascii=True, separators=(",", ":")) + "\n")
    print(path, path.stat().st_size)


# Changes to a tokenizer.json, to reach forms of the file for which no vocabulary is at hand.
VARIANTS = {
    "llama3_form": {
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": LLAMA3}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            ],
        },
        "post_processor": {
            "type": "Sequence",
            "processors": [
                {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
                {
                    "type": "TemplateProcessing",
                    "single": [
                        {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
                        {"Sequence": {"id": "A", "type_id": 0}},
                    ],
                    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                    "special_tokens": {
                        "<|endoftext|>": {"id": "<|endoftext|>", "ids": [50256], "tokens": ["<|endoftext|>"]}
                    },
                },
            ],
        },
        "model": {"ignore_merges": True},
    },
    "qwen2_form": {
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": QWEN2}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
            ],
        },
        "added_tokens": [
            {"id": 50256, "content": "<|endoftext|>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True},
            {"id": 50257, "content": "<|im_start|>", "single_word": False, "lstrip": True, "rstrip": True, "normalized": False, "special": True},
            {"id": 50258, "content": "Hello World", "single_word": True, "lstrip": False, "rstrip": False, "normalized": True, "special": False},
            {"id": 50259, "content": "cafe\u0301", "single_word": False, "lstrip": True, "rstrip": False, "normalized": True, "special": False},
        ],
    },
    "prefix_form": {
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"String": "=="}, "behavior": "Removed", "invert": False},
                {"type": "Digits", "individual_digits": False},
                {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            ],
        },
    },
}
LLAMA2_VARIANTS = {
    "metaspace_form": {
        "normalizer": None,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False},
    },
    "metaspace_split_form": {
        "normalizer": {"type": "NFKC"},
        "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
    },
}


def with_merge_pairs(base):
    """Llama 2's file spells three merges of tokens that contain spaces as "   ", which Hugging Face's
    reader refuses; as pairs it accepts them."""
    vocab = base["model"]["vocab"]
    merges = []
    for merge in base["model"]["merges"]:
        cuts = [i for i, c in enumerate(merge) if c == " "]
        pairs = [[merge[:i], merge[i + 1 :]] for i in cuts]
        pairs = [p for p in pairs if p[0] in vocab and p[1] in vocab and p[0] + p[1] in vocab]
        assert len(pairs) == 1, merge
        merges += pairs
    return {**base, "model": {**base["model"], "merges": merges}}


def patched(base, patch):
    result = dict(base)
    for key, value in patch.items():
        result[key] = {**base["model"], **value} if key == "model" else value
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--smollm2", type=pathlib.Path, required=True)
    args = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)

    corpus = [generated(i) for i in range(GENERATED)]
    prompt_strings = prompts(args.data)
    write(
        "corpus",
        {
            "tokenizers": tokenizers.__version__,
            "atoms": ATOMS,
            "strings": GENERATED,
            "group": GROUP,
            "text": text_hashes(corpus),
            "prompts": len(prompt_strings),
        },
    )

    pieces = {}
    for name, patterns in {"llama-bpe": [LLAMA3], "qwen2": [QWEN2], "o200k": [O200K], "default": GGUF_DEFAULT}.items():
        split = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated") for p in patterns])
        lengths = [[len(p.encode("utf-8")) for p, _ in split.pre_tokenize_str(s)] for s in corpus]
        pieces[name] = {"patterns": patterns, "pieces": hashes(lengths)}
    write("pre_tokenizers", pieces)

    golden("smollm2", smollm2(args.smollm2), corpus, prompt_strings)
    files = {"llama2": "llama2_tokenizer.json", "phi2": "phi2_gpt2bpe_tokenizer.json"}
    for name, file in files.items():
        base = with_merge_pairs(json.loads((args.data / "tokenizers" / file).read_text(encoding="utf-8")))
        golden(name, Tokenizer.from_str(json.dumps(base)), corpus, prompt_strings)
        for variant, patch in (VARIANTS if name == "phi2" else LLAMA2_VARIANTS).items():
            tok = Tokenizer.from_str(json.dumps(patched(base, patch)))
            golden(f"{name}_{variant}", tok, corpus, prompt_strings, {"patch": patch})


if __name__ == "__main__":
    main()
