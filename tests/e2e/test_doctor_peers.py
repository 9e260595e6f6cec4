#!/usr/bin/env python3
"""Which GPUs reach which: what `fathom doctor` says of three (tests/support/three_gpus.c).

    tests/e2e/test_doctor_peers.py path/to/fathom_three_gpus
"""

import unittest

from test_doctor import FINE, findings


class Peers(unittest.TestCase):
    def test_each_device_has_its_line(self):
        areas, _ = findings("--backend", "cpu", status=(*FINE, 1))
        lines = [(f["level"], f["text"]) for f in areas["peers"]]
        self.assertEqual(lines, [("note", "device 0 reaches 1 by NVLink, 2 by PCIe"),
                                 ("warn", "device 1 reaches 0 by NVLink, 2 not"),
                                 ("warn", "device 2 reaches 0 by PCIe, 1 not")])
        self.assertIn("--devices", areas["peers"][1]["advice"])


if __name__ == "__main__":
    unittest.main()
