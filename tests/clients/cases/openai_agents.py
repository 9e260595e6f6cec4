import agents
import openai
from common import FINE, URL, call

agents.set_default_openai_client(openai.AsyncOpenAI(base_url=URL + "/v1"))
asked = []


@agents.function_tool
def get_weather(city: str) -> str:
    """Weather of a city."""
    asked.append(city)
    return FINE


for api in ("responses", "chat_completions"):
    agents.set_default_openai_api(api)
    agent = agents.Agent(name="a", model="fake", tools=[get_weather],
                         model_settings=agents.ModelSettings(truncation="auto", verbosity="low"))
    r = agents.Runner.run_sync(agent, call("get_weather", "city", "Paris"))
    assert r.final_output == "Fine.", r.final_output
assert asked == ["Paris", "Paris"], asked
