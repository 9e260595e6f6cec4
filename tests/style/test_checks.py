#!/usr/bin/env python3
"""Each style check finds what is planted, and nothing in a sound tree."""

import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

SOUND_HEADER = """/* thing.h - a sound header */
#ifndef FATHOM_BASE_THING_H
#define FATHOM_BASE_THING_H

#include "fathom/err.h"

/* thing_do - does it. Errors ENOMEM. */
fathom_err thing_do(int n);

#endif
"""

SOUND_SOURCE = """#include "base/thing.h"

#include <string.h>

static const char *const names[] = {"a", "b"};

fathom_err thing_do(int n)
{
    return strlen(names[n]) ? FATHOM_OK : FATHOM_ENOMEM;
}
"""

ERR = "#ifndef FATHOM_ERR_H\n#define FATHOM_ERR_H\ntypedef int fathom_err;\n#endif\n"


class Tree:
    """A small tree in a temporary folder: sound, but for the files that a test gives."""

    def __init__(self, files):
        self.folder = tempfile.TemporaryDirectory()
        sound = {"include/fathom/err.h": ERR, "src/base/thing.h": SOUND_HEADER,
                 "src/base/thing.c": SOUND_SOURCE}
        for path, text in {**sound, **files}.items():
            full = os.path.join(self.folder.name, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as f:
                f.write(text)
        with open(os.path.join(ROOT, ".clang-format"), encoding="utf-8") as f:
            style = f.read()
        with open(os.path.join(self.folder.name, ".clang-format"), "w", encoding="utf-8") as f:
            f.write(style)

    def run(self, check, arguments=()):
        done = subprocess.run([os.path.join(ROOT, "tools", check), self.folder.name, *arguments],
                              capture_output=True, text=True, check=False)
        self.folder.cleanup()
        return done.returncode, done.stdout + done.stderr


class Checks(unittest.TestCase):
    def sound(self, check):
        status, out = Tree({}).run(check)
        self.assertEqual(status, 0, out)

    def finds(self, check, files, *parts, arguments=()):
        status, out = Tree(files).run(check, arguments)
        self.assertEqual(status, 1, out)
        for part in parts:
            self.assertIn(part, out)

    def passes(self, check, files, arguments=()):
        status, out = Tree(files).run(check, arguments)
        self.assertEqual(status, 0, out)

    def test_a_sound_tree_passes(self):
        for check in ("check_includes", "check_style", "check_headers", "check_format"):
            self.sound(check)

    def test_an_empty_tree_does_not_pass(self):
        with tempfile.TemporaryDirectory() as empty:
            for check in ("check_includes", "check_style", "check_headers", "check_format"):
                done = subprocess.run([os.path.join(ROOT, "tools", check), empty],
                                      capture_output=True, text=True, check=False)
                self.assertEqual(done.returncode, 1, done.stdout)

    # ---- check_includes ----

    def test_a_layer_must_not_look_up(self):
        self.finds("check_includes", {"src/base/a.c": '#include "model/config.h"\n'},
                   'src/base/a.c:1: "model/config.h": base/ must not see it')
        self.finds("check_includes", {"src/engine/a.c": '\n#include "chat/chat.h"\n'},
                   "src/engine/a.c:2:")
        self.finds("check_includes", {"src/server/a.c": '#include "engine/engine.h"\n'},
                   "server/ must not see it")
        self.finds("check_includes", {"src/backend/ref/a.c": '#include "kv/page_pool.h"\n'},
                   "backend/ must not see it")
        self.passes("check_includes", {"src/backend/ref/a.c": '#include "kv/layout.h"\n'})
        self.passes("check_includes", {"src/bench/op_bench.c": '#include "model/config.h"\n'})
        self.finds("check_includes", {"src/bench/load.c": '#include "model/config.h"\n'},
                   "bench/ must not see it")
        self.passes("check_includes", {"src/base/a.c": '/* #include "model/config.h" */\n'})

    def test_private_headers_stay_private(self):
        self.finds("check_includes", {"src/cli/a.c": '#include "model/model_int.h"\n'},
                   "private to model/")
        self.finds("check_includes", {"src/model/a.c": '#include "backend/ref/ref.h"\n'},
                   "private to backend/")
        self.passes("check_includes", {"src/model/a.c": '#include "model/model_int.h"\n'})

    def test_a_subfolder_may_have_a_row_of_its_own(self):
        self.finds("check_includes", {"src/server/api/a.c": '#include "server/job.h"\n'},
                   "server/api/ must not see it")
        self.finds("check_includes", {"src/server/a.c": '#include "server/web/web.h"\n'},
                   "server/ must not see it")
        self.finds("check_includes", {"src/server/web/a.c": '#include "base/mem.h"\n'},
                   "server/web/ must not see it")
        self.finds("check_includes", {"src/cli/a.c": '#include "server/http/routes.h"\n'},
                   "src/cli/a.c:1:")
        self.passes("check_includes", {"src/server/http/a.c": '#include "server/api/sse.h"\n'})
        self.passes("check_includes", {"src/cli/a.c": '#include "server/server.h"\n'})

    def test_foreign_headers_stay_in_their_folder(self):
        self.finds("check_includes", {"src/model/a.c": "#include <cuda_runtime.h>\n"}, "CUDA")
        self.finds("check_includes", {"src/engine/a.c": "#include <jansson.h>\n"}, "JSON")
        self.finds("check_includes", {"src/server/a.c": "#include <sys/socket.h>\n"}, "sockets")
        self.passes("check_includes", {"src/http/a.c": "#include <sys/socket.h>\n"})
        self.finds("check_includes", {"src/sched/a.c": "#include <time.h>\n"}, "time")
        self.passes("check_includes", {"src/backend/cuda/a.cu": "#include <cuda_runtime.h>\n"})

    def test_folders_and_paths_are_known(self):
        self.finds("check_includes", {"src/extra/a.c": "int x;\n"}, "src/extra/ is not in the table")
        self.finds("check_includes", {"src/base/a.c": '#include "thing.h"\n'}, "folder/file.h")

    def test_a_source_includes_its_own_header_first(self):
        source = '#include <string.h>\n\n#include "base/thing.h"\n'
        self.finds("check_includes", {"src/base/thing.c": source}, "must be included first")

    def rooms(self, includes, folder="kv"):
        """The files of a folder: {"a.h": "b"} is an a.h that includes b.h of the same folder."""
        return {f"src/{folder}/{name}": "".join(f'#include "{folder}/{t}.h"\n' for t in to.split())
                for name, to in includes.items()}

    def test_no_knots_of_includes(self):
        for knot, told in (
                ({"a.h": "b", "b.h": "a"}, "src/kv/a.h:1: a knot of includes: a -> b -> a;"),
                ({"a.c": "b", "a.h": "", "b.h": "c", "c.c": "a", "c.h": ""},
                 "src/kv/a.c:1: a knot of includes: a -> b -> c -> a;"),
                ({"a.c": "a a_int", "a.h": "", "a_int.h": "a"}, "a -> a_int -> a;")):
            with self.subTest(knot=knot):
                self.finds("check_includes", self.rooms(knot), told, " 1 violations")
        for sound in ({"a.c": "a", "a.h": "b", "b.h": "c", "c.h": "", "b.c": "b c"},
                      {"a.h": "a"}, {"a.c": "a a_int", "a_int.h": "b", "b.h": ""}):
            with self.subTest(sound=sound):
                self.passes("check_includes", self.rooms(sound))
        across = {**self.rooms({"a.h": ""}, "backend/cpu"), "src/backend/b.c": "",
                  "src/backend/cpu/b.h": '#include "backend/a.h"\n',
                  "src/backend/a.h": '#include "backend/cpu/b.h"\n'}
        self.passes("check_includes", across)

    def test_folders_are_no_towers(self):
        tower = {f"r{i}.h": f"r{i - 1}" if i > 1 else "" for i in range(1, 9)}
        self.passes("check_includes", self.rooms(tower))
        tower["r9.c"] = "r8 r2"
        self.finds("check_includes", self.rooms(tower),
                   "src/kv/r9.c:1: r9 stands on floor 9 of src/kv/, at most 8: "
                   "r9 -> r8 -> r7 -> r6 -> r5 -> r4 -> r3 -> r2 -> r1", " 1 violations")
        self.passes("check_includes", {**self.rooms(tower | {"r9.c": "r7"}),
                                       **self.rooms({"top.c": ""}, "sched")})

    # ---- check_style ----

    def style(self, body, *parts, path="src/base/a.c"):
        self.finds("check_style", {path: body}, *parts)

    def test_sizes_are_limited(self):
        long_function = "int f(void)\n{\n" + "    g();\n" * 120 + "}\n"
        self.style(long_function, "src/base/a.c:2: f has 122 lines, at most 120")
        kernel = "__global__ void k(void)\n{\n" + "    g();\n" * 200 + "}\n"
        self.passes("check_style", {"src/backend/cuda/a.cu": kernel})
        self.style("int x(void);\n" * 1501, "1501 lines, at most 1500")
        self.style("/* " + "x" * 100 + " */\n", "106 columns")
        guard = "#ifndef FATHOM_BASE_B_H\n#define FATHOM_BASE_B_H\n%s#endif\n"
        self.style(guard % ("\n" * 300), "in a header, at most 300", path="src/base/b.h")

    def test_banned_calls(self):
        for call in ("strcpy(a, b)", "sprintf(a, b)", "strtok(a, b)", "atoi(a)", "rand()",
                     "getenv(a)", "malloc(1)"):
            self.style(f"int f(void)\n{{\n    {call};\n}}\n", "src/base/a.c:3: ")
        self.style("int f(void)\n{\n    abort();\n}\n", "end the process", path="src/kv/a.c")
        self.style("int f(void)\n{\n    fprintf(stderr, x);\n}\n", "stderr", path="src/kv/a.c")
        self.passes("check_style", {"src/cli/a.c": "int f(void)\n{\n    getenv(a);\n}\n"})
        self.passes("check_style", {"src/base/a.c": 'const char *const s = "strcpy(a)";\n'})
        self.passes("check_style", {"src/base/a.c": "/* strcpy(a) */\n"})

    def test_global_mutable_state(self):
        for line in ("static int counter;", "int counter = 3;", "static const char *counter;",
                     "static struct s counter = {0};", "static _Thread_local int counter;",
                     "static int counter[3];", "static _Atomic int counter;"):
            self.style(line + "\n", "counter: global mutable state")
        self.style("int f(void)\n{\n    static int counter = 0;\n}\n", "counter: static mutable")
        for line in ("static const int n = 3;", "static const char *const s = \"x\";",
                     "typedef int number;", "struct s {\n    int member;\n};", "int f(int n);",
                     "static const struct s t[] = {{1}, {2}};", "enum { A, B };",
                     "extern const int n;"):
            self.passes("check_style", {"src/base/a.c": line + "\n"})

    def test_guards_docs_names_and_unfinished_work(self):
        self.style("#ifndef WRONG_H\n#define WRONG_H\n#endif\n", "must be FATHOM_BASE_B_H",
                   path="src/base/b.h")
        guard = "#ifndef FATHOM_BASE_B_H\n#define FATHOM_BASE_B_H\n\n%s\n#endif\n"
        self.style(guard % "int bare(void);\n", "bare has no doc comment", path="src/base/b.h")
        self.passes("check_style", {"src/base/b.h": guard % "/* told - what */\nint told(void);\n"})
        self.style("/* TO" + "DO: later */\n", "finish it or leave it out")
        self.finds("check_style", {"src/kv/thing.c": "int x(void);\n"}, "file names are unique")
        self.passes("check_style", {"src/backend/ref/moe.c": "int x(void);\n",
                                    "src/backend/cpu/moe.c": "int y(void);\n"})

    def test_fields_of_a_comment_begin_a_line(self):
        for line in ("or forgets them Returns  how many", "may be NULL Errors EINVAL with the path",
                     "in order. Errors  ENOMEM.", "any thread. Cost  a few loads"):
            self.style(f"/* f - does it\n *\n * {line}\n */\n", "src/base/a.c:3: ",
                       "begins a line of its own")
        for comment in ("/* f - does it\n * Returns  how many\n * Errors   ENOMEM. */",
                        "/* f - does it. Errors  ENOMEM. */",
                        "/* Of the device. Errors of one\n * message do not end it. */",
                        "/* f - Errors  ENOMEM\n *   Cost  O(n) */"):
            self.passes("check_style", {"src/base/a.c": comment + "\n"})

    def test_names_that_cuda_alone_has(self):
        names = ("cudaError_t", "__nv_bfloat16", "__half2float", "__float2bfloat16_rn",
                 "__ballot_sync", "__syncwarp", "asm", "__CUDA_ARCH__", "__grid_constant__")
        body = "#include <cuda_fp8.h>\nvoid f(void)\n{\n%s}\n" % "".join(f"    {n}();\n" for n in names)
        found = [f"src/backend/cuda/a.cu:{4 + i}: {n} is CUDA's alone" for i, n in enumerate(names)]
        self.style(body, "a.cu:1: <cuda_fp8.h> is", *found, path="src/backend/cuda/a.cu")
        self.passes("check_style", {"src/backend/cuda/sm90/a.cu": body})
        other = "/* cudaError_t */\nvoid f(void)\n{\n    __syncthreads();\n    cuda_launch();\n}\n"
        self.passes("check_style", {"src/backend/cuda/a.cu": other})

    # ---- source_numbers ----

    def numbers(self, files, *arguments):
        tree = Tree(files)
        page = os.path.join(tree.folder.name, "docs", "architecture.md")
        done = subprocess.run([os.path.join(ROOT, "tools", "source_numbers"), tree.folder.name,
                               *arguments], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        text = ""
        if os.path.exists(page):
            with open(page, encoding="utf-8") as f:
                text = f.read()
        tree.folder.cleanup()
        return done.stdout, text

    def test_numbers_are_counted_by_folder(self):
        source = ('#include "kv/a.h"\n\n#define TWICE(x) ASSERT(x)\n\nint f(int n)\n{\n'
                  '    ASSERT(n);\n    DCHECK(n); /* ASSERT(n) */\n    return n;\n}\n\n'
                  'int g(void)\n{\n' + "    f(1);\n" * 80 + "}\n")
        files = {"src/kv/a.c": source, "src/kv/a.h": "static_assert(1, \"ASSERT(0)\");\n",
                 "src/kv/b.c": '#include "kv/a.h"\n', "src/kv/c.h": '#include "kv/a.h"\n',
                 "src/backend/cuda/sm90/k.cu": "", "tests/unit/test_c.c": '#include "kv/c.h"\n'}
        out, _ = self.numbers(files)
        self.assertIn("| kv | 4 | 97 | 2 | 5, 82, 82 | 1 | 1.50 | 2 | 0, 1 | 3 |\n", out)
        self.assertIn("| backend/cuda | 1 | 0 | 0 |", out)
        self.assertIn("| all of src | 7 |", out)
        self.assertLess(out.index("| base |"), out.index("| kv |"))
        knot = self.rooms({"a.h": "b", "b.h": "a"})
        self.assertIn("| 1 and 1 knot |", self.numbers(knot)[0])

    def test_too_few_assertions_are_found(self):
        bare = "int f(void)\n{\n    return 0;\n}\n"
        held = "int f(void)\n{\n    ASSERT(g());\n    return 0;\n}\n"
        self.finds("source_numbers", {"src/kv/a.c": bare}, "src/kv:1: 0.00 assertions a function",
                   arguments=["--check"])
        self.finds("source_numbers", {"src/backend/b.c": bare, "src/backend/cpu/c.c": bare},
                   "src/backend:1: 0.00 assertions", " 1 violations", arguments=["--check"])
        for path in ("src/kv/a.c", "src/backend/cpu/c.c"):
            self.passes("source_numbers", {path: held}, arguments=["--check"])

    def test_numbers_are_written_into_the_page(self):
        page = "before\n<!-- tools/source_numbers --write -->\nold\n<!-- end -->\nafter\n"
        out, written = self.numbers({"docs/architecture.md": page}, "--write")
        self.assertEqual(out, "")
        self.assertTrue(written.startswith("before\n<!-- tools/source_numbers --write -->\n| folder"))
        self.assertTrue(written.endswith("|\n<!-- end -->\nafter\n"))

    # ---- the others ----

    def test_headers_stand_alone(self):
        guard = "#ifndef FATHOM_BASE_B_H\n#define FATHOM_BASE_B_H\n%s\n#endif\n"
        self.finds("check_headers", {"src/base/b.h": guard % "size_t n(void);"}, "alone as c:")
        self.finds("check_headers", {"src/base/b.h": guard % "int f(int *restrict p);"},
                   "alone as c++:")
        self.passes("check_headers", {"src/server/b.h": guard % "int f(int *restrict p);"})

    def test_formatting_is_compared(self):
        self.finds("check_format", {"src/base/a.c": "int  f(void);\n"}, "src/base/a.c:1:")

    # ---- tools/deps ----

    def test_deps_is_silent_when_all_is_there_and_knows_its_words(self):
        deps = os.path.join(ROOT, "tools", "deps")
        done = subprocess.run([deps, "test"], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        done = subprocess.run([deps, "nonsense"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 2)


if __name__ == "__main__":
    sys.exit(unittest.main())
