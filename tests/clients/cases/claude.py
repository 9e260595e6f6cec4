import json
import os
import subprocess

import claude_agent_sdk
from common import FINE, URL

program = os.path.join(os.path.dirname(claude_agent_sdk.__file__), "_bundled", "claude")
env = dict(os.environ, ANTHROPIC_BASE_URL=URL, ANTHROPIC_MODEL="fake",
           ANTHROPIC_SMALL_FAST_MODEL="fake", ANTHROPIC_DEFAULT_HAIKU_MODEL="fake",
           CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1", DISABLE_TELEMETRY="1",
           DISABLE_AUTOUPDATER="1", DISABLE_ERROR_REPORTING="1")
done = subprocess.run([program, "-p", FINE, "--output-format", "json"], capture_output=True,
                      text=True, stdin=subprocess.DEVNULL, env=env)
result = json.loads(done.stdout)
result = result[-1] if isinstance(result, list) else result
assert result["result"] == "Fine." and not result["is_error"], done.stdout[-300:]
