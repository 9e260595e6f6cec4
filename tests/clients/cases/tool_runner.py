import anthropic
from common import FINE, URL, call

client = anthropic.Anthropic(base_url=URL, max_retries=0)
asked = []


@anthropic.beta_tool
def get_weather(city: str) -> str:
    """Weather of a city.

    Args:
        city: the city
    """
    asked.append(city)
    return FINE


last = client.beta.messages.tool_runner(
    model="fake", max_tokens=400, tools=[get_weather],
    messages=[{"role": "user", "content": call("get_weather", "city", "Paris")}]).until_done()
assert asked == ["Paris"] and last.content[0].text == "Fine.", (asked, last)
