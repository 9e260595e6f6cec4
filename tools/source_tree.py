"""source_tree - what the style checks share: files, stripped text, functions, reports."""

import os
import re
import sys

CODE = (".c", ".h", ".cu", ".cuh")


def code_files(root, folders=("include", "src", "tests", "bench")):
    """Paths, relative to root, of all C and CUDA files in the folders, sorted."""
    found = []
    for folder in folders:
        for where, dirs, names in os.walk(os.path.join(root, folder)):
            dirs[:] = [d for d in dirs if d not in ("data", "corpus")]
            found += [os.path.relpath(os.path.join(where, n), root)
                      for n in names if n.endswith(CODE)]
    return sorted(found)


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as f:
        return f.read()


def blank(match):
    """The match as blanks, line breaks kept."""
    return re.sub(r"[^\n]", " ", match.group(0))


TOKENS = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def without_comments(text):
    """Comments blanked, line numbers kept."""
    return TOKENS.sub(lambda m: blank(m) if m.group(0).startswith("/") else m.group(0), text)


def without_text(text):
    """Comments, contents of string and character literals, and preprocessor lines blanked."""
    text = TOKENS.sub(lambda m: blank(m) if m.group(0)[0] == "/" else
                      m.group(0)[0] + " " * (len(m.group(0)) - 2) + m.group(0)[-1], text)
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", blank, text, flags=re.M)


def without_linkage(stripped):
    """Blanks `extern "C" {` and the brace that closes it, so that what is inside is at file scope."""
    for m in re.finditer(r'extern\s+" "\s*\{', stripped):
        depth = 1
        for i in range(m.end(), len(stripped)):
            depth += {"{": 1, "}": -1}.get(stripped[i], 0)
            if depth == 0:
                stripped = stripped[:i] + " " + stripped[i + 1:]
                break
        stripped = stripped[:m.start()] + blank(m) + stripped[m.end():]
    return stripped


def functions(stripped):
    """(name, first line, lines of the body, signature) of every function of formatted code.

    The format puts the brace that opens a function, and the one that closes it, alone in column 0.
    """
    lines = stripped.split("\n")
    found = []
    start = None
    for i, line in enumerate(lines):
        if line == "{":
            start = i
        elif line.startswith("}") and start is not None:
            signature = ""
            k = start - 1
            while k >= 0 and lines[k].strip() and not lines[k].startswith("}"):
                signature = lines[k].strip() + " " + signature
                k -= 1
            name = re.search(r"(\w+)\s*\(", re.sub(r"__\w+__\s*\([^()]*\)", "", signature))
            found.append((name.group(1) if name else "?", start + 1, i - start + 1, signature))
            start = None
    return found


class Report:
    """Collects violations; `finish` prints them and gives the exit status."""

    def __init__(self, what):
        self.what = what
        self.lines = []
        self.notes = []

    def add(self, path, line, message):
        self.lines.append(f"{path}:{line}: {message}")

    def note(self, path, line, message):
        self.notes.append(f"{path}:{line}: {message}")

    def finish(self, n_file):
        for line in self.notes:
            print("note: " + line)
        for line in self.lines:
            print(line)
        print(f"{self.what}: {n_file} files, {len(self.lines)} violations")
        if n_file == 0:
            print(f"{self.what}: nothing was checked")
        return 1 if self.lines or n_file == 0 else 0


def root_argument():
    """The tree to check: the first argument, else the one this file lies in."""
    if len(sys.argv) > 1:
        return sys.argv[1]
    return os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
