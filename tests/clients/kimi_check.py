#!/usr/bin/env python3
"""Kimi's tokenizer against tiktoken, with the published ranks.

    tests/clients/kimi_check.py [--all] path/to/fathom
    tests/clients/kimi_check.py --write tests/data/tokenizer/kimi

The published tiktoken.model stands in the package splintr-rs, which is asked for its bytes alone.
`fathom tokenize` must give tiktoken's ids for this repository's texts, for every code point of
Unicode 16.0 between others, and for random mixes of what the pattern tells apart: without --all for the
code points below 0x3000, one in seven of the others, and fewer mixes. --write makes the
ranks and pairs of tests/unit/test_tokenizer_ranks.c.
"""
import base64
import collections
import glob
import json
import os
import random
import subprocess
import sys
import tempfile
import unicodedata

import client_env

client_env.enter("tiktoken and splintr-rs", requirements="requirements-kimi.txt")

import splintr  # noqa: E402
import tiktoken  # noqa: E402

# tokenization_kimi.py of moonshotai/Kimi-K2-Thinking
PATTERN = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
SPECIAL = {"[BOS]": 0, "[EOS]": 1, "<|im_end|>": 2, "<|im_user|>": 3, "<|im_assistant|>": 4,
           "<|im_system|>": 10, "<|tool_calls_section_begin|>": 11, "<|im_middle|>": 17,
           "<think>": 22, "</think>": 23}
SIGNS = ["a", "b", "s", "S", "re", "LL", "ve", "A", "Z", "é", "Ü", "ß", "ſ", "ǅ", "ʰ", "ª", "中", "文",
         "〇", "々", "⺀", "𠀀", "か", "ー", "한", "ا", "́", "𖿰", "1", "22", "٣", "Ⅷ", "½", "'", "'s",
         "'T", "'ſ", " ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "\u0085", ".", "!?", "_",
         "€", "😀", "\u200d", "\u00ad", "\ue000", "\x00", "\x7f"]


def published():
    model = splintr.Tokenizer.from_pretrained("kimi_k2")
    return {model.decode_token_bytes(i): i for i in range(163584)}


def made_up(texts, n):
    """The 256 bytes and n tokens made of what is often side by side."""
    ranks = {bytes([i]): i for i in range(256)}
    words = collections.Counter(w for text in texts for w in text.replace(" ", "\0 ").split("\0"))
    parts = {w: [bytes([b]) for b in w.encode()] for w in words}
    while len(ranks) < 256 + n:
        pairs = collections.Counter()
        for word, p in parts.items():
            for pair in zip(p, p[1:]):
                pairs[pair] += words[word]
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        ranks.setdefault(best[0] + best[1], len(ranks))
        for p in parts.values():
            i = 0
            while i + 1 < len(p):
                if (p[i], p[i + 1]) == best:
                    p[i:i + 2] = [p[i] + p[i + 1]]
                i += 1
    return ranks


def mixes(n, seed):
    rng = random.Random(seed)
    return ["".join(rng.choice(SIGNS) for _ in range(rng.randint(1, 12))) for _ in range(n)]


def encoding(ranks, special):
    return tiktoken.Encoding("kimi", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special)


def write_ranks(path, ranks):
    with open(path, "wb") as f:
        for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
            f.write(base64.b64encode(token) + b" %d\n" % rank)


def repository_texts():
    files = glob.glob(os.path.join(client_env.ROOT, "docs", "**", "*.md"), recursive=True)
    files += glob.glob(os.path.join(client_env.ROOT, "src", "*", "*.[ch]"))
    files.append(os.path.join(client_env.ROOT, "models", "texts.jsonl"))
    texts = []
    for name in sorted(files):
        with open(name, encoding="utf-8") as f:
            texts.append(f.read())
    return texts


def write(folder):
    ranks = made_up([t[:20000] for t in repository_texts()[:40]], 400)
    os.makedirs(folder, exist_ok=True)
    write_ranks(os.path.join(folder, "tiktoken.model"), ranks)
    kimi = encoding(ranks, {})
    pairs = [[t, kimi.encode(t, disallowed_special=())] for t in mixes(600, 1)]
    with open(os.path.join(folder, "pairs.json"), "w", encoding="utf-8") as f:
        lines = (json.dumps(p, ensure_ascii=True, separators=(",", ":")) for p in pairs)
        f.write("[" + ",\n".join(lines) + "]\n")


def same(fathom, model, kimi, name, text):
    want = kimi.encode(text, allowed_special="all")
    done = subprocess.run([fathom, "tokenize", model], input=text.encode(), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr.decode()
    got = [int(line.split()[0]) for line in done.stdout.splitlines()]
    for i, (a, b) in enumerate(zip(got, want)):
        assert a == b, f"{name}: id {i} is {a}, needed is {b}: {kimi.decode(want[max(0, i - 8):i + 8])!r}"
    assert len(got) == len(want), f"{name}: {len(got)} ids, needed are {len(want)}"
    print(f"{name}: {len(want)} ids")


def main():
    if sys.argv[1] == "--write":
        return write(sys.argv[2])
    is_all = sys.argv[1] == "--all"
    fathom = os.path.abspath(sys.argv[-1])
    ranks = published()
    special = {f"<|reserved_token_{i}|>": i for i in range(163584, 163840)}
    for name, offset in SPECIAL.items():
        del special[f"<|reserved_token_{163584 + offset}|>"]
        special[name] = 163584 + offset
    kimi = encoding(ranks, special)
    with tempfile.TemporaryDirectory() as model:
        write_ranks(os.path.join(model, "tiktoken.model"), ranks)
        names = {str(i): {"content": name, "special": True} for name, i in special.items()
                 if name in SPECIAL}
        with open(os.path.join(model, "tokenizer_config.json"), "w", encoding="utf-8") as f:
            json.dump({"added_tokens_decoder": names}, f)
        with open(os.path.join(model, "config.json"), "w", encoding="utf-8") as f:
            f.write("{}")
        with open(os.path.join(model, "model.safetensors"), "wb") as f:
            f.write((2).to_bytes(8, "little") + b"{}")
        same(fathom, model, kimi, "texts", "\n".join(repository_texts()))
        marks = "".join(f"{m}x {m}\n" for m in special)
        same(fathom, model, kimi, "special tokens", marks)
        same(fathom, model, kimi, "mixes", "\n".join(mixes(200000 if is_all else 40000, 2)))
        points = [chr(i) for i in range(0x110000)
                  if not 0xd800 <= i < 0xe000 and (is_all or i < 0x3000 or i % 7 == 0)]
        known = [c for c in points if unicodedata.category(c) != "Cn"]
        same(fathom, model, kimi, "characters", "".join(f"a{c}B{c}b中{c}\n" for c in known))
        same(fathom, model, kimi, "code points", "".join(f"a{c}B " for c in points[::3]))
    return None


sys.exit(main())
