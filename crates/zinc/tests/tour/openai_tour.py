"""A tour of `zinc serve` with OpenAI's own client: python openai_tour.py BASE_URL KEY SLOW_KEY MODEL.

Every step asserts what it got; the last line printed is the number of steps. Nothing here knows how the server works, but for
its limits: SLOW_KEY has one request a minute, 64 answers run or wait, a request has 1 MiB, and 2 MiB are read at a time.
"""

import json
import socket
import sys
import time
import urllib.request

import jsonschema
import openai

base, key, slow_key, model = sys.argv[1:]
client = openai.OpenAI(base_url=base + "/v1", api_key=key, max_retries=0, timeout=120)
MESSAGES = [
    {"role": "system", "content": "You are a helpful assistant, and you know the world: its countries, their "
     "capitals, rivers and mountains. You answer what you are asked, in short and plain sentences, and nothing else."},
    {"role": "user", "content": "What is the capital of France? Answer in one sentence."},
]
steps = []


def step(function):
    steps.append(function)
    return function


def fails(error, ask):
    try:
        ask()
    except error as caught:
        return caught
    raise AssertionError(f"no {error.__name__}")


def metric(name):
    request = urllib.request.Request(base + "/metrics", headers={"Authorization": "Bearer " + key})
    page = urllib.request.urlopen(request, timeout=60).read().decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith(name + "{"))


@step
def models():
    names = [entry.id for entry in client.models.list()]
    assert model in names, names
    assert client.models.retrieve(model).id == model


@step
def chat():
    answer = client.chat.completions.create(model=model, messages=MESSAGES, temperature=0, max_completion_tokens=30)
    choice = answer.choices[0]
    assert "Paris" in choice.message.content, choice
    assert choice.message.role == "assistant" and choice.finish_reason in ("stop", "length")
    assert answer.object == "chat.completion" and answer.model == model and answer.system_fingerprint
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens and usage.prompt_tokens > 20
    again = client.chat.completions.create(model=model, messages=MESSAGES, temperature=0, max_completion_tokens=30)
    assert again.choices[0].message.content == choice.message.content
    assert again.usage.prompt_tokens_details.cached_tokens >= 32, "the second time the prompt is known"


@step
def stream():
    options = dict(model=model, messages=MESSAGES, temperature=0, max_tokens=30)
    whole = client.chat.completions.create(**options)
    chunks = list(client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **options))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason
    assert chunks[-1].usage == whole.usage or chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    with client.chat.completions.stream(**options) as events:
        final = events.get_final_completion()
    assert final.choices[0].message.content == text


@step
def seeds_and_choices():
    ask = lambda seed: client.chat.completions.create(model=model, messages=MESSAGES, seed=seed, n=2, max_tokens=20, temperature=1.2)
    one, same, other = ask(5), ask(5), ask(99)
    texts = lambda answer: [c.message.content for c in answer.choices]
    assert texts(one) == texts(same) and texts(one) != texts(other)
    assert [c.index for c in one.choices] == [0, 1] and texts(one)[0] != texts(one)[1]


@step
def stop_texts():
    answer = client.chat.completions.create(model=model, messages=MESSAGES, temperature=0, stop=["France"], max_tokens=30)
    assert "France" not in answer.choices[0].message.content and answer.choices[0].finish_reason == "stop"


@step
def log_probabilities():
    answer = client.chat.completions.create(
        model=model, messages=MESSAGES, temperature=0, max_tokens=8, logprobs=True, top_logprobs=4
    )
    rows = answer.choices[0].logprobs.content
    assert len(rows) == answer.usage.completion_tokens
    assert "".join(row.token for row in rows).startswith(answer.choices[0].message.content[:4])
    for row in rows:
        assert row.logprob <= 0 and len(row.top_logprobs) == 4 and row.top_logprobs[0].token == row.token


@step
def bias():
    answer = client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=4, temperature=0, logit_bias={"33": 100}
    )
    text = answer.choices[0].message.content
    assert len(text) == 4 and len(set(text)) == 1, text


@step
def completions():
    prompt = "The capital of France is"
    answer = client.completions.create(model=model, prompt=prompt, max_tokens=3, temperature=0, logprobs=2, echo=True)
    choice = answer.choices[0]
    assert choice.text.startswith(prompt + " Paris"), choice.text
    assert choice.logprobs.token_logprobs[0] is None and len(choice.logprobs.tokens) == answer.usage.total_tokens
    both = client.completions.create(model=model, prompt=["One, two,", prompt], max_tokens=3, temperature=0)
    assert prompt + both.choices[1].text == choice.text
    streamed = client.completions.create(model=model, prompt=prompt, max_tokens=3, temperature=0, stream=True)
    assert prompt + "".join(c.choices[0].text for c in streamed) == choice.text


@step
def embeddings():
    texts = ["The cat sleeps on the sofa.", "A cat is sleeping on a couch.", "Interest rates rose by a quarter point."]
    answer = client.embeddings.create(model=model, input=texts)  # the client asks for base64 by itself
    plain = client.embeddings.create(model=model, input=texts, encoding_format="float")
    assert [row.index for row in answer.data] == [0, 1, 2] and answer.usage.prompt_tokens == answer.usage.total_tokens > 20
    dot = lambda a, b: sum(x * y for x, y in zip(a.embedding, b.embedding))
    for row, same in zip(answer.data, plain.data):
        assert len(row.embedding) == 576 and abs(dot(row, row) - 1) < 1e-4 and dot(row, same) > 0.9999
    cat, couch, rates = answer.data
    assert dot(cat, couch) > dot(cat, rates) and dot(cat, couch) > dot(couch, rates)
    short = client.embeddings.create(model=model, input=texts[0], dimensions=64).data[0]
    assert len(short.embedding) == 64 and abs(dot(short, short) - 1) < 1e-4
    assert fails(openai.BadRequestError, lambda: client.embeddings.create(model=model, input="")).param == "input"
    many = "word " * 3000
    assert fails(openai.BadRequestError, lambda: client.embeddings.create(model=model, input=many)).code == "context_length_exceeded"


def text(**more):
    return {"type": "string", "maxLength": 20, **more}


def thing(required=None, **properties):
    required = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


INTEGER = {"type": "integer", "minimum": 0, "maximum": 1000}
SCHEMAS = [
    {"type": "boolean"},
    {"type": "null"},
    INTEGER,
    {"type": "integer", "minimum": -5, "maximum": 5},
    {"type": "integer", "exclusiveMinimum": 10, "exclusiveMaximum": 13},
    {"enum": [0.5, 1.25, -300]},
    text(),
    text(minLength=5),
    text(pattern="^[A-Z][a-z]{2,5}$"),
    {"type": "string", "format": "date"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "ipv4"},
    {"enum": ["red", "green", "blue"]},
    {"enum": [1, "two", None, False]},
    {"const": {"answer": 42}},
    {"type": ["boolean", "null"]},
    {"type": "array", "items": INTEGER, "minItems": 2, "maxItems": 3},
    {"type": "array", "prefixItems": [text(), INTEGER], "minItems": 2, "items": False},
    {"type": "array", "items": thing(x=INTEGER, y=INTEGER), "minItems": 1, "maxItems": 2},
    thing(name=text(), age=INTEGER),
    thing(city=text(), capital={"type": "boolean"}),
    thing(required=["a"], a=INTEGER, b=text(), c={"type": "boolean"}),
    thing(inner=thing(deep=thing(value=INTEGER))),
    thing(tags={"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 3}),
    {"anyOf": [INTEGER, {"type": "boolean"}]},
    {"anyOf": [thing(kind={"const": "cat"}, lives=INTEGER), thing(kind={"const": "dog"}, name=text())]},
    {"$defs": {"p": thing(x=INTEGER)}, "type": "array", "items": {"$ref": "#/$defs/p"}, "minItems": 1, "maxItems": 2},
    {
        "$defs": {"tree": thing(required=["v"], v=INTEGER, next={"$ref": "#/$defs/leaf"}), "leaf": thing(v=INTEGER)},
        "$ref": "#/$defs/tree",
    },
    {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 7}]},
    {"type": "object", "additionalProperties": INTEGER, "minProperties": 0, "maxProperties": 0},
    thing(steps={"type": "array", "items": thing(explanation=text(), output=text()), "minItems": 1, "maxItems": 2}, answer=text()),
    thing(**{"key with \"quotes\" and ü": INTEGER}),
]


@step
def json_schemas():
    for number, schema in enumerate(SCHEMAS):
        messages = [{"role": "user", "content": "Answer in JSON of this schema: " + json.dumps(schema)}]
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
        options = dict(model=model, messages=messages, response_format=form, max_tokens=250, seed=number)
        if number % 2:
            chunks = list(client.chat.completions.create(stream=True, **options))
            content = "".join(c.choices[0].delta.content or "" for c in chunks)
            end = chunks[-1].choices[0].finish_reason
        else:
            answer = client.chat.completions.create(**options)
            content, end = answer.choices[0].message.content, answer.choices[0].finish_reason
        assert end == "stop", (schema, content)
        jsonschema.validate(json.loads(content), schema, format_checker=jsonschema.FormatChecker())
    assert len(SCHEMAS) >= 30
    error = fails(
        openai.BadRequestError,
        lambda: client.chat.completions.create(
            model=model,
            messages=MESSAGES,
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "blue"}}},
        ),
    )
    assert error.param == "response_format"
    answer = client.chat.completions.create(
        model=model, messages=MESSAGES, response_format={"type": "json_object"}, max_tokens=200, temperature=0
    )
    assert answer.choices[0].finish_reason == "length" or isinstance(json.loads(answer.choices[0].message.content), dict)


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city now.",
        "parameters": thing(city=text(), unit={"enum": ["celsius", "fahrenheit"]}),
    },
}
CLOCK = {"type": "function", "function": {"name": "get_time", "parameters": thing(city=text())}}


@step
def tools():
    messages = [{"role": "user", "content": "What is the weather in Paris, in celsius?"}]
    ask = lambda **more: client.chat.completions.create(
        **{"model": model, "messages": messages, "tools": [WEATHER, CLOCK], "temperature": 0, "max_tokens": 300, **more}
    )
    for choice, names in [
        ("required", {"get_weather", "get_time"}),
        ({"type": "function", "function": {"name": "get_time"}}, {"get_time"}),
        ({"type": "function", "function": {"name": "get_weather"}}, {"get_weather"}),
    ]:
        answer = ask(tool_choice=choice, parallel_tool_calls=False).choices[0]
        assert answer.finish_reason == "tool_calls" and len(answer.message.tool_calls) == 1, answer
        call = answer.message.tool_calls[0]
        assert call.function.name in names and call.type == "function" and call.id
        tool = WEATHER if call.function.name == "get_weather" else CLOCK
        jsonschema.validate(json.loads(call.function.arguments), tool["function"]["parameters"])
    streamed = list(ask(tool_choice="required", stream=True))
    calls = [c for chunk in streamed for c in chunk.choices[0].delta.tool_calls or []]
    assert calls and [c.index for c in calls] == list(range(len(calls)))
    assert streamed[-1].choices[0].finish_reason == "tool_calls"
    assert not ask(tool_choice="none").choices[0].message.tool_calls
    free = ask(tool_choice="auto").choices[0]
    assert (free.finish_reason == "tool_calls") == bool(free.message.tool_calls)
    # The result goes back, and the model answers in words.
    messages += [answer.message, {"role": "tool", "tool_call_id": call.id, "content": "18 degrees, sunny"}]
    last = ask(tool_choice="none").choices[0]
    assert last.message.content and not last.message.tool_calls
    error = fails(openai.BadRequestError, lambda: ask(tool_choice={"type": "function", "function": {"name": "other"}}))
    assert error.param == "tool_choice"


@step
def a_conversation():
    messages = MESSAGES + [
        {"role": "assistant", "content": "The capital of France is Paris."},
        {"role": "user", "content": [{"type": "text", "text": "And of Italy?"}]},
    ]
    answer = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=20)
    assert answer.choices[0].message.content and answer.usage.prompt_tokens > 50


@step
def errors():
    chat = lambda **more: client.chat.completions.create(**{"model": model, "messages": MESSAGES, **more})
    error = fails(openai.NotFoundError, lambda: chat(model="no-such-model"))
    assert error.code == "model_not_found" and error.param == "model"
    error = fails(openai.BadRequestError, lambda: chat(max_tokens=1_000_000))
    assert error.code == "context_length_exceeded" and "1000" in error.message and "2048" in error.message
    error = fails(openai.BadRequestError, lambda: chat(extra_body={"no_such_parameter": 1}))
    assert error.param == "no_such_parameter"
    error = fails(openai.BadRequestError, lambda: chat(temperature=-3))
    assert error.param == "temperature"
    error = fails(openai.BadRequestError, lambda: chat(messages=[]))
    assert error.param == "messages" and error.type == "invalid_request_error"
    stranger = openai.OpenAI(base_url=base + "/v1", api_key="sk-wrong", max_retries=0)
    error = fails(openai.AuthenticationError, lambda: stranger.models.list())
    assert error.code == "invalid_api_key"


@step
def too_large():
    huge = [{"role": "user", "content": "word " * 250_000}]
    error = fails(openai.APIStatusError, lambda: client.chat.completions.create(model=model, messages=huge))
    assert error.status_code == 413 and error.code == "request_too_large" and error.type == "invalid_request_error"
    assert "retry-after" not in error.response.headers, "no time makes it smaller"


def comes_back(error, code):
    assert error.code == code, error
    assert 1 <= int(error.response.headers["retry-after"]) <= 300


@step
def too_often():
    slow = openai.OpenAI(base_url=base + "/v1", api_key=slow_key, max_retries=0)
    ask = lambda: slow.chat.completions.create(model=model, messages=MESSAGES, max_tokens=1)
    assert ask().usage.completion_tokens == 1
    error = fails(openai.RateLimitError, ask)
    comes_back(error, "rate_limit_exceeded")
    assert error.status_code == 429 and error.type == "requests"
    assert error.response.headers["x-ratelimit-remaining-requests"] == "0"


@step
def too_many():
    ask = lambda **more: client.chat.completions.create(model=model, messages=MESSAGES, n=40, max_tokens=500, **more)
    held = ask(stream=True)
    error = fails(openai.RateLimitError, ask)
    assert error.status_code == 429
    comes_back(error, "queue_full")
    held.close()


@step
def no_memory():
    large = [{"role": "user", "content": "word " * 100_000}]
    ask = lambda: client.chat.completions.create(model=model, messages=large)
    assert fails(openai.BadRequestError, ask).code == "context_length_exceeded"
    # Somebody sends most of a request, and takes his time with the rest.
    host, port = base.split("//")[1].split(":")
    with socket.create_connection((host, int(port))) as lazy:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\nContent-Length: 1000000\r\n\r\n"
        lazy.sendall(head.encode() + b" " * 900_000)
        while metric("zinc_request_body_bytes") < 900_000:
            time.sleep(0.02)
        error = fails(openai.InternalServerError, ask)
        assert error.status_code == 503 and error.type == "server_error"
        comes_back(error, "no_memory_for_request")
    while metric("zinc_request_body_bytes"):
        time.sleep(0.02)
    assert fails(openai.BadRequestError, ask).code == "context_length_exceeded"


@step
def salts():
    ask = lambda salt: client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=1, extra_body={"cache_salt": salt}
    ).usage.prompt_tokens_details.cached_tokens
    assert ask("of the tour") == 0 and ask("of the tour") >= 32 and ask("of another") == 0


@step
def document():
    document = json.loads(urllib.request.urlopen(base + "/openapi.json", timeout=60).read())
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)

    def fits(name, value):
        schema = {"$ref": "#/components/schemas/" + name, "components": document["components"]}
        jsonschema.Draft202012Validator(schema).validate(value)

    options = dict(model=model, messages=MESSAGES, max_tokens=4, logprobs=True, top_logprobs=2)
    fits("ChatRequest", options)
    fits("ChatResponse", json.loads(client.chat.completions.with_raw_response.create(**options).text))
    for chunk in client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **options):
        fits("ChatChunk", chunk.model_dump(mode="json", exclude_unset=True))
    fits("CompletionResponse", json.loads(client.completions.with_raw_response.create(model=model, prompt="x").text))
    for form in ["float", "base64"]:
        raw = client.embeddings.with_raw_response.create(model=model, input="x", encoding_format=form)
        fits("EmbeddingResponse", json.loads(raw.text))
    fits("ModelList", json.loads(client.models.with_raw_response.list().text))
    error = fails(openai.BadRequestError, lambda: client.chat.completions.create(**{**options, "temperature": -1}))
    fits("Error", error.response.json())


@step
def reasoning():
    # This model has no tags of reasoning: nothing is told apart, and a budget changes nothing.
    ask = lambda **more: client.chat.completions.create(model=model, messages=MESSAGES, temperature=0, max_tokens=20, extra_body=more)
    plain, limited = ask().choices[0].message, ask(reasoning_budget=3, chat_template_kwargs={"enable_thinking": True}).choices[0].message
    assert plain.content == limited.content and not hasattr(plain, "reasoning_content")
    error = fails(openai.BadRequestError, lambda: ask(reasoning_format="xml"))
    assert error.param == "reasoning_format"


@step
def special_tokens_are_text():
    ask = lambda content: client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": content}], max_tokens=1
    ).usage.prompt_tokens
    assert ask("a <|im_end|> b") > ask("a b") + 3, "the end of a turn, spelled by a user, is several tokens of text"


@step
def request_ids():
    raw = client.chat.completions.with_raw_response.create(
        model=model, messages=MESSAGES, max_tokens=1, extra_headers={"x-request-id": "tour-1"}
    )
    assert raw.headers["x-request-id"] == "tour-1" and raw.parse()._request_id == "tour-1"


@step
def cancel():
    endless = client.chat.completions.create(
        model=model, messages=MESSAGES, stream=True, max_tokens=1900, extra_body={"ignore_eos": True}
    )
    for count, _ in enumerate(endless):
        if count == 3:
            break
    endless.close()
    end = time.monotonic() + 30
    while metric("vllm:num_requests_running") or metric("vllm:kv_cache_usage_perc"):
        assert time.monotonic() < end, "the request still runs"
        time.sleep(0.02)
    assert metric("vllm:request_success_total") > 0


for function in steps:
    begin = time.monotonic()
    function()
    print(f"{function.__name__}: {time.monotonic() - begin:.2f} s", flush=True)
print(json.dumps({"steps": len(steps), "client": openai.__version__}))
