#!/usr/bin/env python3
"""How the program is linked: what makes a fault of it harder to use is there.

    tests/e2e/test_hardening.py path/to/fathom

Reads the ELF file itself: headers, dynamic section, symbols. The release build is meant.
"""

import os
import struct
import sys
import unittest

PATH = os.path.abspath(sys.argv.pop(1))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

ET_DYN, EM_X86_64 = 3, 62
PT_DYNAMIC, PT_INTERP = 2, 3
PT_GNU_STACK, PT_GNU_RELRO = 0x6474e551, 0x6474e552
PF_X = 1
DT_RPATH, DT_RUNPATH, DT_FLAGS, DT_FLAGS_1 = 15, 29, 30, 0x6ffffffb
DF_BIND_NOW, DF_1_NOW, DF_1_PIE = 8, 1, 0x08000000
SHT_SYMTAB, SHT_DYNSYM = 2, 11
ENDBR64 = bytes.fromhex("f30f1efa")


class Elf:
    """A 64-bit little-endian file."""

    def __init__(self, path):
        with open(path, "rb") as f:
            self.bytes = f.read()
        if self.bytes[:6] != b"\x7fELF\x02\x01":
            raise AssertionError(f"{path} is no 64-bit little-endian ELF file")
        (self.type, self.machine, _, _, ph_at, sh_at, _, _, ph_bytes, n_ph, sh_bytes, n_sh,
         _) = struct.unpack_from("<HHIQQQIHHHHHH", self.bytes, 16)
        self.segments = [self.segment(ph_at + i * ph_bytes) for i in range(n_ph)]
        self.sections = [struct.unpack_from("<IIQQQQIIQQ", self.bytes, sh_at + i * sh_bytes)
                         for i in range(n_sh)]

    def segment(self, at):
        kind, flags, offset, address, _, size, _, _ = struct.unpack_from("<IIQQQQQQ", self.bytes, at)
        return {"kind": kind, "flags": flags, "offset": offset, "address": address, "size": size}

    def of_kind(self, kind):
        return [s for s in self.segments if s["kind"] == kind]

    def dynamic(self):
        """{tag: value}"""
        segment = self.of_kind(PT_DYNAMIC)[0]
        pairs = struct.iter_unpack("<qQ", self.bytes[segment["offset"]:
                                                     segment["offset"] + segment["size"]])
        return dict(pairs)

    def symbols(self, kind):
        """{name: address} of a table of symbols; the address of an import is 0."""
        found = {}
        for section in self.sections:
            if section[1] != kind:
                continue
            offset, size, link = section[4], section[5], section[6]
            names = self.sections[link][4]
            for name, _, _, _, value, _ in struct.iter_unpack("<IBBHQQ",
                                                              self.bytes[offset:offset + size]):
                start = names + name
                found[self.bytes[start:self.bytes.index(b"\0", start)].decode()] = value
        return found

    def at(self, address, n):
        for s in self.of_kind(1):
            if s["address"] <= address < s["address"] + s["size"]:
                start = s["offset"] + address - s["address"]
                return self.bytes[start:start + n]
        raise AssertionError(f"no segment holds {address:#x}")


class Hardening(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.elf = Elf(PATH)

    def test_it_is_position_independent(self):
        self.assertEqual(self.elf.type, ET_DYN)
        self.assertEqual(len(self.elf.of_kind(PT_INTERP)), 1)
        self.assertTrue(self.elf.dynamic()[DT_FLAGS_1] & DF_1_PIE)

    def test_addresses_of_functions_are_bound_at_start_and_read_only(self):
        dynamic = self.elf.dynamic()
        self.assertEqual(len(self.elf.of_kind(PT_GNU_RELRO)), 1)
        self.assertTrue(dynamic.get(DT_FLAGS, 0) & DF_BIND_NOW or dynamic[DT_FLAGS_1] & DF_1_NOW)
        self.assertTrue(dynamic[DT_FLAGS_1] & DF_1_NOW)

    def test_stacks_are_not_executable_and_no_segment_can_be_written_and_run(self):
        stacks = self.elf.of_kind(PT_GNU_STACK)
        self.assertEqual(len(stacks), 1)
        self.assertFalse(stacks[0]["flags"] & PF_X)
        self.assertEqual([s for s in self.elf.of_kind(1) if s["flags"] & 3 == 3], [])

    def test_stacks_have_guards_and_calls_are_checked(self):
        imports = {name.split("@")[0] for name in self.elf.symbols(SHT_DYNSYM)}
        self.assertIn("__stack_chk_fail", imports)
        for name in ("__snprintf_chk", "__vsnprintf_chk", "__memcpy_chk"):
            self.assertIn(name, imports)

    def test_targets_of_indirect_jumps_are_marked(self):
        if self.elf.machine != EM_X86_64:
            self.skipTest("the processor is no x86")
        symbols = self.elf.symbols(SHT_SYMTAB)
        for name in ("main", "cmd_serve", "server_create", "fathom_open"):
            self.assertEqual(self.elf.at(symbols[name], 4), ENDBR64, name)

    def test_it_looks_for_libraries_where_the_system_does(self):
        dynamic = self.elf.dynamic()
        self.assertNotIn(DT_RPATH, dynamic)
        self.assertNotIn(DT_RUNPATH, dynamic)

    def test_it_does_not_say_where_it_was_built(self):
        at = self.elf.bytes.find(ROOT.encode())
        self.assertEqual(at, -1, self.elf.bytes[max(at - 40, 0):at + 100])


if __name__ == "__main__":
    unittest.main()
