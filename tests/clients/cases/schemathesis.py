import os
import subprocess
import sys

sys.path[0], here = "", sys.path[0]  # this file has the package's name
sys.path.insert(0, here)
from common import SMALL  # noqa: E402

program = os.path.join(os.path.dirname(sys.executable), "schemathesis")
checks = "not_a_server_error,status_code_conformance,content_type_conformance,unsupported_method"
done = subprocess.run([program, "run", SMALL + "/openapi.json", "--checks", checks,
                       "--max-examples", "15"], capture_output=True, text=True)
assert done.returncode == 0, done.stdout[-400:]
