import sys

sys.path[0], here = "", sys.path[0]  # this file has the package's name
import smolagents  # noqa: E402

sys.path.insert(0, here)
from common import URL, call  # noqa: E402

model = smolagents.OpenAIServerModel("fake", api_base=URL + "/v1", api_key="x")
agent = smolagents.ToolCallingAgent(tools=[], model=model, max_steps=1)
out = agent.run(call("final_answer", "answer", "Fine."))
assert out == "Fine.", out
