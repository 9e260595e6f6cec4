import sys

sys.path[0], here = "", sys.path[0]  # this file has the package's name
import instructor  # noqa: E402

sys.path.insert(0, here)
import openai  # noqa: E402
import pydantic  # noqa: E402
from common import URL, call  # noqa: E402


class City(pydantic.BaseModel):
    city: str


client = openai.OpenAI(base_url=URL + "/v1")
for mode, prompt in (("TOOLS", call("City", "city", "Paris")),
                     ("JSON_SCHEMA", "[[say={\"city\": \"Paris\"}]]")):
    c = instructor.from_openai(client, mode=getattr(instructor.Mode, mode))
    r = c.chat.completions.create(model="fake", response_model=City, max_retries=0,
                                  messages=[{"role": "user", "content": prompt}])
    assert r.city == "Paris", (mode, r)
c = instructor.from_openai(client, mode=instructor.Mode.RESPONSES_TOOLS)
r = c.responses.create(model="fake", response_model=City, max_retries=0,
                       input=call("City", "city", "Paris"))
assert r.city == "Paris", r
