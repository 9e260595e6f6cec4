"""Keys and certificates for tests of TLS, made by openssl."""

import os
import subprocess

from served import HANG_S


def _openssl(*args):
    subprocess.run(["openssl", *args], check=True, capture_output=True, timeout=HANG_S)


def make_certificate(folder, name, *, ca=None, days="30", of=None):
    """A key and a certificate, signed by itself or by `ca`; their paths. of: whose it is, "DNS:name"."""
    key, certificate = (os.path.join(folder, name + end) for end in (".key", ".crt"))
    common = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key,
              "-subj", f"/CN={name}"]
    if ca is None:
        _openssl("req", "-x509", *common, "-out", certificate, "-days", days,
                 "-addext", "subjectAltName=IP:127.0.0.1")
    else:
        request, more = (os.path.join(folder, name + end) for end in (".csr", ".ext"))
        with open(more, "w", encoding="ascii") as f:
            f.write(f"subjectAltName={of}\n" if of else "")
        _openssl("req", "-new", *common, "-out", request)
        _openssl("x509", "-req", "-in", request, "-CA", ca[1], "-CAkey", ca[0], "-CAcreateserial",
                 "-days", days, "-extfile", more, "-out", certificate)
    return key, certificate
