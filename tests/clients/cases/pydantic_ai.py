import sys

sys.path[0], here = "", sys.path[0]  # this file has the package's name
from pydantic_ai import Agent  # noqa: E402
from pydantic_ai.models.anthropic import AnthropicModel  # noqa: E402
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel  # noqa: E402
from pydantic_ai.providers.anthropic import AnthropicProvider  # noqa: E402
from pydantic_ai.providers.openai import OpenAIProvider  # noqa: E402

sys.path.insert(0, here)
from common import FINE, URL, call  # noqa: E402

openai = OpenAIProvider(base_url=URL + "/v1", api_key="x")
for model in (OpenAIChatModel("fake", provider=openai),
              OpenAIResponsesModel("fake", provider=openai),
              AnthropicModel("fake", provider=AnthropicProvider(base_url=URL, api_key="x"))):
    agent = Agent(model)
    asked = []

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """Weather of a city."""
        asked.append(city)
        return FINE

    out = agent.run_sync(call("get_weather", "city", "Paris")).output
    assert (out, asked) == ("Fine.", ["Paris"]), (model, out, asked)
