"""Keys and certificates for tests of TLS, made by openssl."""

import os
import subprocess

from served import HANG_S


def _openssl(*args):
    subprocess.run(["openssl", *args], check=True, capture_output=True, timeout=HANG_S)


def make_certificate(folder, name, *, ca=None, days="30"):
    """A key and a certificate, signed by itself or by `ca`; their paths."""
    key, certificate = (os.path.join(folder, name + end) for end in (".key", ".crt"))
    common = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key,
              "-subj", f"/CN={name}"]
    if ca is None:
        _openssl("req", "-x509", *common, "-out", certificate, "-days", days,
                 "-addext", "subjectAltName=IP:127.0.0.1")
    else:
        request = os.path.join(folder, name + ".csr")
        _openssl("req", "-new", *common, "-out", request)
        _openssl("x509", "-req", "-in", request, "-CA", ca[1], "-CAkey", ca[0], "-CAcreateserial",
                 "-days", days, "-out", certificate)
    return key, certificate
