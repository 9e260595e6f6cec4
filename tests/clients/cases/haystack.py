import sys

sys.path[0], here = "", sys.path[0]  # this file has the package's name
from haystack.components.generators.chat import OpenAIChatGenerator  # noqa: E402
from haystack.dataclasses import ChatMessage  # noqa: E402

sys.path.insert(0, here)
from common import FINE, URL  # noqa: E402

for stream in (None, lambda chunk: None):
    g = OpenAIChatGenerator(model="fake", api_base_url=URL + "/v1", streaming_callback=stream)
    r = g.run([ChatMessage.from_user(FINE)])["replies"][0]
    assert r.text == "Fine.", r
