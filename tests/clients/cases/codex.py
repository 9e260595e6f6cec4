import os
import subprocess

import codex_cli_bin
from common import FINE, URL

os.makedirs(os.path.expanduser("~/.codex"))
with open(os.path.expanduser("~/.codex/config.toml"), "w") as f:
    f.write(f"""model = "fake"
model_provider = "fathom"
[model_providers.fathom]
name = "fathom"
base_url = "{URL}/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
""")
program = os.path.join(os.path.dirname(codex_cli_bin.__file__), "bin", "codex")
done = subprocess.run([program, "exec", "--skip-git-repo-check", FINE], capture_output=True,
                      text=True, stdin=subprocess.DEVNULL)
assert done.returncode == 0 and done.stdout.strip() == "Fine.", done.stdout + done.stderr
