"""source_tree - what the style checks share: files, stripped text, functions, reports."""

import collections
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


INCLUDE = re.compile(r'^[ \t]*#[ \t]*include\s*([<"])([^>"]+)[>"]', re.M)


def includes_of(text):
    """(line, quote, header) of every include of a file."""
    text = without_comments(text)
    return [(text.count("\n", 0, m.start()) + 1, m.group(1), m.group(2))
            for m in INCLUDE.finditer(text)]


# ---- rooms and floors ----------------------------------------------------------------------------
# A room is a source with the headers of its stem; x_int.h is a room of its own. A folder's plan says
# which of its rooms each room includes; a subfolder is a folder of its own.

def rooms(root, files):
    """{folder: {room: rooms of that folder which it includes}}"""
    plan = collections.defaultdict(dict)
    for path in files:
        folder, name = os.path.split(path)
        room = os.path.splitext(name)[0]
        arrows = plan[folder].setdefault(room, set())
        for _, quote, header in includes_of(read(root, path)):
            to_folder, to_name = os.path.split("src/" + header)
            to_room = os.path.splitext(to_name)[0]
            if quote == '"' and to_folder == folder and to_room != room:
                arrows.add(to_room)
    for arrows in plan.values():
        for room in arrows:
            arrows[room] &= set(arrows)
    return plan


def way_back(arrows, start):
    """The shortest loop of includes through a room, as a list that begins with it; [] for none."""
    ways = [[start]]
    seen = set()
    for way in ways:
        for room in sorted(arrows[way[-1]]):
            if room == start:
                return way
            if room not in seen:
                seen.add(room)
                ways.append(way + [room])
    return []


def room_knots(arrows):
    """Loops of includes, each room that is in any in one at least."""
    knots = []
    for room in sorted(arrows):
        if not any(room in knot for knot in knots):
            knot = way_back(arrows, room)
            if knot:
                knots.append(knot)
    return knots


def room_floors(arrows):
    """{room: floor}: 1 + the highest floor of what it includes; rooms of a knot share a floor."""
    below = {room: reach(arrows, room) | {room} for room in arrows}
    floors = {}
    for room in sorted(arrows, key=lambda r: len(below[r])):
        floors[room] = 1 + max((floors[r] for r in below[room] if room not in below[r]), default=0)
    return floors


def reach(arrows, room):
    """All rooms that a room includes, directly or through others."""
    seen, ahead = set(), [room]
    while ahead:
        new = arrows[ahead.pop()] - seen
        seen |= new
        ahead += new
    return seen


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
